// SwiGlu(gate [T,n], up [T,n]) -> ConcatD [T,2n] -> SwiGlu(dim -1).
//
// GE's SwiGlu takes one tensor and gates its first half: silu(first) * second.
#include "onnx_node.h"
#include "subgraph.h"

namespace {

constexpr char kOrigin[] = "pagedom::1::SwiGlu";
constexpr uint32_t kParts = 2;
constexpr int64_t kLastAxis = 1;  // of [T,n]

domi::Status Parse(const ge::Operator& source, ge::Operator& target) {
  const pagedom::OnnxNode node(source, kOrigin);
  pagedom::BecomeSubgraph(kOrigin, kParts, 1, &target);
  return node.status();
}

domi::Status Expand(const ge::Operator& op, ge::Graph& graph) {
  pagedom::Subgraph sub(op, kOrigin);
  const ge::Operator gate = sub.Input("gate");
  const ge::Operator up = sub.Input("up");
  ge::Operator both = sub.Make("Concat", "ConcatD");
  ge::Operator swiglu = sub.Make("swiglu", "SwiGlu");
  if (!both.IsEmpty() && !swiglu.IsEmpty()) {
    both.DynamicInputRegister("x", kParts);
    both.SetInput("x", 0U, gate).SetInput("x", 1U, up);
    both.SetAttr("concat_dim", kLastAxis);
    both.SetAttr("N", static_cast<int64_t>(kParts));
    swiglu.SetInput("x", both);
    swiglu.SetAttr("dim", static_cast<int64_t>(-1));
  }
  return sub.Finish({{swiglu, 0}}, &graph);
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
