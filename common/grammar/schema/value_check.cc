// SchemaCases: whether a value that a schema names, in an `enum` say, is valid by all the rest.

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/grammar/schema/numbers.h"
#include "common/grammar/schema/schema_cases.h"

namespace tandem {
namespace {

using Type = JsonValue::Type;

constexpr size_t kMostCheckDepth = 500;

size_t NumCodePoints(absl::string_view text) {
  size_t count = 0;
  for (; !text.empty(); ++count) TakeCodePoint(&text);
  return count;
}

bool IsWhole(const JsonValue& number) {
  const absl::StatusOr<std::string> plain = PlainDecimal(number.text);
  return plain.ok() && !absl::StrContains(*plain, '.');
}

bool IsOfType(const JsonValue& value, const std::string& type) {
  switch (value.type) {
    case Type::kNull:
      return type == "null";
    case Type::kBoolean:
      return type == "boolean";
    case Type::kNumber:
      return type == "number" || (type == "integer" && IsWhole(value));
    case Type::kString:
      return type == "string";
    case Type::kArray:
      return type == "array";
    case Type::kObject:
      break;
  }
  return type == "object";
}

bool HasMembers(const JsonValue& value, const JsonValue& names) {
  return std::all_of(names.items.begin(), names.items.end(),
                     [&](const JsonValue& name) { return value.Find(name.text) != nullptr; });
}

}  // namespace

absl::StatusOr<bool> SchemaCases::Meets(const JsonValue& value, const Demand& demand) {
  TANDEM_ASSIGN_OR_RETURN(const bool valid, IsValid(value, *demand.schema, demand.place));
  return valid == demand.holds;
}

absl::StatusOr<bool> SchemaCases::IsValid(const JsonValue& value, const JsonValue& schema,
                                          const std::string& place) {
  if (schema.Is(Type::kBoolean)) return schema.boolean;
  if (check_depth_ >= kMostCheckDepth) return absl::ResourceExhaustedError("too large: nested too deep");
  ++check_depth_;
  absl::StatusOr<bool> valid = true;
  for (const auto& [name, operand] : schema.members) {
    if (const absl::Status spent = budget_.Spend(30); !spent.ok()) valid = spent;
    if (valid.ok()) valid = IsValidByKeyword(value, schema, name, operand, place);
    if (!valid.ok() || !*valid) break;
  }
  --check_depth_;
  return valid;
}

absl::StatusOr<bool> SchemaCases::IsValidByKeyword(const JsonValue& value, const JsonValue& schema,
                                                   const std::string& name, const JsonValue& operand,
                                                   const std::string& place) {
  if (name == "type") {
    if (operand.Is(Type::kString)) return IsOfType(value, operand.text);
    return std::any_of(operand.items.begin(), operand.items.end(),
                       [&](const JsonValue& type) { return IsOfType(value, type.text); });
  }
  if (name == "const") return AreEqual(value, operand);
  if (name == "enum") return IsListed(value, operand);
  // `exclusiveMinimum` of draft 4 is part of `minimum`.
  const bool says =
      operand.Is(Type::kNumber) && (name == "minimum" || name == "maximum" || name == "exclusiveMinimum" ||
                                    name == "exclusiveMaximum" || name == "multipleOf");
  if (value.Is(Type::kNumber) && says) {
    TANDEM_ASSIGN_OR_RETURN(const Language* const numbers, LanguageOf(schema, name, Below(place, name)));
    absl::StatusOr<std::string> plain = PlainDecimal(value.text);
    if (!plain.ok()) return At(place, plain.status());
    return numbers->Accepts(*plain);
  }
  if (value.Is(Type::kString)) {
    if (name == "minLength") return NumCodePoints(value.text) >= CountOf(operand);
    if (name == "maxLength") return NumCodePoints(value.text) <= CountOf(operand);
    if (name == "pattern" || name == "format") {
      TANDEM_ASSIGN_OR_RETURN(const Language* const texts, LanguageOf(schema, name, Below(place, name)));
      return texts->Accepts(value.text);
    }
  }
  if (value.Is(Type::kArray)) {
    TANDEM_ASSIGN_OR_RETURN(const bool valid, IsValidArray(value, schema, name, operand, place));
    if (!valid) return false;
  }
  if (value.Is(Type::kObject)) {
    TANDEM_ASSIGN_OR_RETURN(const bool valid, IsValidObject(value, schema, name, operand, place));
    if (!valid) return false;
  }
  return IsValidPart(value, schema, name, operand, place);
}

absl::StatusOr<bool> SchemaCases::IsListed(const JsonValue& value, const JsonValue& list) {
  const int64_t cost = 20 * static_cast<int64_t>(list.items.size());
  if (!value.Is(Type::kString)) {
    TANDEM_RETURN_IF_ERROR(budget_.Spend(cost));
    return std::any_of(list.items.begin(), list.items.end(),
                       [&](const JsonValue& one) { return AreEqual(value, one); });
  }
  const auto [texts, added] = listed_texts_.try_emplace(&list);
  if (added) {
    TANDEM_RETURN_IF_ERROR(budget_.Spend(cost));
    for (const JsonValue& one : list.items) {
      if (one.Is(Type::kString)) texts->second.insert(one.text);
    }
  }
  return texts->second.contains(value.text);
}

absl::StatusOr<bool> SchemaCases::IsValidPart(const JsonValue& value, const JsonValue& schema,
                                              const std::string& name, const JsonValue& operand,
                                              const std::string& place) {
  if (name == "$ref") {
    const SchemaPlace& target = document_.Target(operand);
    return IsValid(value, *target.schema, target.pointer);
  }
  if (name == "not") {
    TANDEM_ASSIGN_OR_RETURN(const bool valid, IsValid(value, operand, Below(place, name)));
    return !valid;
  }
  if (name == "allOf" || name == "anyOf" || name == "oneOf") {
    size_t count = 0;
    for (size_t i = 0; i < operand.items.size(); ++i) {
      TANDEM_ASSIGN_OR_RETURN(const bool valid,
                              IsValid(value, operand.items[i], absl::StrCat(Below(place, name), "/", i)));
      count += valid ? 1 : 0;
    }
    return name == "allOf" ? count == operand.items.size() : name == "anyOf" ? count > 0 : count == 1;
  }
  if (name == "if") {
    TANDEM_ASSIGN_OR_RETURN(const bool when, IsValid(value, operand, Below(place, name)));
    const char* const branch = when ? "then" : "else";
    const JsonValue* const then = schema.Find(branch);
    return then == nullptr ? absl::StatusOr<bool>(true) : IsValid(value, *then, Below(place, branch));
  }
  return true;
}

absl::StatusOr<bool> SchemaCases::IsValidArray(const JsonValue& value, const JsonValue& schema,
                                               const std::string& name, const JsonValue& operand,
                                               const std::string& place) {
  const std::string at = Below(place, name);
  if (name == "minItems") return value.items.size() >= CountOf(operand);
  if (name == "maxItems") return value.items.size() <= CountOf(operand);
  if (name == "unevaluatedItems" && !operand.IsBoolean(true)) {
    return InvalidAt(at, "not supported together with lists as values");
  }
  if (const ListItems list = ItemsOf(schema); &operand == list.first || &operand == list.rest) {
    const bool is_rest = &operand == list.rest;
    const size_t num_first = list.first == nullptr ? 0 : list.first->items.size();
    for (size_t i = 0; i < value.items.size(); ++i) {
      if (is_rest != (i >= num_first)) continue;
      TANDEM_ASSIGN_OR_RETURN(const bool valid,
                              IsValid(value.items[i], is_rest ? operand : operand.items[i], at));
      if (!valid) return false;
    }
  } else if (name == "contains") {
    size_t count = 0;
    for (const JsonValue& item : value.items) {
      TANDEM_ASSIGN_OR_RETURN(const bool valid, IsValid(item, operand, at));
      count += valid ? 1 : 0;
    }
    const JsonValue* const least = schema.Find("minContains");
    const JsonValue* const most = schema.Find("maxContains");
    return count >= (least == nullptr ? 1 : CountOf(*least)) && (most == nullptr || count <= CountOf(*most));
  } else if (name == "uniqueItems" && operand.boolean) {
    for (size_t i = 0; i < value.items.size(); ++i) {
      TANDEM_RETURN_IF_ERROR(budget_.Spend(static_cast<int64_t>(20 * i)));
      for (size_t j = 0; j < i; ++j) {
        if (AreEqual(value.items[i], value.items[j])) return false;
      }
    }
  }
  return true;
}

absl::StatusOr<bool> SchemaCases::IsValidObject(const JsonValue& value, const JsonValue& schema,
                                                const std::string& name, const JsonValue& operand,
                                                const std::string& place) {
  const std::string at = Below(place, name);
  if (name == "minProperties") return value.members.size() >= CountOf(operand);
  if (name == "maxProperties") return value.members.size() <= CountOf(operand);
  if (name == "required") return HasMembers(value, operand);
  if (name == "unevaluatedProperties" && !operand.IsBoolean(true)) {
    return InvalidAt(at, "not supported together with objects as values");
  }
  if (IsOnDependents(name)) {
    for (const auto& [member, needs] : operand.members) {
      if (value.Find(member) == nullptr) continue;
      TANDEM_ASSIGN_OR_RETURN(const bool valid, needs.Is(Type::kArray)
                                                    ? absl::StatusOr<bool>(HasMembers(value, needs))
                                                    : IsValid(value, needs, Below(at, member)));
      if (!valid) return false;
    }
    return true;
  }
  const bool on_members = name == "properties" || name == "patternProperties" ||
                          name == "additionalProperties" || name == "propertyNames";
  for (size_t i = 0; i < value.members.size() && on_members; ++i) {
    const auto& [member, inside] = value.members[i];
    std::vector<const JsonValue*> schemas;
    const JsonValue* const listed = schema.Find("properties");
    const JsonValue* const named = listed == nullptr ? nullptr : listed->Find(member);
    bool known = named != nullptr;
    if (name == "properties" && named != nullptr) schemas.push_back(named);
    if (const JsonValue* const patterns = schema.Find("patternProperties"); patterns != nullptr) {
      for (const auto& [pattern, one] : patterns->members) {
        TANDEM_ASSIGN_OR_RETURN(const Language* const texts, PatternLanguage(pattern, Below(place, pattern)));
        if (!texts->Accepts(member)) continue;
        known = true;
        if (name == "patternProperties") schemas.push_back(&one);
      }
    }
    if (name == "additionalProperties" && !known) schemas.push_back(&operand);
    for (const JsonValue* one : schemas) {
      TANDEM_ASSIGN_OR_RETURN(const bool valid, IsValid(inside, *one, Below(at, member)));
      if (!valid) return false;
    }
    if (name == "propertyNames") {
      TANDEM_ASSIGN_OR_RETURN(const bool valid, IsValid(JsonValue::OfText(member), operand, at));
      if (!valid) return false;
    }
  }
  return true;
}

}  // namespace tandem
