// The subgraph that takes a node's place.
//
// GE operators are made through OperatorFactory by type name, not through the op:: classes of
// CANN's operator headers: those move between headers from release to release, and an operator
// that a release lacks becomes a message here instead of a compile error.
#ifndef PAGEDOM_ASCEND_SUBGRAPH_H_
#define PAGEDOM_ASCEND_SUBGRAPH_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "graph/operator.h"
#include "graph/tensor.h"
#include "register/register.h"

namespace pagedom {

class Subgraph {
 public:
  // `node` is what ParseOpToGraphFn was given: its name prefixes the names of all operators here,
  // and its attributes are what the parsing function left there.
  Subgraph(const ge::Operator& node, const char* origin);

  // An int attribute of the node; refuses (once, as all others) if it is absent.
  int64_t Int(const char* name);
  float Float(const char* name);

  // The node's input `index`; called once an index, in order.
  ge::Operator Input(const char* label);
  // An operator by GE type; refuses if this CANN does not know the type.
  ge::Operator Make(const char* label, const char* type);
  ge::Operator Constant(const char* label, const std::vector<int64_t>& values);
  ge::Operator Constant(const char* label, const ge::TensorDesc& desc, const uint8_t* data,
                        size_t size);
  // `x` seen with other dims; one of them may be -1.
  ge::Operator Reshape(const char* label, const ge::Operator& x, uint32_t output,
                       const std::vector<int64_t>& dims);

  // Fills `graph`: output i of the node is output `second` of operator `first`.
  domi::Status Finish(const std::vector<std::pair<ge::Operator, size_t>>& outputs,
                      ge::Graph* graph) const;

 private:
  std::string name_;
  std::string origin_;
  const ge::Operator& node_;
  std::vector<ge::Operator> inputs_;
  bool ok_ = true;
};

}  // namespace pagedom

#endif  // PAGEDOM_ASCEND_SUBGRAPH_H_
