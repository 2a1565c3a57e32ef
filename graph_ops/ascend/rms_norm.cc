// RmsNorm(x, gamma; epsilon) -> RmsNorm(x, gamma; epsilon), one to one.
//
// The built-in plugin of NPURmsNorm drops epsilon and leaves the prototype's 1e-6: wrong for every
// LLaMA (1e-5). Ours is parsed, and required.
#include "onnx_node.h"

namespace {

constexpr char kOrigin[] = "pagedom::1::RmsNorm";

domi::Status Parse(const ge::Operator& source, ge::Operator& target) {
  pagedom::OnnxNode node(source, kOrigin);
  target.SetAttr("epsilon", node.PositiveFloat("epsilon"));
  return node.status();
}

}  // namespace

namespace domi {

REGISTER_CUSTOM_OP("RmsNorm")
    .FrameworkType(ONNX)
    .OriginOpType(kOrigin)
    .ParseParamsByOperatorFn(Parse)
    .ImplyType(ImplyType::TVM);

}  // namespace domi
