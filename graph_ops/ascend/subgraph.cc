#include "subgraph.h"

#include "graph/operator_factory.h"
#include "log.h"
#include "onnx_node.h"

namespace pagedom {

Subgraph::Subgraph(const ge::Operator& node, const char* origin)
    : name_(OperatorName(node)), origin_(origin), node_(node) {}

int64_t Subgraph::Int(const char* name) {
  int64_t value = 0;
  if (node_.GetAttr(name, value) != ge::GRAPH_SUCCESS) {
    ok_ = false;
    LogError(name_, origin_, std::string("attribute '") + name + "' was lost by the parser");
  }
  return value;
}

float Subgraph::Float(const char* name) {
  float value = 0.0F;
  if (node_.GetAttr(name, value) != ge::GRAPH_SUCCESS) {
    ok_ = false;
    LogError(name_, origin_, std::string("attribute '") + name + "' was lost by the parser");
  }
  return value;
}

ge::Operator Subgraph::Input(const char* label) {
  ge::Operator data = Make(label, "Data");
  if (!data.IsEmpty()) {
    data.SetAttr("index", static_cast<int64_t>(inputs_.size()));
  }
  inputs_.push_back(data);
  return data;
}

ge::Operator Subgraph::Make(const char* label, const char* type) {
  const std::string name = name_ + "/" + label;
  ge::Operator made = ge::OperatorFactory::CreateOperator(name.c_str(), type);
  if (made.IsEmpty()) {
    ok_ = false;
    LogError(name_, origin_,
             std::string("this CANN has no GE operator ") + type +
                 " (no prototype of it is registered); check ASCEND_OPP_PATH and the release that "
                 "the target needs (compile-model --capabilities)");
  }
  return made;
}

ge::Operator Subgraph::Constant(const char* label, const std::vector<int64_t>& values) {
  const auto count = static_cast<int64_t>(values.size());
  const ge::TensorDesc desc(ge::Shape({count}), ge::FORMAT_ND, ge::DT_INT64);
  return Constant(label, desc, reinterpret_cast<const uint8_t*>(values.data()),
                  values.size() * sizeof(int64_t));
}

ge::Operator Subgraph::Constant(const char* label, const ge::TensorDesc& desc,
                                const uint8_t* data, size_t size) {
  ge::Operator constant = Make(label, "Const");
  if (!constant.IsEmpty()) {
    constant.SetAttr("value", ge::Tensor(desc, data, size));
    (void)constant.UpdateOutputDesc("y", desc);
  }
  return constant;
}

ge::Operator Subgraph::Reshape(const char* label, const ge::Operator& x, uint32_t output,
                               const std::vector<int64_t>& dims) {
  ge::Operator view = Make(label, "Reshape");
  const ge::Operator shape = Constant((std::string(label) + "_shape").c_str(), dims);
  if (ok_) {
    view.SetInput("x", x, output);
    view.SetInput("shape", shape);
  }
  return view;
}

domi::Status Subgraph::Finish(const std::vector<std::pair<ge::Operator, size_t>>& outputs,
                              ge::Graph* graph) const {
  if (!ok_) {
    return domi::FAILED;
  }
  std::vector<std::pair<ge::Operator, std::vector<size_t>>> indexed;
  for (const auto& output : outputs) {
    indexed.emplace_back(output.first, std::vector<size_t>{output.second});
  }
  // Data operators alone: the parser replaces each by what the node was fed with, and refuses
  // any other kind here. Constants are found through the operators that read them.
  graph->SetInputs(inputs_).SetOutputs(indexed);
  return domi::SUCCESS;
}

}  // namespace pagedom
