// A strict reader of JSON (RFC 8259), small enough to have no dependency.
//
// The ONNX parser hands a node's attributes over as JSON text; a plugin cannot count on a JSON
// library in the user's CANN. Errors are returned, never thrown: the parser that loads this
// library is built without our exceptions in mind.
#ifndef PAGEDOM_ASCEND_JSON_H_
#define PAGEDOM_ASCEND_JSON_H_

#include <string>
#include <utility>
#include <vector>

namespace pagedom {

struct JsonValue {
  enum class Kind { kNull, kFalse, kTrue, kNumber, kString, kArray, kObject };

  Kind kind = Kind::kNull;
  std::string text;                                         // string: decoded; number: as written
  std::vector<JsonValue> items;                             // array
  std::vector<std::pair<std::string, JsonValue>> members;   // object, in the order of the text

  // Member `name` of an object, or nullptr.
  const JsonValue* Find(const char* name) const;
};

// Reads `text` (UTF-8) as one JSON value. Returns false, and says where and why in `error`, for
// anything that is not JSON: trailing text, duplicate names, control characters in strings,
// nesting deeper than 32.
bool ParseJson(const std::string& text, JsonValue* value, std::string* error);

}  // namespace pagedom

#endif  // PAGEDOM_ASCEND_JSON_H_
