#include "common/tokenizer/jinja/jinja_builtins.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/jinja/jinja_lexer.h"
#include "common/tokenizer/jinja/jinja_sequence_filters.h"
#include "common/tokenizer/jinja/python_text.h"
#include "common/tokenizer/unicode/unicode.h"

namespace tandem {
namespace {

using Result = absl::StatusOr<JinjaValue>;
using Filter = JinjaFilter;

// String filters first convert their value to a string, as in Jinja.
template <typename Function>
Result OnText(const JinjaValue& value, JinjaBudget& budget, Function function) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, JinjaToText(value, budget));
  return JinjaValue::String(std::string(function(text)));
}

// Jinja's own title case: words begin after white space, '-' and opening brackets.
std::string TitleFilter(absl::string_view text) {
  std::string out;
  std::string word;
  const auto flush = [&] {
    out += PythonCapitalize(word);
    word.clear();
  };
  while (!text.empty()) {
    const Utf8Unit unit = ReadUtf8(text);
    const absl::string_view character = text.substr(0, unit.length);
    const bool ends_word = IsPythonSpace(unit.code_point) ||
                           absl::string_view("-({[<").find(character) != absl::string_view::npos;
    if (ends_word) flush();
    (ends_word ? out : word).append(character.data(), character.size());
    text.remove_prefix(unit.length);
  }
  flush();
  return out;
}

Result TrimFilter(const JinjaValue& value, const JinjaArguments& arguments, JinjaBudget& budget) {
  TANDEM_ASSIGN_OR_RETURN(std::string text, JinjaToText(value, budget));
  return CallJinjaMethod(JinjaValue::String(std::move(text)), "strip", arguments, budget);
}

Result LengthFilter(const JinjaValue& value, const JinjaArguments&, JinjaBudget& budget) {
  if (const std::string* text = value.AsString()) {
    TANDEM_RETURN_IF_ERROR(budget.Bytes(text->size()));
    return JinjaValue::Int(static_cast<int64_t>(CountCharacters(*text)));
  }
  if (value.AsItems() != nullptr) return JinjaValue::Int(static_cast<int64_t>(value.AsItems()->size()));
  if (value.AsDict() != nullptr) return JinjaValue::Int(static_cast<int64_t>(value.AsDict()->members.size()));
  if (value.IsUndefined()) return JinjaValue::Int(0);
  return absl::InvalidArgumentError(absl::StrCat(value.TypeName(), " has no length"));
}

Result ToJsonFilter(const JinjaValue& value, const JinjaArguments& arguments, JinjaBudget& budget) {
  int indent = -1;
  // transformers' tojson takes (ensure_ascii, indent, separators, sort_keys).
  for (const char* unsupported : {"separators", "sort_keys", "ensure_ascii"}) {
    const JinjaValue* given = arguments.Find(arguments.positional.size(), unsupported);
    if (given != nullptr && given->IsTrue()) {
      return absl::UnimplementedError(absl::StrCat("tojson(", unsupported, "=...) is not supported"));
    }
  }
  if (const JinjaValue* given = arguments.Find(1, "indent"); given != nullptr && !given->IsNone()) {
    const int64_t* width = given->As<int64_t>();
    if (width == nullptr || *width < 0 || *width > 16) {
      return absl::InvalidArgumentError("tojson expects an indent between 0 and 16");
    }
    indent = static_cast<int>(*width);
  }
  TANDEM_ASSIGN_OR_RETURN(std::string json, JinjaToJson(value, indent, budget));
  TANDEM_RETURN_IF_ERROR(budget.Bytes(json.size()));
  return JinjaValue::String(std::move(json));
}

Result DefaultFilter(const JinjaValue& value, const JinjaArguments& arguments, JinjaBudget&) {
  const JinjaValue* fallback = arguments.Find(0, "default_value");
  const JinjaValue* also_false = arguments.Find(1, "boolean");
  const bool replace =
      value.IsUndefined() || (also_false != nullptr && also_false->IsTrue() && !value.IsTrue());
  if (!replace) return value;
  return fallback == nullptr ? JinjaValue::String("") : *fallback;
}

Result JoinFilter(const JinjaValue& value, const JinjaArguments& arguments, JinjaBudget& budget) {
  TANDEM_ASSIGN_OR_RETURN(const JinjaValue::Items items, JinjaIterate(value, budget));
  std::string separator;
  if (const JinjaValue* given = arguments.Find(0, "d")) {
    TANDEM_ASSIGN_OR_RETURN(separator, JinjaToText(*given, budget));
  }
  const JinjaValue* attribute = arguments.Find(1, "attribute");
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    JinjaValue item = items[i];
    if (attribute != nullptr) {
      TANDEM_ASSIGN_OR_RETURN(item, JinjaMemberAt(items[i], *attribute, budget));
    }
    TANDEM_ASSIGN_OR_RETURN(const std::string text, JinjaToText(item, budget));
    TANDEM_RETURN_IF_ERROR(budget.Bytes(separator.size()));
    absl::StrAppend(&out, i == 0 ? "" : separator, text);
  }
  return JinjaValue::String(std::move(out));
}

Result ReplaceFilter(const JinjaValue& value, const JinjaArguments& arguments, JinjaBudget& budget) {
  TANDEM_ASSIGN_OR_RETURN(std::string text, JinjaToText(value, budget));
  return CallJinjaMethod(JinjaValue::String(std::move(text)), "replace", arguments, budget);
}

Result EndItem(const JinjaValue& value, bool first, JinjaBudget& budget) {
  TANDEM_ASSIGN_OR_RETURN(const JinjaValue::Items items, JinjaIterate(value, budget));
  if (items.empty()) return JinjaValue::Undefined(first ? "first" : "last");
  return first ? items.front() : items.back();
}

Result ReverseFilter(const JinjaValue& value, const JinjaArguments&, JinjaBudget& budget) {
  TANDEM_ASSIGN_OR_RETURN(JinjaValue::Items items, JinjaIterate(value, budget));
  std::reverse(items.begin(), items.end());
  if (value.AsString() == nullptr) return JinjaValue::List(std::move(items));
  std::string text;
  for (const JinjaValue& character : items) text += *character.AsString();
  return JinjaValue::String(std::move(text));
}

// select, reject, selectattr and rejectattr.
Result Select(const JinjaValue& value, const JinjaArguments& arguments, bool by_attribute, bool keep,
              JinjaBudget& budget) {
  TANDEM_ASSIGN_OR_RETURN(const JinjaValue::Items items, JinjaIterate(value, budget));
  size_t next = 0;
  if (by_attribute && arguments.positional.empty())
    return absl::InvalidArgumentError("expected an attribute");
  const JinjaValue attribute = by_attribute ? arguments.positional[next++] : JinjaValue();
  std::string test;
  JinjaArguments rest;
  if (next < arguments.positional.size()) {
    TANDEM_ASSIGN_OR_RETURN(test, JinjaToText(arguments.positional[next++], budget));
    rest.positional.assign(arguments.positional.begin() + static_cast<ptrdiff_t>(next),
                           arguments.positional.end());
  }
  JinjaValue::Items selected;
  for (const JinjaValue& item : items) {
    TANDEM_RETURN_IF_ERROR(budget.Step());
    JinjaValue tested = item;
    if (by_attribute) {
      TANDEM_ASSIGN_OR_RETURN(tested, JinjaMemberAt(item, attribute, budget));
    }
    bool holds = tested.IsTrue();
    if (!test.empty()) {
      TANDEM_ASSIGN_OR_RETURN(holds, ApplyJinjaTest(test, tested, rest, budget));
    }
    if (holds == keep) selected.push_back(item);
  }
  return JinjaValue::List(std::move(selected));
}

Result MapFilter(const JinjaValue& value, const JinjaArguments& arguments, JinjaBudget& budget) {
  TANDEM_ASSIGN_OR_RETURN(const JinjaValue::Items items, JinjaIterate(value, budget));
  const JinjaValue* attribute = arguments.Find(arguments.positional.size(), "attribute");
  const JinjaValue* fallback = arguments.Find(arguments.positional.size(), "default");
  if (attribute == nullptr &&
      (arguments.positional.empty() || arguments.positional[0].AsString() == nullptr)) {
    return absl::InvalidArgumentError("map expects an attribute or a filter");
  }
  JinjaArguments rest;
  if (attribute == nullptr)
    rest.positional.assign(arguments.positional.begin() + 1, arguments.positional.end());
  JinjaValue::Items mapped;
  for (const JinjaValue& item : items) {
    TANDEM_RETURN_IF_ERROR(budget.Step());
    Result result = attribute != nullptr
                        ? JinjaMemberAt(item, *attribute, budget)
                        : ApplyJinjaFilter(*arguments.positional[0].AsString(), item, rest, budget);
    TANDEM_RETURN_IF_ERROR(result.status());
    mapped.push_back(result->IsUndefined() && fallback != nullptr ? *fallback : *std::move(result));
  }
  return JinjaValue::List(std::move(mapped));
}

// Python's int(text, base), for bases 2, 8 and 16, with or without their prefix. With 0, the text's prefix
// gives the base.
std::optional<int64_t> IntegerOfBase(absl::string_view text, int64_t base) {
  const std::string lower = absl::AsciiStrToLower(absl::StripAsciiWhitespace(text));
  absl::string_view digits = lower;
  const bool negative = absl::ConsumePrefix(&digits, "-");
  for (const auto& [prefix, radix] :
       {std::pair<absl::string_view, int64_t>{"0x", 16}, {"0o", 8}, {"0b", 2}}) {
    if ((base == radix || base == 0) && absl::ConsumePrefix(&digits, prefix)) base = radix;
  }
  int64_t value = 0;
  if (base != 0 && (base < 2 || base > 36)) return std::nullopt;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value,
                                            static_cast<int>(base == 0 ? 10 : base));
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return negative ? -value : value;
}

Result IntFilter(const JinjaValue& value, const JinjaArguments& arguments, JinjaBudget&) {
  if (value.As<int64_t>() != nullptr) return value;
  if (const bool* b = value.As<bool>()) return JinjaValue::Int(*b ? 1 : 0);
  double number = std::nan("");
  if (const double* d = value.As<double>()) number = *d;
  if (const std::string* text = value.AsString()) {
    int64_t parsed = 0;
    const JinjaValue* base = arguments.Find(1, "base");
    if (base != nullptr && base->As<int64_t>() != nullptr) {
      if (const std::optional<int64_t> in_base = IntegerOfBase(*text, *base->As<int64_t>())) {
        return JinjaValue::Int(*in_base);
      }
    } else if (absl::SimpleAtoi(*text, &parsed)) {
      return JinjaValue::Int(parsed);
    }
    // Python's floats have no hexadecimal form.
    if (text->find_first_of("xX") != std::string::npos || !absl::SimpleAtod(*text, &number))
      number = std::nan("");
  }
  if (std::fabs(number) < 9e18) return JinjaValue::Int(static_cast<int64_t>(number));
  const JinjaValue* fallback = arguments.Find(0, "default");
  return fallback == nullptr ? JinjaValue::Int(0) : *fallback;
}

Result ItemsFilter(const JinjaValue& value, const JinjaArguments& arguments, JinjaBudget& budget) {
  if (value.IsUndefined()) return JinjaValue::List({});
  if (value.AsDict() == nullptr) return absl::InvalidArgumentError("items expects a dict");
  return CallJinjaMethod(value, "items", arguments, budget);
}

Result ListFilter(const JinjaValue& value, const JinjaArguments&, JinjaBudget& budget) {
  TANDEM_ASSIGN_OR_RETURN(JinjaValue::Items items, JinjaIterate(value, budget));
  return JinjaValue::List(std::move(items));
}

Result StringFilter(const JinjaValue& value, const JinjaArguments&, JinjaBudget& budget) {
  return OnText(value, budget, [](const std::string& text) { return text; });
}

const absl::flat_hash_map<absl::string_view, Filter>& Filters() {
  static const auto* filters = new absl::flat_hash_map<absl::string_view, Filter>{
      {"trim", TrimFilter},
      {"length", LengthFilter},
      {"count", LengthFilter},
      {"tojson", ToJsonFilter},
      {"default", DefaultFilter},
      {"d", DefaultFilter},
      {"join", JoinFilter},
      {"string", StringFilter},
      {"safe", StringFilter},
      {"replace", ReplaceFilter},
      {"list", ListFilter},
      {"reverse", ReverseFilter},
      {"map", MapFilter},
      {"int", IntFilter},
      {"items", ItemsFilter},
      {"upper",
       [](const JinjaValue& v, const JinjaArguments&, JinjaBudget& b) { return OnText(v, b, PythonUpper); }},
      {"lower",
       [](const JinjaValue& v, const JinjaArguments&, JinjaBudget& b) { return OnText(v, b, PythonLower); }},
      {"title",
       [](const JinjaValue& v, const JinjaArguments&, JinjaBudget& b) { return OnText(v, b, TitleFilter); }},
      {"capitalize", [](const JinjaValue& v, const JinjaArguments&,
                        JinjaBudget& b) { return OnText(v, b, PythonCapitalize); }},
      {"first",
       [](const JinjaValue& v, const JinjaArguments&, JinjaBudget& b) { return EndItem(v, true, b); }},
      {"last",
       [](const JinjaValue& v, const JinjaArguments&, JinjaBudget& b) { return EndItem(v, false, b); }},
      {"select", [](const JinjaValue& v, const JinjaArguments& a,
                    JinjaBudget& b) { return Select(v, a, false, true, b); }},
      {"reject", [](const JinjaValue& v, const JinjaArguments& a,
                    JinjaBudget& b) { return Select(v, a, false, false, b); }},
      {"selectattr", [](const JinjaValue& v, const JinjaArguments& a,
                        JinjaBudget& b) { return Select(v, a, true, true, b); }},
      {"rejectattr", [](const JinjaValue& v, const JinjaArguments& a,
                        JinjaBudget& b) { return Select(v, a, true, false, b); }},
  };
  return *filters;
}

// Tests of the value alone; nullopt for other names.
std::optional<bool> SimpleTest(absl::string_view name, const JinjaValue& value) {
  const bool is_bool = value.As<bool>() != nullptr;
  const bool is_int = value.As<int64_t>() != nullptr;
  const bool is_float = value.As<double>() != nullptr;
  const bool is_sequence =
      value.AsString() != nullptr || value.AsItems() != nullptr || value.AsDict() != nullptr;
  if (name == "defined") return !value.IsUndefined();
  if (name == "undefined") return value.IsUndefined();
  if (name == "none") return value.IsNone();
  if (name == "string") return value.AsString() != nullptr;
  if (name == "mapping") return value.AsDict() != nullptr;
  // An undefined value can be looped over and has a length.
  if (name == "iterable" || name == "sequence") return is_sequence || value.IsUndefined();
  if (name == "boolean") return is_bool;
  if (name == "true") return is_bool && *value.As<bool>();
  if (name == "false") return is_bool && !*value.As<bool>();
  if (name == "integer") return is_int;
  if (name == "float") return is_float;
  if (name == "number") return is_int || is_float || is_bool;
  if (name == "callable") return value.As<std::shared_ptr<const JinjaCallable>>() != nullptr;
  return std::nullopt;
}

}  // namespace

const JinjaValue* JinjaArguments::Find(size_t index, absl::string_view name) const {
  if (index < positional.size()) return &positional[index];
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

Result ApplyJinjaFilter(absl::string_view name, const JinjaValue& value, const JinjaArguments& arguments,
                        JinjaBudget& budget) {
  TANDEM_RETURN_IF_ERROR(budget.Step());
  if (const auto it = Filters().find(name); it != Filters().end()) {
    return it->second(value, arguments, budget);
  }
  const auto it = JinjaSequenceFilters().find(name);
  if (it == JinjaSequenceFilters().end()) {
    return absl::UnimplementedError(absl::StrCat("filter '", name, "' is not supported"));
  }
  return it->second(value, arguments, budget);
}

absl::StatusOr<bool> ApplyJinjaTest(absl::string_view name, const JinjaValue& value,
                                    const JinjaArguments& arguments, JinjaBudget& budget) {
  TANDEM_RETURN_IF_ERROR(budget.Step());
  if (const std::optional<bool> holds = SimpleTest(name, value)) return *holds;
  if (name == "odd" || name == "even") {
    const int64_t* number = value.As<int64_t>();
    if (number == nullptr)
      return absl::InvalidArgumentError(absl::StrCat("test '", name, "' expects an integer"));
    return (*number % 2 != 0) == (name == "odd");
  }
  const JinjaValue* other = arguments.Find(0, "other");
  const bool is_equality = name == "eq" || name == "==" || name == "equalto";
  const bool is_inequality = name == "ne" || name == "!=";
  const bool is_known = is_equality || is_inequality || name == "in" || name == "divisibleby";
  if (!is_known) return absl::UnimplementedError(absl::StrCat("test '", name, "' is not supported"));
  if (other == nullptr)
    return absl::InvalidArgumentError(absl::StrCat("test '", name, "' expects an argument"));
  if (name == "in") return JinjaContains(*other, value, budget);
  if (name == "divisibleby") {
    const int64_t* number = value.As<int64_t>();
    const int64_t* divisor = other->As<int64_t>();
    if (number == nullptr || divisor == nullptr || *divisor == 0 || *divisor == -1) {
      return absl::InvalidArgumentError("divisibleby expects an integer and a divisor");
    }
    return *number % *divisor == 0;
  }
  TANDEM_ASSIGN_OR_RETURN(const bool same, JinjaEqual(value, *other, budget));
  return same == is_equality;
}

}  // namespace tandem
