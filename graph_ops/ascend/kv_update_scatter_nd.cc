// KVUpdate for a CANN without ScatterPaKvCache (before 8.5): two ScatterNdUpdate over slots.
//
//     key_cache [P,S,K,D] -> Reshape [P*S,K,D] -> ScatterNdUpdate -> Reshape [P,S,K,D]
//     slot_mapping [T] -> Reshape [T,1] = indices; key [T,K,D] = updates; the same for the values
//
// ScatterNdUpdate documents no negative index: padding must point into the null page (slot 0),
// which the manifest beside this library says to the driver (padding_slot).
#include "onnx_node.h"
#include "subgraph.h"

namespace {

constexpr char kOrigin[] = "pagedom::1::KVUpdate";

domi::Status Parse(const ge::Operator& source, ge::Operator& target) {
  pagedom::OnnxNode node(source, kOrigin);
  pagedom::BecomeSubgraph(kOrigin, 5, 2, &target);
  for (const char* const name : {"block_size", "num_key_value_heads", "head_dim"}) {
    target.SetAttr(name, node.Int(name, 1));
  }
  return node.status();
}

domi::Status Expand(const ge::Operator& op, ge::Graph& graph) {
  pagedom::Subgraph sub(op, kOrigin);
  const int64_t page_size = sub.Int("block_size");
  const int64_t kv_heads = sub.Int("num_key_value_heads");
  const int64_t head_dim = sub.Int("head_dim");
  const ge::Operator key = sub.Input("key");
  const ge::Operator key_cache = sub.Input("key_cache");
  const ge::Operator slot_mapping = sub.Input("slot_mapping");
  const ge::Operator value = sub.Input("value");
  const ge::Operator value_cache = sub.Input("value_cache");

  const std::vector<int64_t> by_slot{-1, kv_heads, head_dim};
  const std::vector<int64_t> by_page{-1, page_size, kv_heads, head_dim};
  const ge::Operator slots = sub.Reshape("slots", slot_mapping, 0, {-1, 1});
  const ge::Operator key_slots = sub.Reshape("key_slots", key_cache, 0, by_slot);
  const ge::Operator value_slots = sub.Reshape("value_slots", value_cache, 0, by_slot);
  ge::Operator write_key = sub.Make("write_key", "ScatterNdUpdate");
  ge::Operator write_value = sub.Make("write_value", "ScatterNdUpdate");
  if (!write_key.IsEmpty() && !write_value.IsEmpty()) {
    write_key.SetInput("var", key_slots).SetInput("indices", slots).SetInput("updates", key);
    write_value.SetInput("var", value_slots).SetInput("indices", slots).SetInput("updates", value);
  }
  const ge::Operator key_out = sub.Reshape("key_cache_out", write_key, 0, by_page);
  const ge::Operator value_out = sub.Reshape("value_cache_out", write_value, 0, by_page);
  return sub.Finish({{key_out, 0}, {value_out, 0}}, &graph);
}

}  // namespace

namespace domi {

REGISTER_CUSTOM_OP("PartitionedCall")
    .FrameworkType(ONNX)
    .OriginOpType(kOrigin)
    .ParseParamsByOperatorFn(Parse)
    .ParseOpToGraphFn(Expand)
    .ImplyType(ImplyType::TVM);

}  // namespace domi
