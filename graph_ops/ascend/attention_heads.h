// What both attention operators are told of their heads and pages, and how they read the pages.
#ifndef PAGEDOM_ASCEND_ATTENTION_HEADS_H_
#define PAGEDOM_ASCEND_ATTENTION_HEADS_H_

#include <cstdint>

#include "graph/operator.h"
#include "onnx_node.h"
#include "subgraph.h"

namespace pagedom {

struct AttentionHeads {
  int64_t query;  // H
  int64_t kv;     // K
  int64_t dim;    // D
};

// Reads num_heads, num_key_value_heads, head_dim, block_size and scale, refuses what no BnBsH cache
// can have, and leaves all five on `target` for ParseOpToGraphFn.
AttentionHeads ParseAttentionHeads(OnnxNode* node, ge::Operator* target);

// An attention operator over pages in their BnBsH layout [P,S,K*D], with its query, key and value
// and the attributes that both kinds have; empty if this CANN lacks the type.
ge::Operator MakeAttention(Subgraph* sub, const char* type, const ge::Operator& query,
                           const ge::Operator& key_cache, const ge::Operator& value_cache);

}  // namespace pagedom

#endif  // PAGEDOM_ASCEND_ATTENTION_HEADS_H_
