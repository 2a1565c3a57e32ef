// Test headers of pagedom: a string that crosses library boundaries.
#ifndef PAGEDOM_TEST_GRAPH_ASCEND_STRING_H_
#define PAGEDOM_TEST_GRAPH_ASCEND_STRING_H_

#include <string>

#include "graph/types.h"

namespace ge {

class AscendString {
 public:
  AscendString() = default;
  AscendString(const char_t* const text) : set_(text != nullptr), text_(set_ ? text : "") {}
  const char_t* GetString() const { return set_ ? text_.c_str() : nullptr; }

 private:
  bool set_ = false;
  std::string text_;
};

}  // namespace ge

#endif  // PAGEDOM_TEST_GRAPH_ASCEND_STRING_H_
