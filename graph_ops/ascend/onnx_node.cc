#include "onnx_node.h"

#include "graph/ascend_string.h"
#include "log.h"

namespace pagedom {
namespace {

constexpr char kAdvice[] =
    "; the graph must pass through compiler/lower/annotate_heads.py before ATC reads it";

}  // namespace

std::string OperatorName(const ge::Operator& op) {
  ge::AscendString name;
  if (op.GetName(name) != ge::GRAPH_SUCCESS || name.GetString() == nullptr) {
    return "";
  }
  return name.GetString();
}

OnnxNode::OnnxNode(const ge::Operator& source, const char* origin)
    : name_(OperatorName(source)), origin_(origin) {
  ge::AscendString text;
  std::string error;
  const bool given = source.GetAttr("attribute", text) == ge::GRAPH_SUCCESS;
  readable_ = attributes_.Parse(given && text.GetString() != nullptr ? text.GetString() : "",
                                &error);
  if (!readable_) {
    Refuse(error);
  }
}

int64_t OnnxNode::Int(const char* name, int64_t least, int64_t most) {
  int64_t value = least;
  std::string error;
  if (!readable_) {
    return least;  // reported already
  }
  if (!attributes_.Int(name, least, most, &value, &error)) {
    Refuse(attributes_.Has(name) ? error : error + kAdvice);
    return least;
  }
  return value;
}

int64_t OnnxNode::IntOr(const char* name, int64_t absent, int64_t least, int64_t most) {
  return attributes_.Has(name) ? Int(name, least, most) : absent;
}

float OnnxNode::PositiveFloat(const char* name) {
  float value = 1.0F;
  std::string error;
  if (!readable_) {
    return 1.0F;  // reported already
  }
  if (!attributes_.Float(name, &value, &error)) {
    Refuse(error);
    return 1.0F;
  }
  if (!(value > 0.0F)) {
    Refuse(std::string("attribute '") + name + "' is " + std::to_string(value) +
           ", must be above 0");
    return 1.0F;
  }
  return value;
}

void OnnxNode::RefuseNonZero(const char* name, const char* reason) {
  float value = 0.0F;
  std::string error;
  if (!attributes_.Has(name)) {
    return;
  }
  if (!attributes_.Float(name, &value, &error)) {
    Refuse(error);
  } else if (value != 0.0F) {
    Refuse(std::string("attribute '") + name + "' is " + std::to_string(value) +
           ", must be 0: " + reason);
  }
}

void OnnxNode::Refuse(const std::string& what) {
  ok_ = false;
  LogError(name_, origin_, what);
}

void BecomeSubgraph(const char* origin, uint32_t inputs, uint32_t outputs, ge::Operator* target) {
  target->DynamicInputRegister("x", inputs);
  target->DynamicOutputRegister("y", outputs);
  target->SetAttr("original_type", origin);
}

}  // namespace pagedom
