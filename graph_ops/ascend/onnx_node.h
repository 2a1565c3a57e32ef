// The ONNX node that a parsing function was given, seen through its attributes.
//
// Reading goes on after a refusal, so that one run reports everything that is wrong with a node;
// `ok()` says at the end whether anything was.
#ifndef PAGEDOM_ASCEND_ONNX_NODE_H_
#define PAGEDOM_ASCEND_ONNX_NODE_H_

#include <cstdint>
#include <limits>
#include <string>

#include "attribute_json.h"
#include "graph/operator.h"
#include "register/register.h"

namespace pagedom {

constexpr int64_t kMostInt = std::numeric_limits<int32_t>::max();

std::string OperatorName(const ge::Operator& op);

class OnnxNode {
 public:
  // `origin` is the OriginOpType, for messages.
  OnnxNode(const ge::Operator& source, const char* origin);

  // A required attribute in [least, most]; `least` if it was refused.
  int64_t Int(const char* name, int64_t least, int64_t most = kMostInt);
  // The same for an attribute that may be absent.
  int64_t IntOr(const char* name, int64_t absent, int64_t least, int64_t most = kMostInt);
  // A required attribute above zero; 1 if it was refused.
  float PositiveFloat(const char* name);
  // A float that must be zero, because the GE operator has nothing for it.
  void RefuseNonZero(const char* name, const char* reason);

  void Refuse(const std::string& what);
  bool ok() const { return ok_; }
  domi::Status status() const { return ok_ ? domi::SUCCESS : domi::FAILED; }

 private:
  std::string name_;
  std::string origin_;
  Attributes attributes_;
  bool readable_ = false;
  bool ok_ = true;
};

// Makes `target` a call of a subgraph that ParseOpToGraphFn will put in its place; the parser
// finds that function again by `original_type`.
void BecomeSubgraph(const char* origin, uint32_t inputs, uint32_t outputs, ge::Operator* target);

}  // namespace pagedom

#endif  // PAGEDOM_ASCEND_ONNX_NODE_H_
