// What both attention operators are told of their heads and pages.
#ifndef PAGEDOM_ASCEND_ATTENTION_HEADS_H_
#define PAGEDOM_ASCEND_ATTENTION_HEADS_H_

#include <cstdint>

#include "graph/operator.h"
#include "onnx_node.h"

namespace pagedom {

struct AttentionHeads {
  int64_t query;  // H
  int64_t kv;     // K
  int64_t dim;    // D
};

// Reads num_heads, num_key_value_heads, head_dim, block_size and scale, refuses what no BnBsH cache
// can have, and leaves all five on `target` for ParseOpToGraphFn.
AttentionHeads ParseAttentionHeads(OnnxNode* node, ge::Operator* target);

}  // namespace pagedom

#endif  // PAGEDOM_ASCEND_ATTENTION_HEADS_H_
