#include "attention_heads.h"

#include <string>

namespace pagedom {

namespace {

constexpr int64_t kMostKvWidth = 65535;  // K*D of a BnBsH cache (aclnnFusedInferAttentionScoreV4)

}  // namespace

AttentionHeads ParseAttentionHeads(OnnxNode* node, ge::Operator* target) {
  const AttentionHeads heads{node->Int("num_heads", 1), node->Int("num_key_value_heads", 1),
                             node->Int("head_dim", 1)};
  if (node->ok() && heads.query % heads.kv != 0) {
    node->Refuse("attribute 'num_heads' is " + std::to_string(heads.query) +
                 ", must be a multiple of num_key_value_heads " + std::to_string(heads.kv));
  }
  if (node->ok() && heads.kv * heads.dim > kMostKvWidth) {
    node->Refuse("num_key_value_heads " + std::to_string(heads.kv) + " * head_dim " +
                 std::to_string(heads.dim) + " exceeds 65535, the most that a BnBsH cache may have");
  }
  target->SetAttr("num_heads", heads.query);
  target->SetAttr("num_key_value_heads", heads.kv);
  target->SetAttr("head_dim", heads.dim);
  target->SetAttr("block_size", node->Int("block_size", 1));
  target->SetAttr("scale", node->PositiveFloat("scale"));
  return heads;
}

}  // namespace pagedom
