#include "common/tokenizer/jinja/jinja_builtins.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/checked_math.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/jinja/jinja_catalog.h"
#include "common/tokenizer/jinja/jinja_interpreter.h"
#include "common/tokenizer/jinja/jinja_lexer.h"
#include "common/tokenizer/jinja/jinja_sequence_filters.h"
#include "common/tokenizer/jinja/jinja_text_filters.h"
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
  return JinjaTextLike(value, std::string(function(text)));
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
  JinjaArguments characters;
  if (const JinjaValue* given = arguments.Find(0, "chars")) characters.positional.push_back(*given);
  return CallJinjaMethod(JinjaTextLike(value, std::move(text)), "strip", characters, budget);
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
  JinjaArguments positional;
  for (const auto& [index, name] : {std::pair<size_t, const char*>{0, "old"}, {1, "new"}}) {
    TANDEM_ASSIGN_OR_RETURN(std::string part, JinjaToText(*arguments.Find(index, name), budget));
    positional.positional.push_back(JinjaValue::String(std::move(part)));
  }
  if (const JinjaValue* count = arguments.Find(2, "count")) positional.positional.push_back(*count);
  return CallJinjaMethod(JinjaValue::String(std::move(text)), "replace", positional, budget);
}

Result AttrFilter(const JinjaValue& value, const JinjaArguments& arguments, JinjaBudget& budget) {
  TANDEM_ASSIGN_OR_RETURN(const std::string name, JinjaToText(*arguments.Find(0, "name"), budget));
  // Members of a dict are items, not attributes.
  if (value.AsDict() != nullptr && !HasJinjaMethod(value, name)) return JinjaValue::Undefined(name);
  return JinjaAttribute(value, name, budget);
}

// Lists of so many items each.
Result BatchFilter(const JinjaValue& value, const JinjaArguments& arguments, JinjaBudget& budget) {
  TANDEM_ASSIGN_OR_RETURN(const JinjaValue::Items items, JinjaIterate(value, budget));
  const int64_t* size = arguments.Find(0, "linecount")->As<int64_t>();
  const JinjaValue* fill = arguments.Find(1, "fill_with");
  if (size == nullptr) return absl::InvalidArgumentError("batch expects an integer");
  JinjaValue::Items batches;
  JinjaValue::Items batch;
  const auto flush = [&]() -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(JinjaValue list, JinjaValue::List(std::exchange(batch, {})));
    batches.push_back(std::move(list));
    return absl::OkStatus();
  };
  for (const JinjaValue& item : items) {
    if (static_cast<int64_t>(batch.size()) == *size) TANDEM_RETURN_IF_ERROR(flush());
    batch.push_back(item);
  }
  if (!batch.empty()) {
    if (fill != nullptr && !fill->IsNone()) {
      const int64_t missing = std::max<int64_t>(*size - static_cast<int64_t>(batch.size()), 0);
      TANDEM_RETURN_IF_ERROR(
          budget.Bytes(CheckedMultiply<size_t>(static_cast<size_t>(missing), sizeof(JinjaValue))
                           .value_or(std::numeric_limits<size_t>::max())));
      batch.insert(batch.end(), static_cast<size_t>(missing), *fill);
    }
    TANDEM_RETURN_IF_ERROR(flush());
  }
  return JinjaValue::List(std::move(batches));
}

// So many lists, as even as can be.
Result SliceFilter(const JinjaValue& value, const JinjaArguments& arguments, JinjaBudget& budget) {
  TANDEM_ASSIGN_OR_RETURN(const JinjaValue::Items items, JinjaIterate(value, budget));
  const int64_t* given = arguments.Find(0, "slices")->As<int64_t>();
  const JinjaValue* fill = arguments.Find(1, "fill_with");
  if (given == nullptr || *given == 0) return absl::InvalidArgumentError("slice expects a number of slices");
  const auto count = static_cast<size_t>(std::max<int64_t>(*given, 0));
  TANDEM_RETURN_IF_ERROR(
      budget.Bytes(CheckedMultiply(count, sizeof(JinjaValue)).value_or(std::numeric_limits<size_t>::max())));
  JinjaValue::Items slices;
  auto next = items.begin();
  for (size_t i = 0; i < count; ++i) {
    const bool has_one_more = i < items.size() % count;
    const auto end = next + static_cast<ptrdiff_t>(items.size() / count + (has_one_more ? 1 : 0));
    JinjaValue::Items slice(next, end);
    if (fill != nullptr && !fill->IsNone() && !has_one_more) slice.push_back(*fill);
    TANDEM_ASSIGN_OR_RETURN(JinjaValue list, JinjaValue::List(std::move(slice)));
    slices.push_back(std::move(list));
    next = end;
  }
  return JinjaValue::List(std::move(slices));
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
  return JinjaTextLike(value, std::move(text));
}

// select, reject, selectattr and rejectattr.
Result Select(const JinjaValue& value, const JinjaArguments& arguments, bool by_attribute, bool keep,
              JinjaBudget& budget) {
  if (!value.IsTrue()) return JinjaValue::List({});  // As Jinja has it, also for what has no items.
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
    rest.named = arguments.named;
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
  if (!value.IsTrue()) return JinjaValue::List({});  // As Jinja has it, also for what has no items.
  TANDEM_ASSIGN_OR_RETURN(const JinjaValue::Items items, JinjaIterate(value, budget));
  const bool by_name = !arguments.positional.empty();
  const JinjaValue* attribute = by_name ? nullptr : arguments.Find(0, "attribute");
  const JinjaValue* fallback = by_name ? nullptr : arguments.Find(0, "default");
  if (attribute == nullptr &&
      (arguments.positional.empty() || arguments.positional[0].AsString() == nullptr)) {
    return absl::InvalidArgumentError("map expects an attribute or a filter");
  }
  if (attribute != nullptr) {
    for (const auto& [name, given] : arguments.named) {
      if (name != "attribute" && name != "default")
        return absl::InvalidArgumentError(absl::StrCat("map has no argument '", name, "'"));
    }
  }
  JinjaArguments rest;
  if (attribute == nullptr) {
    rest.positional.assign(arguments.positional.begin() + 1, arguments.positional.end());
    rest.named = arguments.named;
  }
  JinjaValue::Items mapped;
  for (const JinjaValue& item : items) {
    TANDEM_RETURN_IF_ERROR(budget.Step());
    Result result = attribute != nullptr
                        ? JinjaMemberAt(item, *attribute, budget, fallback)
                        : ApplyJinjaFilter(*arguments.positional[0].AsString(), item, rest, budget);
    TANDEM_RETURN_IF_ERROR(result.status());
    mapped.push_back(*std::move(result));
  }
  return JinjaValue::List(std::move(mapped));
}

// Python's int(text, base): nullopt if the text is no integer of that base. With 0, the text's prefix gives
// the base.
absl::StatusOr<std::optional<int64_t>> IntegerOfBase(absl::string_view text, int64_t base) {
  if (base != 0 && (base < 2 || base > 36)) return std::nullopt;
  const std::string lower = absl::AsciiStrToLower(PythonStrip(text, std::nullopt, StripSide::kBoth));
  absl::string_view rest = lower;
  const bool negative = absl::ConsumePrefix(&rest, "-");
  if (!negative) absl::ConsumePrefix(&rest, "+");
  bool has_prefix = false;
  for (const auto& [prefix, radix] :
       {std::pair<absl::string_view, int64_t>{"0x", 16}, {"0o", 8}, {"0b", 2}}) {
    if (has_prefix || (base != radix && base != 0) || !absl::ConsumePrefix(&rest, prefix)) continue;
    base = radix;
    has_prefix = true;
    absl::ConsumePrefix(&rest, "_");
  }
  // As in Python's own text, a number without prefix has no leading zero.
  if (base == 0 && absl::StartsWith(rest, "0") && rest.find_first_not_of("0_") != absl::string_view::npos)
    return std::nullopt;
  // Between digits of any base, an underscore says nothing.
  std::string digits = negative ? "-" : "";
  for (size_t i = 0; i < rest.size(); ++i) {
    const bool separates = rest[i] == '_' && i > 0 && i + 1 < rest.size() && rest[i - 1] != '_';
    if (!separates) digits += rest[i];
  }
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value,
                                            static_cast<int>(base == 0 ? 10 : base));
  if (rest.empty() || rest[0] == '-' || end != digits.data() + digits.size()) return std::nullopt;
  if (error == std::errc::result_out_of_range)
    return absl::InvalidArgumentError("an integer overflows 64 bits");
  if (error != std::errc()) return std::nullopt;
  return value;
}

Result IntFilter(const JinjaValue& value, const JinjaArguments& arguments, JinjaBudget& budget) {
  if (const auto* undefined = value.As<JinjaUndefined>())
    return absl::InvalidArgumentError(absl::StrCat("'", undefined->name, "' is undefined"));
  if (value.As<int64_t>() != nullptr) return value;
  if (const bool* b = value.As<bool>()) return JinjaValue::Int(*b ? 1 : 0);
  double number = std::nan("");
  if (const double* d = value.As<double>()) {
    if (std::isinf(*d)) return absl::InvalidArgumentError("int expects a finite number");
    number = *d;
  }
  if (const std::string* text = value.AsString()) {
    TANDEM_RETURN_IF_ERROR(budget.Bytes(text->size()));
    const JinjaValue* base = arguments.Find(1, "base");
    const int64_t ten = 10;
    if (const int64_t* radix = base == nullptr ? &ten : base->As<int64_t>()) {
      TANDEM_ASSIGN_OR_RETURN(const std::optional<int64_t> integer, IntegerOfBase(*text, *radix));
      if (integer.has_value()) return JinjaValue::Int(*integer);
    }
    number = PythonFloat(*text).value_or(number);
  }
  if (std::isfinite(number) && std::fabs(number) >= 9e18)
    return absl::InvalidArgumentError("an integer overflows 64 bits");
  if (std::isfinite(number)) return JinjaValue::Int(static_cast<int64_t>(number));
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
      {"attr", AttrFilter},
      {"batch", BatchFilter},
      {"slice", SliceFilter},
      {"default", DefaultFilter},
      {"d", DefaultFilter},
      {"join", JoinFilter},
      {"string", StringFilter},
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
       [](const JinjaValue& v, const JinjaArguments&, JinjaBudget& b) -> Result {
         TANDEM_ASSIGN_OR_RETURN(const std::string text, JinjaToText(v, b));
         return JinjaValue::String(TitleFilter(text));
       }},
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

bool IsCallable(const JinjaValue& value) {
  const auto* object = value.As<std::shared_ptr<JinjaNamespace>>();
  return value.As<std::shared_ptr<const JinjaCallable>>() != nullptr || value.IsUndefined() ||
         value.As<std::shared_ptr<const JinjaLoop>>() != nullptr ||
         (object != nullptr && (*object)->kind == JinjaNamespace::Kind::kJoiner);
}

// Python's `is`: small things of equal value are one, others are one if they are the same object.
bool IsSame(const JinjaValue& a, const JinjaValue& b) {
  if (a.As<bool>() != nullptr || b.As<bool>() != nullptr)
    return a.As<bool>() != nullptr && b.As<bool>() != nullptr && *a.As<bool>() == *b.As<bool>();
  if (a.IsNone() || b.IsNone()) return a.IsNone() && b.IsNone();
  if (a.As<int64_t>() != nullptr && b.As<int64_t>() != nullptr) return *a.As<int64_t>() == *b.As<int64_t>();
  if (a.AsString() != nullptr && b.AsString() != nullptr) return *a.AsString() == *b.AsString();
  if (a.AsItems() != nullptr && b.AsItems() != nullptr) return a.AsItems() == b.AsItems();
  return a.AsDict() != nullptr && a.AsDict() == b.AsDict();
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
  if (name == "callable") return IsCallable(value);
  if (name == "escaped") return value.IsMarkup();
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
  const JinjaSignature* const signature = FindJinjaFilter(name);
  if (signature == nullptr)
    return absl::UnimplementedError(absl::StrCat("filter '", name, "' is not supported"));
  TANDEM_RETURN_IF_ERROR(CheckJinjaCall(*signature, absl::StrCat("filter '", name, "'"), arguments));
  for (const auto* filters : {&Filters(), &JinjaSequenceFilters(), &JinjaTextFilters()}) {
    if (const auto it = filters->find(name); it != filters->end())
      return it->second(value, arguments, budget);
  }
  return absl::InternalError(absl::StrCat("filter '", name, "' is listed but not there"));
}

absl::StatusOr<bool> ApplyJinjaTest(absl::string_view name, const JinjaValue& value,
                                    const JinjaArguments& arguments, JinjaBudget& budget) {
  TANDEM_RETURN_IF_ERROR(budget.Step());
  const JinjaSignature* const signature = FindJinjaTest(name);
  if (signature == nullptr)
    return absl::UnimplementedError(absl::StrCat("test '", name, "' is not supported"));
  TANDEM_RETURN_IF_ERROR(CheckJinjaCall(*signature, absl::StrCat("test '", name, "'"), arguments));
  if (const std::optional<bool> holds = SimpleTest(name, value)) return *holds;
  if (name == "filter" || name == "test") {
    if (!value.IsUndefined()) TANDEM_RETURN_IF_ERROR(CheckJinjaKey(value));
    if (value.AsString() == nullptr) return false;
    return (name == "filter" ? FindJinjaFilter(*value.AsString()) : FindJinjaTest(*value.AsString())) !=
           nullptr;
  }
  if (name == "lower" || name == "upper") {
    TANDEM_ASSIGN_OR_RETURN(const std::string text, JinjaToText(value, budget));
    return name == "lower" ? PythonIsLower(text) : PythonIsUpper(text);
  }
  if (name == "odd" || name == "even") {
    TANDEM_ASSIGN_OR_RETURN(const JinjaValue rest, JinjaArithmetic("%", value, JinjaValue::Int(2), budget));
    return JinjaEqual(rest, JinjaValue::Int(name == "odd" ? 1 : 0), budget);
  }
  const JinjaValue& other = *arguments.Find(0, name == "divisibleby" ? "num" : "other");
  if (name == "in") return JinjaContains(other, value, budget);
  if (name == "sameas") return IsSame(value, other);
  if (name == "divisibleby") {
    TANDEM_ASSIGN_OR_RETURN(const JinjaValue rest, JinjaArithmetic("%", value, other, budget));
    return JinjaEqual(rest, JinjaValue::Int(0), budget);
  }
  if (name == "eq" || name == "==" || name == "equalto") return JinjaEqual(value, other, budget);
  if (name == "ne" || name == "!=") {
    TANDEM_ASSIGN_OR_RETURN(const bool same, JinjaEqual(value, other, budget));
    return !same;
  }
  const bool is_less = absl::StartsWith(name, "l") || absl::StartsWith(name, "<");
  const bool or_equal = absl::EndsWith(name, "=") || name == "le" || name == "ge";
  // Python asks one way for < and >=, the other for > and <=.
  TANDEM_ASSIGN_OR_RETURN(const bool holds, is_less != or_equal ? JinjaLess(value, other, budget)
                                                                : JinjaLess(other, value, budget));
  return holds != or_equal;
}

}  // namespace tandem
