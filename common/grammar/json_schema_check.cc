#include "common/grammar/json_schema_check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"
#include "common/model/config/strict_json.h"

namespace tandem {
namespace {

using nlohmann::json;

// They say nothing of what is valid.
constexpr absl::string_view kAnnotations[] = {
    "$comment",         "$defs",    "$id",         "$schema",    "contentEncoding",
    "contentMediaType", "default",  "definitions", "deprecated", "description",
    "examples",         "readOnly", "title",       "writeOnly"};
constexpr absl::string_view kTypes[] = {"array", "boolean", "integer", "null", "number", "object", "string"};

// Which types a keyword belongs to.
struct TypedKeyword {
  absl::string_view name;
  std::array<absl::string_view, 2> types;
};
constexpr TypedKeyword kTypedKeywords[] = {
    {"minimum", {"integer", "number"}},
    {"maximum", {"integer", "number"}},
    {"exclusiveMinimum", {"integer", "number"}},
    {"exclusiveMaximum", {"integer", "number"}},
    {"multipleOf", {"integer"}},
    {"minLength", {"string"}},
    {"maxLength", {"string"}},
    {"pattern", {"string"}},
    {"format", {"string"}},
    {"items", {"array"}},
    {"prefixItems", {"array"}},
    {"unevaluatedItems", {"array"}},
    {"minItems", {"array"}},
    {"maxItems", {"array"}},
    {"properties", {"object"}},
    {"required", {"object"}},
    {"additionalProperties", {"object"}},
    {"unevaluatedProperties", {"object"}},
    {"patternProperties", {"object"}},
    {"propertyNames", {"object"}},
    {"minProperties", {"object"}},
    {"maxProperties", {"object"}},
};

bool Contains(absl::Span<const absl::string_view> list, absl::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

bool IsOfType(const json& value, absl::string_view type) {
  if (type == "array") return value.is_array();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "object") return value.is_object();
  if (type == "string") return value.is_string();
  if (type == "number") return value.is_number();
  return value.is_number_integer() ||
         (value.is_number() && std::floor(value.get<double>()) == value.get<double>());
}

// One walk over a schema and what it refers to.
class SchemaWalk {
 public:
  explicit SchemaWalk(const json& root) : root_(root) {}

  absl::Status Check() {
    TANDEM_RETURN_IF_ERROR(CheckSchema(root_, "#"));
    while (!references_.empty()) {
      const auto [target, place] = references_.back();
      references_.pop_back();
      TANDEM_RETURN_IF_ERROR(CheckSchema(*target, place));
    }
    return absl::OkStatus();
  }

 private:
  static absl::Status Invalid(absl::string_view place, absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(place, ": ", what));
  }
  static std::string Member(absl::string_view place, absl::string_view name) {
    return absl::StrCat(place, "/", PrintableText(name));
  }

  absl::Status CheckSchema(const json& schema, const std::string& place) {
    if (schema.is_boolean()) {
      return schema.get<bool>() ? absl::OkStatus() : Invalid(place, "false allows nothing");
    }
    if (!schema.is_object()) return Invalid(place, "expected a schema: an object, or true");
    // What decides first, in the compiler's order: what stands beside it would go unheeded.
    for (const absl::string_view deciding : {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"}) {
      if (schema.contains(deciding)) return CheckDeciding(schema, deciding, place);
    }
    return CheckTyped(schema, place);
  }

  absl::Status CheckDeciding(const json& schema, absl::string_view keyword, const std::string& place) {
    const bool has_values = keyword == "const" || keyword == "enum";
    for (const auto& [name, value] : schema.items()) {
      if (name == keyword || Contains(kAnnotations, name) || (has_values && name == "type")) continue;
      return Invalid(Member(place, name), absl::StrCat("not supported together with ", keyword));
    }
    const json& value = schema.at(std::string(keyword));
    const std::string at = Member(place, keyword);
    if (keyword == "$ref") return CheckReference(value, at);
    if (keyword == "const") return CheckValues(schema, json::array({value}), place);
    if (!value.is_array() || value.empty()) return Invalid(at, "expected a list that is not empty");
    if (keyword == "enum") return CheckValues(schema, value, place);
    if (keyword == "allOf" && value.size() != 1) {
      return Invalid(at, "several schemas are not supported, expected one");
    }
    for (size_t i = 0; i < value.size(); ++i) {
      TANDEM_RETURN_IF_ERROR(CheckSchema(value[i], absl::StrCat(at, "/", i)));
    }
    return absl::OkStatus();
  }

  // A type beside values is fine as long as it excludes none of them.
  absl::Status CheckValues(const json& schema, const json& values, const std::string& place) {
    if (!schema.contains("type")) return absl::OkStatus();
    TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> types, TypesOf(schema, place));
    for (const json& value : values) {
      const auto matches = [&](const std::string& type) { return IsOfType(value, type); };
      if (std::none_of(types.begin(), types.end(), matches)) {
        return Invalid(Member(place, "type"), absl::StrCat("excludes the value ", PrintableValue(value)));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckReference(const json& reference, const std::string& place) {
    if (!reference.is_string()) return Invalid(place, "expected a text");
    const std::string& target = reference.get_ref<const std::string&>();
    if (target != "#" && !absl::StartsWith(target, "#/")) {
      return Invalid(place, "expected a place in this schema, as #/$defs/NAME");
    }
    if (target.find_first_of("~%") != std::string::npos) return Invalid(place, "~ and % are not supported");
    if (!seen_.insert(target).second) return absl::OkStatus();
    const json* at = &root_;
    for (const absl::string_view part : absl::StrSplit(target.substr(1), '/', absl::SkipEmpty())) {
      const auto member = at->is_object() ? at->find(std::string(part)) : at->end();
      if (!at->is_object() || member == at->end()) {
        return Invalid(place, absl::StrCat(PrintableText(target), " does not exist"));
      }
      at = &*member;
    }
    if (at != &root_) references_.emplace_back(at, target);
    return absl::OkStatus();
  }

  static absl::StatusOr<std::vector<std::string>> TypesOf(const json& schema, const std::string& place) {
    const json& type = schema.at("type");
    const json list = type.is_array() ? type : json::array({type});
    std::vector<std::string> types;
    for (const json& name : list) {
      if (!name.is_string() || !Contains(kTypes, name.get_ref<const std::string&>())) {
        return Invalid(Member(place, "type"), absl::StrCat(PrintableValue(name), " is not a type"));
      }
      types.push_back(name.get<std::string>());
    }
    if (types.empty()) return Invalid(Member(place, "type"), "expected at least one type");
    return types;
  }

  absl::Status CheckTyped(const json& schema, const std::string& place) {
    std::vector<std::string> types;
    if (schema.contains("type")) {
      TANDEM_ASSIGN_OR_RETURN(types, TypesOf(schema, place));
    }
    for (const auto& item : schema.items()) {
      const std::string& name = item.key();
      const json& value = item.value();
      if (name == "type" || Contains(kAnnotations, name)) continue;
      // It says nothing.
      if (name == "uniqueItems" && value == false) continue;
      const std::string at = Member(place, name);
      const auto known = std::find_if(std::begin(kTypedKeywords), std::end(kTypedKeywords),
                                      [&](const TypedKeyword& keyword) { return keyword.name == name; });
      if (known == std::end(kTypedKeywords)) return Invalid(at, "not supported");
      if (types.empty()) return Invalid(at, absl::StrCat("expected a type next to it, ", known->types[0]));
      const bool applies = std::any_of(types.begin(), types.end(),
                                       [&](const std::string& type) { return Contains(known->types, type); });
      if (!applies && std::find(types.begin(), types.end(), "number") != types.end() &&
          name == "multipleOf") {
        return Invalid(at, "of numbers that need not be whole: not supported");
      }
      TANDEM_RETURN_IF_ERROR(CheckMembers(name, value, at));
    }
    return absl::OkStatus();
  }

  // The schemas that stand in a keyword's value, and its own form.
  absl::Status CheckMembers(absl::string_view name, const json& value, const std::string& at) {
    if (name == "properties" || name == "patternProperties") {
      if (!value.is_object()) return Invalid(at, "expected an object");
      for (const auto& [member, schema] : value.items()) {
        TANDEM_RETURN_IF_ERROR(CheckSchema(schema, Member(at, member)));
      }
    } else if (name == "prefixItems") {
      if (!value.is_array()) return Invalid(at, "expected a list");
      for (size_t i = 0; i < value.size(); ++i) {
        TANDEM_RETURN_IF_ERROR(CheckSchema(value[i], absl::StrCat(at, "/", i)));
      }
    } else if (name == "items" || name == "additionalProperties" || name == "unevaluatedItems" ||
               name == "unevaluatedProperties" || name == "propertyNames") {
      if (!value.is_boolean()) return CheckSchema(value, at);
    } else if (name == "required") {
      const auto is_text = [](const json& entry) { return entry.is_string(); };
      if (!value.is_array() || !std::all_of(value.begin(), value.end(), is_text)) {
        return Invalid(at, "expected a list of texts");
      }
    } else if (name == "pattern" || name == "format") {
      if (!value.is_string()) return Invalid(at, "expected a text");
    } else if (absl::StartsWith(name, "min") || absl::StartsWith(name, "max")) {
      const bool is_count = name != "minimum" && name != "maximum";
      if (!value.is_number() || (is_count && (!IsOfType(value, "integer") || value.get<double>() < 0))) {
        return Invalid(at, is_count ? "expected a number of them, 0 or more" : "expected a number");
      }
    } else if (!value.is_number()) {
      return Invalid(at, "expected a number");
    }
    return absl::OkStatus();
  }

  const json& root_;
  std::vector<std::pair<const json*, std::string>> references_;  // Still to be looked at, and where they are.
  std::set<std::string> seen_ = {"#"};
};

}  // namespace

absl::Status CheckJsonSchema(absl::string_view text, size_t max_depth) {
  absl::StatusOr<json> schema = ParseStrictJson(text, "schema", 0, {.max_depth = max_depth});
  if (!schema.ok()) return schema.status();
  return SchemaWalk(*schema).Check();
}

}  // namespace tandem
