#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

// A value of JSON that keeps what schemas need: the order of members, and numbers as they were written.
struct JsonValue {
  enum class Type : uint8_t { kNull, kBoolean, kNumber, kString, kArray, kObject };

  struct Member;

  Type type = Type::kNull;
  bool boolean = false;
  std::string text;  // Of a string; of a number as it was written.
  std::vector<JsonValue> items;
  std::vector<Member> members;
  std::map<std::string, size_t, std::less<>> member_index;

  bool Is(Type wanted) const { return type == wanted; }
  bool IsBoolean(bool wanted) const { return type == Type::kBoolean && boolean == wanted; }
  // nullptr if it is no object or has no such member.
  const JsonValue* Find(absl::string_view name) const;

  static JsonValue OfType(Type type);
  static JsonValue OfBoolean(bool boolean);
  static JsonValue OfText(absl::string_view text);
  static JsonValue OfNumber(absl::string_view number);
};

// No std::pair, which wants to know all about its types before JsonValue is complete.
struct JsonValue::Member {
  std::string name;
  JsonValue value;
};

// As JSON Schema compares: 1 equals 1.0, and the order of members does not count.
bool AreEqual(const JsonValue& left, const JsonValue& right);

// Errors as of ParseStrictJson.
absl::StatusOr<JsonValue> ParseJsonValue(absl::string_view text, size_t max_depth);

// A string of JSON, quotes included: what JSON demands is escaped, in the short form where there is one.
std::string JsonString(absl::string_view text);

}  // namespace tandem
