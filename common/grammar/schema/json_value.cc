#include "common/grammar/schema/json_value.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/grammar/schema/numbers.h"
#include "common/model/config/strict_json.h"

namespace tandem {
namespace {

using Type = JsonValue::Type;

// Builds values from the parser's events, of a text that ParseStrictJson takes.
class ValueBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  JsonValue& root() { return root_; }

  bool null() override { return Add(JsonValue()); }
  bool boolean(bool value) override { return Add(JsonValue::OfBoolean(value)); }
  bool number_integer(number_integer_t value) override {
    return Add(JsonValue::OfNumber(absl::StrCat(value)));
  }
  bool number_unsigned(number_unsigned_t value) override {
    return Add(JsonValue::OfNumber(absl::StrCat(value)));
  }
  bool number_float(number_float_t, const string_t& text) override { return Add(JsonValue::OfNumber(text)); }
  bool string(string_t& value) override { return Add(JsonValue::OfText(value)); }
  bool binary(binary_t&) override { return false; }

  bool start_object(size_t) override { return Open(JsonValue::OfType(Type::kObject)); }
  bool start_array(size_t) override { return Open(JsonValue::OfType(Type::kArray)); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& name) override {
    name_ = name;
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  bool Add(JsonValue value) { return Put(std::move(value)) != nullptr; }
  bool Open(JsonValue value) {
    open_.push_back(Put(std::move(value)));
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  JsonValue* Put(JsonValue value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    // Its address is stable while it is open: what holds it grows only after that.
    JsonValue& parent = *open_.back();
    if (parent.Is(Type::kArray)) return &parent.items.emplace_back(std::move(value));
    parent.member_index.emplace(name_, parent.members.size());
    parent.members.push_back({.name = name_, .value = std::move(value)});
    return &parent.members.back().value;
  }

  JsonValue root_;
  std::vector<JsonValue*> open_;
  std::string name_;
};

}  // namespace

const JsonValue* JsonValue::Find(absl::string_view name) const {
  const auto found = member_index.find(name);
  return found == member_index.end() ? nullptr : &members[found->second].value;
}

JsonValue JsonValue::OfType(Type type) {
  JsonValue value;
  value.type = type;
  return value;
}

JsonValue JsonValue::OfBoolean(bool boolean) {
  JsonValue value = OfType(Type::kBoolean);
  value.boolean = boolean;
  return value;
}

JsonValue JsonValue::OfText(absl::string_view text) {
  JsonValue value = OfType(Type::kString);
  value.text = std::string(text);
  return value;
}

JsonValue JsonValue::OfNumber(absl::string_view number) {
  JsonValue value = OfType(Type::kNumber);
  value.text = std::string(number);
  return value;
}

bool AreEqual(const JsonValue& left, const JsonValue& right) {
  if (left.type != right.type) return false;
  switch (left.type) {
    case Type::kNull:
      return true;
    case Type::kBoolean:
      return left.boolean == right.boolean;
    case Type::kNumber: {
      const absl::StatusOr<std::string> one = PlainDecimal(left.text);
      const absl::StatusOr<std::string> two = PlainDecimal(right.text);
      return one.ok() && two.ok() ? *one == *two : left.text == right.text;
    }
    case Type::kString:
      return left.text == right.text;
    case Type::kArray:
      return std::equal(left.items.begin(), left.items.end(), right.items.begin(), right.items.end(),
                        AreEqual);
    case Type::kObject:
      break;
  }
  return left.members.size() == right.members.size() &&
         std::all_of(left.members.begin(), left.members.end(), [&](const JsonValue::Member& member) {
           const JsonValue* const other = right.Find(member.name);
           return other != nullptr && AreEqual(member.value, *other);
         });
}

absl::StatusOr<JsonValue> ParseJsonValue(absl::string_view text, size_t max_depth) {
  TANDEM_RETURN_IF_ERROR(ParseStrictJson(text, "schema", 0, {.max_depth = max_depth}).status());
  ValueBuilder builder;
  if (!nlohmann::json::sax_parse(text.data(), text.data() + text.size(), &builder)) {
    return absl::InternalError("a JSON text is read in two ways");
  }
  return std::move(builder.root());
}

std::string JsonString(absl::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
      case '\\':
        quoted.push_back('\\');
        quoted.push_back(c);
        break;
      case '\b':
        quoted += "\\b";
        break;
      case '\f':
        quoted += "\\f";
        break;
      case '\n':
        quoted += "\\n";
        break;
      case '\r':
        quoted += "\\r";
        break;
      case '\t':
        quoted += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          absl::StrAppend(&quoted, "\\u00", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
        } else {
          quoted.push_back(c);
        }
    }
  }
  quoted.push_back('"');
  return quoted;
}

}  // namespace tandem
