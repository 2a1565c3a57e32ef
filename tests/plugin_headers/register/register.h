// Test headers of pagedom: registration of a plugin, kept in a list that a test can read.
#ifndef PAGEDOM_TEST_REGISTER_REGISTER_H_
#define PAGEDOM_TEST_REGISTER_REGISTER_H_

#include <functional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/operator.h"

namespace domi {

using Status = uint32_t;
constexpr Status SUCCESS = 0U;
constexpr Status FAILED = 0xFFFFFFFFU;

enum FrameworkType { CAFFE = 0, MINDSPORE = 1, TENSORFLOW = 3, ANDROID_NN = 4, ONNX = 5 };

using ParseParamByOpFunc = std::function<Status(const ge::Operator&, ge::Operator&)>;
using ParseOpToGraphFunc = std::function<Status(const ge::Operator&, ge::Graph&)>;

class OpRegistrationData {
 public:
  OpRegistrationData(const char* om_optype) : om_type(om_optype) {}

  OpRegistrationData& FrameworkType(const domi::FrameworkType& fmk_type) {
    framework = fmk_type;
    return *this;
  }
  OpRegistrationData& OriginOpType(const char* ori_op_type) {
    origin_type = ori_op_type;
    return *this;
  }
  OpRegistrationData& ParseParamsByOperatorFn(const ParseParamByOpFunc& parse_param_by_op_fn) {
    parse = parse_param_by_op_fn;
    return *this;
  }
  OpRegistrationData& ParseOpToGraphFn(const ParseOpToGraphFunc& parse_op_to_graph_fn) {
    expand = parse_op_to_graph_fn;
    return *this;
  }
  OpRegistrationData& ImplyType(const domi::ImplyType& imply_type) {
    imply = imply_type;
    return *this;
  }

  std::string om_type;
  std::string origin_type;
  domi::FrameworkType framework = CAFFE;
  domi::ImplyType imply = domi::ImplyType::BUILDIN;
  ParseParamByOpFunc parse;
  ParseOpToGraphFunc expand;
};

namespace test {

inline std::vector<OpRegistrationData>& Registry() {
  static std::vector<OpRegistrationData> registry;
  return registry;
}

}  // namespace test

class OpReceiver {
 public:
  OpReceiver(OpRegistrationData& reg_data) { test::Registry().push_back(reg_data); }
};

}  // namespace domi

// The macro's user stands in namespace domi, as with CANN's own.
#define PAGEDOM_TEST_JOIN_(a, b) a##b
#define PAGEDOM_TEST_JOIN(a, b) PAGEDOM_TEST_JOIN_(a, b)
#define REGISTER_CUSTOM_OP(name)                                       \
  static OpReceiver PAGEDOM_TEST_JOIN(pagedom_test_op_, __COUNTER__)   \
      __attribute__((unused)) = OpRegistrationData(name)

#endif  // PAGEDOM_TEST_REGISTER_REGISTER_H_
