// Test headers of pagedom: an operator whose inputs, links and attributes a test can read.
#ifndef PAGEDOM_TEST_GRAPH_OPERATOR_H_
#define PAGEDOM_TEST_GRAPH_OPERATOR_H_

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "graph/ascend_string.h"
#include "graph/prototypes.h"
#include "graph/tensor.h"
#include "graph/types.h"

namespace ge {
namespace test {

struct Attr {
  char type = 'i';
  int64_t i = 0;
  float f = 0.0F;
  std::string s;
  Tensor t;
};

struct Node {
  std::string name;
  std::string type;
  std::vector<std::string> inputs;   // by index
  std::vector<std::string> outputs;
  std::map<std::string, std::pair<std::shared_ptr<Node>, uint32_t>> links;
  std::map<std::string, Attr> attrs;
  const Prototype* prototype = nullptr;
};

// What GE would have ignored, with a line in its log.
inline std::vector<std::string>& Problems() {
  static std::vector<std::string> problems;
  return problems;
}

inline void Problem(const Node& node, const std::string& what) {
  Problems().push_back(node.name + " (" + node.type + "): " + what);
}

}  // namespace test

class Operator {
 public:
  Operator() = default;
  Operator(const char_t* name, const char_t* type) : node_(std::make_shared<test::Node>()) {
    node_->name = name;
    node_->type = type;
  }

  bool IsEmpty() const { return node_ == nullptr; }

  graphStatus GetName(AscendString& name) const {
    if (IsEmpty()) {
      return GRAPH_FAILED;
    }
    name = AscendString(node_->name.c_str());
    return GRAPH_SUCCESS;
  }

  Operator& SetInput(const char_t* dst_name, const Operator& src_oprt) {
    return SetInput(dst_name, src_oprt, 0U);
  }

  Operator& SetInput(const char_t* dst_name, const Operator& src_oprt, uint32_t index) {
    const auto& known = node_->inputs;
    if (std::find(known.begin(), known.end(), dst_name) == known.end()) {
      test::Problem(*node_, std::string("no input ") + dst_name);
    } else if (src_oprt.IsEmpty() || index >= src_oprt.node_->outputs.size()) {
      test::Problem(*node_, std::string("nothing to feed input ") + dst_name);
    } else {
      node_->links[dst_name] = {src_oprt.node_, index};
    }
    return *this;
  }

  Operator& SetInput(const char_t* dst_name, uint32_t dst_index, const Operator& src_oprt) {
    return SetInput((dst_name + std::to_string(dst_index)).c_str(), src_oprt, 0U);
  }

  Operator& SetAttr(const char_t* name, int64_t attr_value) {
    test::Attr attr;
    attr.i = attr_value;
    return Put(name, attr);
  }

  Operator& SetAttr(const char_t* name, float32_t attr_value) {
    test::Attr attr;
    attr.type = 'f';
    attr.f = attr_value;
    return Put(name, attr);
  }

  Operator& SetAttr(const char_t* name, const char_t* attr_value) {
    test::Attr attr;
    attr.type = 's';
    attr.s = attr_value;
    return Put(name, attr);
  }

  Operator& SetAttr(const char_t* name, const Tensor& attr_value) {
    test::Attr attr;
    attr.type = 't';
    attr.t = attr_value;
    return Put(name, attr);
  }

  graphStatus GetAttr(const char_t* name, int64_t& attr_value) const {
    const test::Attr* attr = Get(name, 'i');
    attr_value = attr == nullptr ? attr_value : attr->i;
    return attr == nullptr ? GRAPH_FAILED : GRAPH_SUCCESS;
  }

  graphStatus GetAttr(const char_t* name, float32_t& attr_value) const {
    const test::Attr* attr = Get(name, 'f');
    attr_value = attr == nullptr ? attr_value : attr->f;
    return attr == nullptr ? GRAPH_FAILED : GRAPH_SUCCESS;
  }

  graphStatus GetAttr(const char_t* name, AscendString& attr_value) const {
    const test::Attr* attr = Get(name, 's');
    if (attr == nullptr) {
      return GRAPH_FAILED;
    }
    attr_value = AscendString(attr->s.c_str());
    return GRAPH_SUCCESS;
  }

  graphStatus UpdateOutputDesc(const char_t* name, const TensorDesc& tensor_desc) {
    (void)tensor_desc;
    const auto& known = node_->outputs;
    const bool has = std::find(known.begin(), known.end(), name) != known.end();
    return has ? GRAPH_SUCCESS : GRAPH_FAILED;
  }

  void DynamicInputRegister(const char_t* name, const uint32_t num, bool is_push_back = true) {
    DynamicInputRegisterByIndex(name, num, is_push_back ? node_->inputs.size() : 0U);
  }

  void DynamicInputRegisterByIndex(const char_t* name, const uint32_t num, size_t index) {
    for (uint32_t i = 0; i < num; ++i) {
      const auto place = node_->inputs.begin() + static_cast<std::ptrdiff_t>(index + i);
      node_->inputs.insert(place, name + std::to_string(i));
    }
  }

  void DynamicOutputRegister(const char_t* name, const uint32_t num, bool is_push_back = true) {
    (void)is_push_back;
    for (uint32_t i = 0; i < num; ++i) {
      node_->outputs.push_back(name + std::to_string(i));
    }
  }

  const std::shared_ptr<test::Node>& node() const { return node_; }

 private:
  Operator& Put(const std::string& name, const test::Attr& attr) {
    if (node_->prototype != nullptr) {
      const auto& known = node_->prototype->attrs;
      if (std::find(known.begin(), known.end(), name + ":" + attr.type) == known.end()) {
        test::Problem(*node_, "no attribute " + name + " of type " + attr.type);
      }
    }
    node_->attrs[name] = attr;
    return *this;
  }

  const test::Attr* Get(const char_t* name, char type) const {
    if (IsEmpty()) {
      return nullptr;
    }
    const auto found = node_->attrs.find(name);
    return found == node_->attrs.end() || found->second.type != type ? nullptr : &found->second;
  }

  std::shared_ptr<test::Node> node_;
};

}  // namespace ge

#endif  // PAGEDOM_TEST_GRAPH_OPERATOR_H_
