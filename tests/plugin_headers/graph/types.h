// Test headers of pagedom: enumerations with the numbers that CANN gives them.
#ifndef PAGEDOM_TEST_GRAPH_TYPES_H_
#define PAGEDOM_TEST_GRAPH_TYPES_H_

#include <cstdint>

namespace ge {

using char_t = char;
using float32_t = float;
using graphStatus = uint32_t;
constexpr graphStatus GRAPH_SUCCESS = 0U;
constexpr graphStatus GRAPH_FAILED = 0xFFFFFFFFU;

enum Format { FORMAT_NCHW = 0, FORMAT_ND = 2 };

enum DataType {
  DT_FLOAT = 0,
  DT_FLOAT16 = 1,
  DT_INT8 = 2,
  DT_INT32 = 3,
  DT_UINT8 = 4,
  DT_INT64 = 9,
  DT_BOOL = 12,
  DT_BF16 = 27
};

}  // namespace ge

namespace domi {

enum class ImplyType : unsigned int { BUILDIN = 0, TVM = 1, CUSTOM = 2 };

}  // namespace domi

#endif  // PAGEDOM_TEST_GRAPH_TYPES_H_
