// SlotUpdate -> two ScatterNdUpdate, for chips without ScatterPaKvCache (310P).
//
//     key_slots [P*S,K,D] ------------------------------> ScatterNdUpdate: var
//     slot_mapping [T] -> Reshape [T,1] ----------------------------------- indices
//     key [T,K,D] --------------------------------------------------------- updates
//     and the same for the values
//
// Nothing stands between the cache and `var`, which the operator updates in place. It documents no
// negative index: padding has slot 0, in the null page.
#include "onnx_node.h"
#include "subgraph.h"

namespace {

constexpr char kOrigin[] = "pagedom::1::SlotUpdate";

domi::Status Parse(const ge::Operator& source, ge::Operator& target) {
  const pagedom::OnnxNode node(source, kOrigin);
  pagedom::BecomeSubgraph(kOrigin, 5, 2, &target);
  return node.status();
}

domi::Status Expand(const ge::Operator& op, ge::Graph& graph) {
  pagedom::Subgraph sub(op, kOrigin);
  const ge::Operator key = sub.Input("key");
  const ge::Operator key_slots = sub.Input("key_slots");
  const ge::Operator slot_mapping = sub.Input("slot_mapping");
  const ge::Operator value = sub.Input("value");
  const ge::Operator value_slots = sub.Input("value_slots");
  const ge::Operator slots = sub.Reshape("slots", slot_mapping, 0, {-1, 1});
  ge::Operator write_key = sub.Make("write_key", "ScatterNdUpdate");
  ge::Operator write_value = sub.Make("write_value", "ScatterNdUpdate");
  if (!write_key.IsEmpty() && !write_value.IsEmpty()) {
    write_key.SetInput("var", key_slots).SetInput("indices", slots).SetInput("updates", key);
    write_value.SetInput("var", value_slots).SetInput("indices", slots).SetInput("updates", value);
  }
  return sub.Finish({{write_key, 0}, {write_value, 0}}, &graph);
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
