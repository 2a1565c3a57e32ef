#include "attention_heads.h"

#include <string>
#include <vector>

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

ge::Operator MakeAttention(Subgraph* sub, const char* type, const ge::Operator& query,
                           const ge::Operator& key_cache, const ge::Operator& value_cache) {
  const std::vector<int64_t> pages{-1, sub->Int("block_size"),
                                   sub->Int("num_key_value_heads") * sub->Int("head_dim")};
  const ge::Operator key = sub->Reshape("key_pages", key_cache, 0, pages);
  const ge::Operator value = sub->Reshape("value_pages", value_cache, 0, pages);
  ge::Operator attention = sub->Make("attention", type);
  if (!attention.IsEmpty()) {
    // By index: key and value are lists in front of optional inputs, and a plain registration
    // would put them behind all of those.
    attention.DynamicInputRegisterByIndex("key", 1, 1);
    attention.DynamicInputRegisterByIndex("value", 1, 2);
    attention.SetInput("query", query).SetInput("key", 0U, key).SetInput("value", 0U, value);
    for (const char* const name : {"num_heads", "num_key_value_heads", "block_size"}) {
      attention.SetAttr(name, sub->Int(name));
    }
  }
  return attention;
}

}  // namespace pagedom
