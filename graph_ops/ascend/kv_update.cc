// KVUpdate -> ScatterPaKvCache (CANN 8.5 and later), one to one: the order of inputs and outputs
// is the same. The operator skips slots below 0, so padding writes nothing.
//
// The outputs have the names of the inputs key_cache and value_cache, which is how GE knows that
// they are updated in place.
#include "onnx_node.h"

namespace {

constexpr char kOrigin[] = "pagedom::1::KVUpdate";

domi::Status Parse(const ge::Operator& source, ge::Operator& target) {
  const pagedom::OnnxNode node(source, kOrigin);
  target.SetAttr("cache_mode", "Norm");  // caches [P,S,K,D]
  return node.status();
}

}  // namespace

namespace domi {

REGISTER_CUSTOM_OP("ScatterPaKvCache")
    .FrameworkType(ONNX)
    .OriginOpType(kOrigin)
    .ParseParamsByOperatorFn(Parse)
    .ImplyType(ImplyType::TVM);

}  // namespace domi
