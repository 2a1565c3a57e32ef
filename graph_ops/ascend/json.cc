#include "json.h"

#include <cstddef>
#include <cstdint>

namespace pagedom {
namespace {

constexpr int kMaxDepth = 32;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

void AppendUtf8(uint32_t code, std::string* out) {
  const auto put = [out](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code < 0x80U) {
    put(code);
  } else if (code < 0x800U) {
    put(0xC0U | (code >> 6U));
    put(0x80U | (code & 0x3FU));
  } else if (code < 0x10000U) {
    put(0xE0U | (code >> 12U));
    put(0x80U | ((code >> 6U) & 0x3FU));
    put(0x80U | (code & 0x3FU));
  } else {
    put(0xF0U | (code >> 18U));
    put(0x80U | ((code >> 12U) & 0x3FU));
    put(0x80U | ((code >> 6U) & 0x3FU));
    put(0x80U | (code & 0x3FU));
  }
}

class Reader {
 public:
  Reader(const std::string& text, std::string* error) : text_(text), error_(error) {}

  bool ReadAll(JsonValue* value) {
    if (!Read(value, 0)) {
      return false;
    }
    SkipSpace();
    return place_ == text_.size() || Fail("text after the value");
  }

 private:
  bool Fail(const char* what) {
    *error_ = std::string(what) + " at byte " + std::to_string(place_);
    return false;
  }

  char Peek() const { return place_ < text_.size() ? text_[place_] : '\0'; }

  bool Take(char wanted) {
    if (place_ < text_.size() && text_[place_] == wanted) {
      ++place_;
      return true;
    }
    return false;
  }

  bool TakeWord(const char* word) {
    const std::string wanted(word);
    if (text_.compare(place_, wanted.size(), wanted) != 0) {
      return Fail("unknown word");
    }
    place_ += wanted.size();
    return true;
  }

  void SkipSpace() {
    while (Peek() == ' ' || Peek() == '\t' || Peek() == '\n' || Peek() == '\r') {
      ++place_;
    }
  }

  bool Read(JsonValue* value, int depth) {
    if (depth > kMaxDepth) {
      return Fail("too deeply nested");
    }
    SkipSpace();
    switch (Peek()) {
      case '{':
        value->kind = JsonValue::Kind::kObject;
        return ReadObject(value, depth);
      case '[':
        value->kind = JsonValue::Kind::kArray;
        return ReadArray(value, depth);
      case '"':
        value->kind = JsonValue::Kind::kString;
        return ReadString(&value->text);
      case 't':
        value->kind = JsonValue::Kind::kTrue;
        return TakeWord("true");
      case 'f':
        value->kind = JsonValue::Kind::kFalse;
        return TakeWord("false");
      case 'n':
        value->kind = JsonValue::Kind::kNull;
        return TakeWord("null");
      default:
        value->kind = JsonValue::Kind::kNumber;
        return ReadNumber(&value->text);
    }
  }

  bool ReadObject(JsonValue* value, int depth) {
    Take('{');
    SkipSpace();
    if (Take('}')) {
      return true;
    }
    do {
      SkipSpace();
      std::string name;
      if (Peek() != '"') {
        return Fail("expected a name in quotes");
      }
      if (!ReadString(&name)) {
        return false;
      }
      if (value->Find(name.c_str()) != nullptr) {
        return Fail("name given twice");
      }
      SkipSpace();
      if (!Take(':')) {
        return Fail("expected ':'");
      }
      value->members.emplace_back(name, JsonValue());
      if (!Read(&value->members.back().second, depth + 1)) {
        return false;
      }
      SkipSpace();
    } while (Take(','));
    return Take('}') || Fail("expected ',' or '}'");
  }

  bool ReadArray(JsonValue* value, int depth) {
    Take('[');
    SkipSpace();
    if (Take(']')) {
      return true;
    }
    do {
      value->items.emplace_back();
      if (!Read(&value->items.back(), depth + 1)) {
        return false;
      }
      SkipSpace();
    } while (Take(','));
    return Take(']') || Fail("expected ',' or ']'");
  }

  bool ReadDigits() {
    if (!IsDigit(Peek())) {
      return Fail("expected a digit");
    }
    while (IsDigit(Peek())) {
      ++place_;
    }
    return true;
  }

  bool ReadNumber(std::string* out) {
    const size_t start = place_;
    Take('-');
    if (Take('0')) {
      if (IsDigit(Peek())) {
        return Fail("a number starts with 0");
      }
    } else if (!ReadDigits()) {
      return false;
    }
    if (Take('.') && !ReadDigits()) {
      return false;
    }
    if (Take('e') || Take('E')) {
      if (!Take('+')) {
        Take('-');
      }
      if (!ReadDigits()) {
        return false;
      }
    }
    *out = text_.substr(start, place_ - start);
    return true;
  }

  bool ReadHex(uint32_t* code) {
    *code = 0;
    for (int i = 0; i < 4; ++i) {
      const char c = Peek();
      uint32_t digit = 0;
      if (IsDigit(c)) {
        digit = static_cast<uint32_t>(c - '0');
      } else if (c >= 'a' && c <= 'f') {
        digit = static_cast<uint32_t>(c - 'a') + 10U;
      } else if (c >= 'A' && c <= 'F') {
        digit = static_cast<uint32_t>(c - 'A') + 10U;
      } else {
        return Fail("expected four hexadecimal digits");
      }
      *code = *code * 16U + digit;
      ++place_;
    }
    return true;
  }

  bool ReadUnicode(std::string* out) {
    uint32_t code = 0;
    if (!ReadHex(&code)) {
      return false;
    }
    if (code >= 0xDC00U && code < 0xE000U) {
      return Fail("second half of a surrogate pair alone");
    }
    if (code >= 0xD800U && code < 0xDC00U) {
      uint32_t low = 0;
      if (!Take('\\') || !Take('u')) {
        return Fail("first half of a surrogate pair alone");
      }
      if (!ReadHex(&low)) {
        return false;
      }
      if (low < 0xDC00U || low >= 0xE000U) {
        return Fail("first half of a surrogate pair alone");
      }
      code = 0x10000U + ((code - 0xD800U) << 10U) + (low - 0xDC00U);
    }
    AppendUtf8(code, out);
    return true;
  }

  bool ReadEscape(std::string* out) {
    static const char kNames[] = "\"\\/bfnrt";
    static const char kValues[] = "\"\\/\b\f\n\r\t";
    if (Take('u')) {
      return ReadUnicode(out);
    }
    for (size_t i = 0; kNames[i] != '\0'; ++i) {
      if (Take(kNames[i])) {
        out->push_back(kValues[i]);
        return true;
      }
    }
    return Fail("unknown escape");
  }

  bool ReadString(std::string* out) {
    Take('"');
    while (place_ < text_.size()) {
      const char c = text_[place_];
      if (static_cast<unsigned char>(c) < 0x20U) {
        return Fail("control character in a string");
      }
      ++place_;
      if (c == '"') {
        return true;
      }
      if (c != '\\') {
        out->push_back(c);
      } else if (!ReadEscape(out)) {
        return false;
      }
    }
    return Fail("string without an end");
  }

  const std::string& text_;
  std::string* error_;
  size_t place_ = 0;
};

}  // namespace

const JsonValue* JsonValue::Find(const char* name) const {
  for (const auto& member : members) {
    if (member.first == name) {
      return &member.second;
    }
  }
  return nullptr;
}

bool ParseJson(const std::string& text, JsonValue* value, std::string* error) {
  *value = JsonValue();
  return Reader(text, error).ReadAll(value);
}

}  // namespace pagedom
