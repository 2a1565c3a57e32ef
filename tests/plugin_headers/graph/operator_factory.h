// Test headers of pagedom: operators by type name, from the table of prototypes.
#ifndef PAGEDOM_TEST_GRAPH_OPERATOR_FACTORY_H_
#define PAGEDOM_TEST_GRAPH_OPERATOR_FACTORY_H_

#include <string>

#include "graph/operator.h"

namespace ge {
namespace test {

// The type that a test takes away, as an older CANN lacks it.
inline std::string& MissingType() {
  static std::string type;
  return type;
}

}  // namespace test

class OperatorFactory {
 public:
  static Operator CreateOperator(const char_t* const operator_name,
                                 const char_t* const operator_type) {
    const auto found = test::Prototypes().find(operator_type);
    if (found == test::Prototypes().end() || test::MissingType() == operator_type) {
      return Operator();
    }
    Operator made(operator_name, operator_type);
    for (const std::string& input : found->second.inputs) {
      if (input.back() == '?') {
        made.node()->inputs.push_back(input.substr(0, input.size() - 1));
      } else if (input.back() != '*') {
        made.node()->inputs.push_back(input);
      }
    }
    made.node()->outputs = found->second.outputs;
    made.node()->prototype = &found->second;
    return made;
  }
};

}  // namespace ge

#endif  // PAGEDOM_TEST_GRAPH_OPERATOR_FACTORY_H_
