// Test headers of pagedom: what a subgraph is made of.
#ifndef PAGEDOM_TEST_GRAPH_GRAPH_H_
#define PAGEDOM_TEST_GRAPH_GRAPH_H_

#include <cstddef>
#include <utility>
#include <vector>

#include "graph/operator.h"

namespace ge {

class Graph {
 public:
  explicit Graph(const char_t* name) { (void)name; }

  Graph& SetInputs(const std::vector<Operator>& inputs) {
    inputs_ = inputs;
    return *this;
  }

  Graph& SetOutputs(const std::vector<std::pair<Operator, std::vector<size_t>>>& output_indexs) {
    outputs_ = output_indexs;
    return *this;
  }

  const std::vector<Operator>& inputs() const { return inputs_; }
  const std::vector<std::pair<Operator, std::vector<size_t>>>& outputs() const { return outputs_; }

 private:
  std::vector<Operator> inputs_;
  std::vector<std::pair<Operator, std::vector<size_t>>> outputs_;
};

}  // namespace ge

#endif  // PAGEDOM_TEST_GRAPH_GRAPH_H_
