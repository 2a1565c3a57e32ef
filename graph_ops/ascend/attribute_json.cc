#include "attribute_json.h"

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace pagedom {
namespace {

constexpr int64_t kFloatType = 1;
constexpr int64_t kIntType = 2;
constexpr int64_t kMostBits = 0xFFFFFFFFLL;
constexpr float kPrintedError = 1e-5F;  // of six significant digits: half a unit is 5e-6

const char* TypeName(int64_t type) {
  static const char* const kNames[] = {"undefined", "float",   "int",     "string",
                                       "tensor",    "graph",   "floats",  "ints",
                                       "strings",   "tensors", "graphs",  "sparse tensor"};
  constexpr int64_t kCount = sizeof(kNames) / sizeof(kNames[0]);
  return type >= 0 && type < kCount ? kNames[type] : "unknown";
}

std::string Quoted(const char* name) { return std::string("attribute '") + name + "'"; }

bool ToInt64(const JsonValue& value, int64_t* out) {
  if (value.kind != JsonValue::Kind::kNumber ||
      value.text.find_first_of(".eE") != std::string::npos) {
    return false;
  }
  errno = 0;
  *out = std::strtoll(value.text.c_str(), nullptr, 10);
  return errno == 0;
}

// A float is a string ("%g"), or a number where the parser's buffer was too small for it.
bool ToFloat(const JsonValue& value, float* out) {
  const bool written = value.kind == JsonValue::Kind::kString ||
                       value.kind == JsonValue::Kind::kNumber;
  if (!written || value.text.empty()) {
    return false;
  }
  char* end = nullptr;
  *out = std::strtof(value.text.c_str(), &end);
  return *end == '\0' && std::isfinite(*out);
}

}  // namespace

bool Attributes::Parse(const std::string& text, std::string* error) {
  entries_.clear();
  if (text.empty()) {
    return true;
  }
  JsonValue root;
  std::string problem;
  if (!ParseJson(text, &root, &problem)) {
    *error = "the attribute text of the ONNX parser is not JSON: " + problem;
    return false;
  }
  const JsonValue* list = root.Find("attribute");
  if (list == nullptr || list->kind != JsonValue::Kind::kArray) {
    *error = "the attribute text of the ONNX parser has no list named 'attribute'";
    return false;
  }
  for (const JsonValue& item : list->items) {
    const JsonValue* name = item.Find("name");
    const JsonValue* type = item.Find("type");
    Entry entry;
    if (name == nullptr || name->kind != JsonValue::Kind::kString || name->text.empty()) {
      *error = "attribute " + std::to_string(entries_.size()) + " of the node has no name";
      return false;
    }
    entry.name = name->text;
    if (type != nullptr && !ToInt64(*type, &entry.type)) {
      *error = Quoted(name->text.c_str()) + " has a type that is not a number";
      return false;
    }
    if (Has(name->text.c_str())) {
      *error = Quoted(name->text.c_str()) + " is given twice";
      return false;
    }
    entry.fields = item;
    entries_.push_back(entry);
  }
  return true;
}

const Attributes::Entry* Attributes::Find(const char* name) const {
  for (const Entry& entry : entries_) {
    if (entry.name == name) {
      return &entry;
    }
  }
  return nullptr;
}

bool Attributes::Int(const char* name, int64_t least, int64_t most, int64_t* value,
                     std::string* error) const {
  const Entry* entry = Find(name);
  if (entry == nullptr) {
    *error = Quoted(name) + " is missing";
    return false;
  }
  if (entry->type != kIntType) {
    *error = Quoted(name) + " is of type " + TypeName(entry->type) + ", must be int";
    return false;
  }
  const JsonValue* field = entry->fields.Find("i");
  *value = 0;  // proto3: an absent field is 0
  if (field != nullptr && !ToInt64(*field, value)) {
    *error = Quoted(name) + " is '" + field->text + "', must be a whole number of 64 bits";
    return false;
  }
  if (*value < least || *value > most) {
    *error = Quoted(name) + " is " + std::to_string(*value) + ", must be in " +
             std::to_string(least) + " .. " + std::to_string(most);
    return false;
  }
  return true;
}

bool Attributes::Float(const char* name, float* value, std::string* error) const {
  const Entry* entry = Find(name);
  if (entry == nullptr) {
    *error = Quoted(name) + " is missing";
    return false;
  }
  if (entry->type != kFloatType) {
    *error = Quoted(name) + " is of type " + TypeName(entry->type) + ", must be float";
    return false;
  }
  const JsonValue* field = entry->fields.Find("f");
  float rounded = 0.0F;
  if (field != nullptr && !ToFloat(*field, &rounded)) {
    *error = Quoted(name) + " is '" + field->text + "', must be a finite number";
    return false;
  }
  return ExactFloat(name, rounded, value, error);
}

bool Attributes::ExactFloat(const char* name, float rounded, float* value,
                            std::string* error) const {
  const std::string exact_name = std::string(name) + "_bits";
  *value = rounded;
  if (!Has(exact_name.c_str())) {
    return true;
  }
  int64_t bits = 0;
  if (!Int(exact_name.c_str(), 0, kMostBits, &bits, error)) {
    return false;
  }
  const auto pattern = static_cast<uint32_t>(bits);
  float exact = 0.0F;
  std::memcpy(&exact, &pattern, sizeof(exact));
  if (!(std::fabs(exact - rounded) <= kPrintedError * std::fabs(exact))) {
    *error = Quoted(name) + " is " + std::to_string(rounded) + " but '" + exact_name +
             "' holds the bits of " + std::to_string(exact) + ": both must be one number";
    return false;
  }
  *value = exact;
  return true;
}

}  // namespace pagedom
