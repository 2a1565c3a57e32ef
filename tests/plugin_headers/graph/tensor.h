// Test headers of pagedom: shapes, descriptors and constant data.
#ifndef PAGEDOM_TEST_GRAPH_TENSOR_H_
#define PAGEDOM_TEST_GRAPH_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "graph/types.h"

namespace ge {

class Shape {
 public:
  Shape() = default;
  explicit Shape(const std::vector<int64_t>& dims) : dims_(dims) {}
  const std::vector<int64_t>& dims() const { return dims_; }

 private:
  std::vector<int64_t> dims_;
};

class TensorDesc {
 public:
  TensorDesc() = default;
  explicit TensorDesc(Shape shape, Format format = FORMAT_ND, DataType dt = DT_FLOAT)
      : shape_(shape), format_(format), dtype_(dt) {}
  const Shape& shape() const { return shape_; }
  Format format() const { return format_; }
  DataType dtype() const { return dtype_; }

 private:
  Shape shape_;
  Format format_ = FORMAT_ND;
  DataType dtype_ = DT_FLOAT;
};

class Tensor {
 public:
  Tensor() = default;
  Tensor(const TensorDesc& tensor_desc, const uint8_t* data, size_t size)
      : desc_(tensor_desc), data_(data, data + size) {}
  const TensorDesc& desc() const { return desc_; }
  const std::vector<uint8_t>& data() const { return data_; }

 private:
  TensorDesc desc_;
  std::vector<uint8_t> data_;
};

}  // namespace ge

#endif  // PAGEDOM_TEST_GRAPH_TENSOR_H_
