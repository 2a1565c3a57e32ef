// The attributes of one ONNX node, as the ONNX parser hands them to a plugin.
//
// With ParseParamsByOperatorFn the source operator carries them all in one string attribute
// `attribute`, e.g. {"attribute":[{"name":"num_heads","type":2,"i":4},{"name":"scale","type":1,
// "f":"0.25"}]}. Three properties of that text decide how it must be read:
//
//   1. It is proto3: a field that has its default value is absent. {"name":"window","type":2} is
//      window = 0, and a node without attributes has no text at all.
//   2. A float is written with "%g": a *string* of six significant digits. Where those lose
//      something the graph carries the float's exact bits in an int attribute `<name>_bits`
//      (compiler/lower/annotate_heads.py); it wins over the text, if it agrees with it.
//   3. `type` is the number of AttributeProto.AttributeType: 1 float, 2 int, 3 string.
#ifndef PAGEDOM_ASCEND_ATTRIBUTE_JSON_H_
#define PAGEDOM_ASCEND_ATTRIBUTE_JSON_H_

#include <cstdint>
#include <string>
#include <vector>

#include "json.h"

namespace pagedom {

class Attributes {
 public:
  // Reads the text of attribute `attribute`; an empty text is a node without attributes.
  // Returns false with a sentence that names the attribute in `error`.
  bool Parse(const std::string& text, std::string* error);

  bool Has(const char* name) const { return Find(name) != nullptr; }

  // Each returns false with a sentence that names the attribute if it is absent or of another
  // type. Int also refuses what lies outside [least, most].
  bool Int(const char* name, int64_t least, int64_t most, int64_t* value,
           std::string* error) const;
  bool Float(const char* name, float* value, std::string* error) const;

 private:
  struct Entry {
    std::string name;
    int64_t type = 0;
    JsonValue fields;
  };

  const Entry* Find(const char* name) const;
  bool ExactFloat(const char* name, float rounded, float* value, std::string* error) const;

  std::vector<Entry> entries_;
};

}  // namespace pagedom

#endif  // PAGEDOM_ASCEND_ATTRIBUTE_JSON_H_
