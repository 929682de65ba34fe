// Made-up JSON schemas, and a validator of our own for what they use of JSON Schema.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/model/config/strict_json.h"
#include "tests/fuzz/constraint_case.h"
#include "tests/fuzz/expression.h"

namespace tandem::fuzz {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostDepth = 3;
const char* const kNames[] = {"a", "b", "list", "a\"b", "", "\xc3\xa9"};

Json MakeValue(InputReader& reader, int depth) {
  switch (reader.Below(depth > 0 ? 8 : 6)) {
    case 0:
      return nullptr;
    case 1:
      return reader.Below(2) == 0;
    case 2:
      return static_cast<int>(reader.Byte()) - 128;
    case 3:
      return 0.25 * reader.Byte();
    case 4:
    case 5: {
      std::string text;
      for (int i = reader.Below(4); i > 0; --i) text += MakeCharacter(reader);
      return text;
    }
    case 6: {
      Json list = Json::array();
      for (int i = reader.Below(3); i > 0; --i) list.push_back(MakeValue(reader, depth - 1));
      return list;
    }
    default: {
      Json object = Json::object();
      for (int i = reader.Below(3); i > 0; --i) {
        object[kNames[reader.Below(std::size(kNames))]] = MakeValue(reader, depth - 1);
      }
      return object;
    }
  }
}

class Maker {
 public:
  explicit Maker(InputReader& reader) : reader_(reader) {}

  Json Make() {
    Json schema = MakeSchema(kMostDepth);
    if (uses_definitions_) {
      // Made one after the other: each may refer to both.
      for (const char* name : {"A", "B"}) schema["$defs"][name] = MakeSchema(kMostDepth - 1);
    }
    return schema;
  }

 private:
  Json MakeSchema(int depth) {
    switch (reader_.Below(depth > 0 ? 12 : 6)) {
      case 0:
        return MakeInteger();
      case 1:
      case 2:
        return MakeString();
      case 3:
        return {{"type", reader_.Below(2) == 0 ? "boolean" : "null"}};
      case 4:
        return MakeEnum();
      case 5:
        uses_definitions_ = true;
        return {{"$ref", reader_.Below(2) == 0 ? "#/$defs/A" : "#/$defs/B"}};
      case 6:
      case 7:
        return MakeArray(depth);
      case 8:
        return {{"anyOf", {MakeSchema(depth - 1), MakeSchema(depth - 1)}}};
      case 9:
        return MakeNumber();
      default:
        return MakeObject(depth);
    }
  }

  Json MakeInteger() {
    Json schema = {{"type", "integer"}};
    const int least = reader_.Byte() - 128;
    if (reader_.Below(2) == 0) schema[reader_.Below(2) == 0 ? "minimum" : "exclusiveMinimum"] = least;
    if (reader_.Below(2) == 0)
      schema[reader_.Below(2) == 0 ? "maximum" : "exclusiveMaximum"] = least + 2 + reader_.Byte();
    return schema;
  }

  Json MakeNumber() {
    Json schema = {{"type", "number"}};
    const double least = 0.5 * reader_.Byte() - 64;
    if (reader_.Below(2) == 0) schema["minimum"] = least;
    if (reader_.Below(2) == 0) schema["maximum"] = least + 1 + reader_.Byte();
    return schema;
  }

  Json MakeString() {
    Json schema = {{"type", "string"}};
    switch (reader_.Below(4)) {
      case 0:
        schema["minLength"] = reader_.Below(3);
        schema["maxLength"] = schema["minLength"].get<int>() + reader_.Below(4);
        break;
      case 1:
        schema["maxLength"] = reader_.Below(5);
        break;
      case 2:
        schema["pattern"] = absl::StrCat("^", PrintPattern(MakeExpression(reader_, 0, 2)), "$");
        break;
      default:
        break;
    }
    return schema;
  }

  Json MakeEnum() {
    Json values = Json::array();
    for (int i = 1 + reader_.Below(3); i > 0; --i) {
      Json value = MakeValue(reader_, 1);
      if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(std::move(value));
    }
    if (values.size() == 1) return {{"const", values[0]}};
    return {{"enum", values}};
  }

  Json MakeArray(int depth) {
    Json schema = {{"type", "array"}};
    if (reader_.Below(4) == 0) {
      for (int i = 1 + reader_.Below(2); i > 0; --i) schema["prefixItems"].push_back(MakeSchema(depth - 1));
    }
    schema["items"] = MakeSchema(depth - 1);
    if (reader_.Below(2) == 0) schema["minItems"] = reader_.Below(3);
    if (reader_.Below(2) == 0) schema["maxItems"] = 2 + reader_.Below(3);
    return schema;
  }

  Json MakeObject(int depth) {
    Json schema = {{"type", "object"}, {"properties", Json::object()}};
    for (int i = reader_.Below(4); i > 0; --i) {
      schema["properties"][kNames[reader_.Below(std::size(kNames))]] = MakeSchema(depth - 1);
    }
    Json required = Json::array();
    for (const auto& [name, member] : schema["properties"].items()) {
      if (reader_.Below(2) == 0) required.push_back(name);
    }
    const int more = reader_.Below(4);
    if (more == 0) schema["additionalProperties"] = MakeSchema(depth - 1);
    if (more > 1) schema["additionalProperties"] = false;
    if (more < 2 && reader_.Below(3) == 0) required.push_back("other");
    if (!required.empty()) schema["required"] = required;
    if (reader_.Below(5) == 0) schema["minProperties"] = reader_.Below(3);
    if (reader_.Below(5) == 0) schema["maxProperties"] = required.size() + reader_.Below(3);
    return schema;
  }

  InputReader& reader_;
  bool uses_definitions_ = false;
};

size_t NumCharacters(absl::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

// Reads JSON whose objects may have a name several times. The further members get names of their own: the
// name with a mark and a number behind it.
class ApartReader : public nlohmann::json_sax<Json> {
 public:
  static bool IsAgain(absl::string_view name) { return absl::StrContains(name, kMark); }
  static std::string Original(absl::string_view name) {
    return std::string(name.substr(0, name.find(kMark)));
  }

  const Json& value() const { return value_; }

  bool null() override { return Put(nullptr); }
  bool boolean(bool value) override { return Put(value); }
  bool number_integer(int64_t value) override { return Put(value); }
  bool number_unsigned(uint64_t value) override { return Put(value); }
  bool number_float(double value, const std::string&) override { return Put(value); }
  bool string(std::string& value) override { return Put(value); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return Open(Json::object()); }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_array() override { return Close(); }
  bool key(std::string& name) override {
    Json& object = open_.back();
    std::string apart = name;
    for (int i = 2; object.contains(apart); ++i) apart = absl::StrCat(name, kMark, i);
    object[apart] = nullptr;
    names_.push_back(std::move(apart));
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  // No output has it: it is no character of text.
  static constexpr absl::string_view kMark = "\x01\x02 again ";

  bool Put(Json value) {
    if (open_.empty()) {
      value_ = std::move(value);
    } else if (open_.back().is_array()) {
      open_.back().push_back(std::move(value));
    } else {
      open_.back()[names_.back()] = std::move(value);
      names_.pop_back();
    }
    return true;
  }
  bool Open(Json value) {
    open_.push_back(std::move(value));
    return true;
  }
  bool Close() {
    Json value = std::move(open_.back());
    open_.pop_back();
    return Put(std::move(value));
  }

  Json value_;
  std::vector<Json> open_;          // Objects and arrays that have not ended.
  std::vector<std::string> names_;  // Of members whose values have not ended.
};

// JSON Schema, draft 2020-12, as far as the above uses it.
class Validator {
 public:
  explicit Validator(Json root) : root_(std::move(root)) {}

  bool IsValid(const Json& value) const { return IsValid(root_, value); }

 private:
  bool IsValid(const Json& schema, const Json& value) const {
    if (schema.is_boolean()) return schema.get<bool>();
    // What would only be valid because it is valid is not.
    const std::pair<const Json*, const Json*> asked(&schema, &value);
    if (std::find(asked_.begin(), asked_.end(), asked) != asked_.end()) return false;
    asked_.push_back(asked);
    const bool valid = IsValidNow(schema, value);
    asked_.pop_back();
    return valid;
  }

  bool IsValidNow(const Json& schema, const Json& value) const {
    if (schema.contains("$ref")) {
      const std::string& target = schema["$ref"].get_ref<const std::string&>();
      if (!IsValid(root_.at(Json::json_pointer(target.substr(1))), value)) return false;
    }
    if (schema.contains("const") && !Equal(schema["const"], value)) return false;
    if (schema.contains("enum")) {
      const Json& values = schema["enum"];
      if (std::none_of(values.begin(), values.end(), [&](const Json& one) { return Equal(one, value); }))
        return false;
    }
    if (schema.contains("anyOf")) {
      const Json& branches = schema["anyOf"];
      if (std::none_of(branches.begin(), branches.end(),
                       [&](const Json& one) { return IsValid(one, value); })) {
        return false;
      }
    }
    if (schema.contains("type") && !IsOfType(schema["type"].get_ref<const std::string&>(), value))
      return false;
    return HasSize(schema, value) && HasParts(schema, value);
  }

  static bool Equal(const Json& a, const Json& b) {
    // Members have no order.
    return nlohmann::json::parse(a.dump()) == nlohmann::json::parse(b.dump());
  }

  static bool IsOfType(absl::string_view type, const Json& value) {
    if (type == "object") return value.is_object();
    if (type == "array") return value.is_array();
    if (type == "string") return value.is_string();
    if (type == "boolean") return value.is_boolean();
    if (type == "null") return value.is_null();
    if (type == "integer") return value.is_number() && std::floor(value.get<double>()) == value.get<double>();
    return value.is_number();
  }

  static bool Within(const Json& schema, const char* least, const char* most, double size) {
    return (!schema.contains(least) || size >= schema[least].get<double>()) &&
           (!schema.contains(most) || size <= schema[most].get<double>());
  }

  bool HasSize(const Json& schema, const Json& value) const {
    if (value.is_number()) {
      const double number = value.get<double>();
      return Within(schema, "minimum", "maximum", number) &&
             (!schema.contains("exclusiveMinimum") || number > schema["exclusiveMinimum"].get<double>()) &&
             (!schema.contains("exclusiveMaximum") || number < schema["exclusiveMaximum"].get<double>());
    }
    if (value.is_string()) {
      const std::string& text = value.get_ref<const std::string&>();
      return Within(schema, "minLength", "maxLength", static_cast<double>(NumCharacters(text))) &&
             (!schema.contains("pattern") ||
              PatternMatches(schema["pattern"].get_ref<const std::string&>(), text, /*whole=*/false));
    }
    const auto size = static_cast<double>(value.size());
    if (value.is_array()) return Within(schema, "minItems", "maxItems", size);
    if (!value.is_object()) return true;
    double names = 0.0;
    for (const auto& [name, member] : value.items()) names += ApartReader::IsAgain(name) ? 0.0 : 1.0;
    return Within(schema, "minProperties", "maxProperties", names);
  }

  bool HasParts(const Json& schema, const Json& value) const {
    if (value.is_array()) {
      const size_t num_first = schema.contains("prefixItems") ? schema["prefixItems"].size() : 0;
      for (size_t i = 0; i < value.size(); ++i) {
        if (i < num_first && !IsValid(schema["prefixItems"][i], value[i])) return false;
        if (i >= num_first && schema.contains("items") && !IsValid(schema["items"], value[i])) return false;
      }
      return true;
    }
    if (!value.is_object()) return true;
    if (schema.contains("required")) {
      const Json& required = schema["required"];
      if (std::any_of(required.begin(), required.end(), [&](const Json& name) {
            return !value.contains(name.get_ref<const std::string&>());
          })) {
        return false;
      }
    }
    const Json none = Json::object();
    const Json& members = schema.contains("properties") ? schema["properties"] : none;
    for (const auto& [name, member] : value.items()) {
      if (members.contains(ApartReader::Original(name)) && ApartReader::IsAgain(name)) return false;
      if (members.contains(name) && !IsValid(members[name], member)) return false;
      if (!members.contains(name) && schema.contains("additionalProperties") &&
          !IsValid(schema["additionalProperties"], member)) {
        return false;
      }
    }
    return true;
  }

  const Json root_;
  mutable std::vector<std::pair<const Json*, const Json*>> asked_;  // And not answered yet.
};

}  // namespace

ConstraintCase MakeSchemaCase(InputReader& reader) {
  const bool any_whitespace = reader.Below(4) == 0;
  const Json schema = Maker(reader).Make();
  const auto validator = std::make_shared<const Validator>(schema);
  return {.source = {.form = ConstraintSource::Form::kJsonSchema,
                     .text = schema.dump(),
                     .any_whitespace = any_whitespace},
          .matches = [validator](absl::string_view text) {
            // Free names may be equal (structured.md): all but the first get another one.
            ApartReader reader;
            if (!Json::sax_parse(text.begin(), text.end(), &reader)) return false;
            return ParseStrictJson(reader.value().dump(), "output").ok() &&
                   validator->IsValid(reader.value());
          }};
}

}  // namespace tandem::fuzz
