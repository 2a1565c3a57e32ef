// Rotary(x [T,N,D], cos, sin) -> RotaryPositionEmbedding(x, cos, sin; mode 0 = half-split).
//
// The GE operator wants the angles as [T,1,D] in the dtype of x. The compiler's pass makes them
// so once for all layers and marks the node `angles_ready`: then the subgraph is the one operator,
// and keeps the node's name. A node without the mark has them as float32 [T,D]:
//
//     cos, sin -> Reshape [T,1,D] -> Cast (unless x is float32) -> RotaryPositionEmbedding
#include "onnx_node.h"
#include "subgraph.h"

namespace {

constexpr char kOrigin[] = "pagedom::1::Rotary";
constexpr int64_t kHalfSplit = 0;

domi::Status Parse(const ge::Operator& source, ge::Operator& target) {
  pagedom::OnnxNode node(source, kOrigin);
  pagedom::BecomeSubgraph(kOrigin, 3, 1, &target);
  const int64_t ready = node.IntOr("angles_ready", 0, 0, 1);
  target.SetAttr("angles_ready", ready);
  if (ready == 0) {
    const int64_t dtype = node.Int("dtype", ge::DT_FLOAT, ge::DT_BF16);
    if (dtype != ge::DT_FLOAT && dtype != ge::DT_FLOAT16 && dtype != ge::DT_BF16) {
      node.Refuse("attribute 'dtype' is " + std::to_string(dtype) +
                  ", must be 0 (float32), 1 (float16) or 27 (bfloat16)");
    }
    target.SetAttr("dtype", dtype);
    target.SetAttr("head_dim", node.Int("head_dim", 1));
  }
  return node.status();
}

ge::Operator Angles(const std::string& label, const ge::Operator& table, pagedom::Subgraph* sub) {
  const int64_t dtype = sub->Int("dtype");
  const ge::Operator view =
      sub->Reshape((label + "_heads").c_str(), table, 0, {-1, 1, sub->Int("head_dim")});
  if (dtype == ge::DT_FLOAT) {
    return view;
  }
  ge::Operator cast = sub->Make((label + "_cast").c_str(), "Cast");
  if (!cast.IsEmpty() && !view.IsEmpty()) {
    cast.SetInput("x", view);
    cast.SetAttr("dst_type", dtype);
  }
  return cast;
}

domi::Status Expand(const ge::Operator& op, ge::Graph& graph) {
  pagedom::Subgraph sub(op, kOrigin);
  const ge::Operator x = sub.Input("x");
  ge::Operator cos = sub.Input("cos");
  ge::Operator sin = sub.Input("sin");
  if (sub.Int("angles_ready") == 0) {
    cos = Angles("cos", cos, &sub);
    sin = Angles("sin", sin, &sub);
  }
  ge::Operator rotary = sub.Make("rotary", "RotaryPositionEmbedding");
  if (!rotary.IsEmpty() && !cos.IsEmpty() && !sin.IsEmpty()) {
    rotary.SetInput("x", x).SetInput("cos", cos).SetInput("sin", sin);
    rotary.SetAttr("mode", kHalfSplit);
  }
  return sub.Finish({{rotary, 0}}, &graph);
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
