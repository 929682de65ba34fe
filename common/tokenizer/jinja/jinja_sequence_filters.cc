#include "common/tokenizer/jinja/jinja_sequence_filters.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/jinja/jinja_interpreter.h"
#include "common/tokenizer/jinja/python_text.h"

namespace tandem {
namespace {

using Result = absl::StatusOr<JinjaValue>;

// The keys by which items are sorted or compared: the items themselves or a member, in lower case unless
// `case_sensitive`.
absl::StatusOr<std::vector<JinjaValue>> KeysOf(const JinjaValue::Items& items, const JinjaValue* attribute,
                                               bool case_sensitive, JinjaBudget& budget) {
  std::vector<JinjaValue> keys;
  for (const JinjaValue& item : items) {
    TANDEM_RETURN_IF_ERROR(budget.Step());
    JinjaValue key = item;
    if (attribute != nullptr) {
      TANDEM_ASSIGN_OR_RETURN(key, JinjaMemberAt(item, *attribute, budget));
    }
    if (key.AsString() != nullptr && !case_sensitive) {
      TANDEM_RETURN_IF_ERROR(budget.Bytes(key.AsString()->size()));
      key = JinjaValue::String(PythonLower(*key.AsString()));
    }
    keys.push_back(std::move(key));
  }
  return keys;
}

// The sorted order of `keys`, as indices. Equal keys keep their order.
absl::StatusOr<std::vector<size_t>> OrderOf(const std::vector<JinjaValue>& keys, bool reverse,
                                            JinjaBudget& budget) {
  std::vector<size_t> order(keys.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  absl::Status failed;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (!failed.ok()) return false;
    const absl::StatusOr<bool> less =
        reverse ? JinjaLess(keys[b], keys[a], budget) : JinjaLess(keys[a], keys[b], budget);
    failed = less.status();
    return less.ok() && *less;
  });
  TANDEM_RETURN_IF_ERROR(failed);
  return order;
}

Result SortFilter(const JinjaValue& value, const JinjaArguments& arguments, JinjaBudget& budget) {
  TANDEM_ASSIGN_OR_RETURN(const JinjaValue::Items items, JinjaIterate(value, budget));
  // Several attributes have commas between them.
  const JinjaValue* attribute = arguments.Find(2, "attribute");
  std::vector<JinjaValue> attributes = {attribute == nullptr ? JinjaValue() : *attribute};
  if (attributes[0].AsString() != nullptr) {
    const std::string list = *attributes[0].AsString();
    attributes.clear();
    for (std::string& part : PythonSplit(list, ",", -1))
      attributes.push_back(JinjaValue::String(std::move(part)));
  }
  std::vector<JinjaValue::Items> parts(items.size());
  for (const JinjaValue& part : attributes) {
    TANDEM_ASSIGN_OR_RETURN(const std::vector<JinjaValue> keys,
                            KeysOf(items, &part, arguments.IsSet(1, "case_sensitive"), budget));
    for (size_t i = 0; i < keys.size(); ++i) parts[i].push_back(keys[i]);
  }
  std::vector<JinjaValue> keys;
  for (JinjaValue::Items& part : parts) {
    TANDEM_ASSIGN_OR_RETURN(JinjaValue key, JinjaValue::List(std::move(part)));
    keys.push_back(std::move(key));
  }
  TANDEM_ASSIGN_OR_RETURN(const std::vector<size_t> order,
                          OrderOf(keys, arguments.IsSet(0, "reverse"), budget));
  JinjaValue::Items sorted;
  for (const size_t at : order) sorted.push_back(items[at]);
  return JinjaValue::List(std::move(sorted));
}

Result UniqueFilter(const JinjaValue& value, const JinjaArguments& arguments, JinjaBudget& budget) {
  TANDEM_ASSIGN_OR_RETURN(const JinjaValue::Items items, JinjaIterate(value, budget));
  TANDEM_ASSIGN_OR_RETURN(
      const std::vector<JinjaValue> keys,
      KeysOf(items, arguments.Find(1, "attribute"), arguments.IsSet(0, "case_sensitive"), budget));
  std::vector<size_t> kept;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!keys[i].IsUndefined()) TANDEM_RETURN_IF_ERROR(CheckJinjaKey(keys[i]));
    bool is_known = false;
    for (const size_t before : kept) {
      TANDEM_ASSIGN_OR_RETURN(is_known, JinjaEqual(keys[before], keys[i], budget));
      if (is_known) break;
    }
    if (!is_known) kept.push_back(i);
  }
  JinjaValue::Items unique;
  for (const size_t at : kept) unique.push_back(items[at]);
  return JinjaValue::List(std::move(unique));
}

Result GroupByFilter(const JinjaValue& value, const JinjaArguments& arguments, JinjaBudget& budget) {
  const JinjaValue* attribute = arguments.Find(0, "attribute");
  const JinjaValue* fallback = arguments.Find(1, "default");
  if (attribute == nullptr) return absl::InvalidArgumentError("groupby expects an attribute");
  TANDEM_ASSIGN_OR_RETURN(const JinjaValue::Items items, JinjaIterate(value, budget));
  std::vector<JinjaValue> shown;
  for (const JinjaValue& item : items) {
    TANDEM_ASSIGN_OR_RETURN(JinjaValue key, JinjaMemberAt(item, *attribute, budget, fallback));
    shown.push_back(std::move(key));
  }
  TANDEM_ASSIGN_OR_RETURN(const std::vector<JinjaValue> keys,
                          KeysOf(shown, nullptr, arguments.IsSet(2, "case_sensitive"), budget));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<size_t> order, OrderOf(keys, /*reverse=*/false, budget));
  JinjaValue::Items groups;
  for (size_t begin = 0; begin < order.size();) {
    JinjaValue::Items group;
    size_t end = begin;
    for (; end < order.size(); ++end) {
      TANDEM_ASSIGN_OR_RETURN(const bool same, JinjaEqual(keys[order[begin]], keys[order[end]], budget));
      if (!same) break;
      group.push_back(items[order[end]]);
    }
    TANDEM_ASSIGN_OR_RETURN(JinjaValue list, JinjaValue::List(std::move(group)));
    TANDEM_ASSIGN_OR_RETURN(JinjaValue pair,
                            JinjaValue::List({shown[order[begin]], std::move(list)}, JinjaValue::kGroup));
    groups.push_back(std::move(pair));
    begin = end;
  }
  return JinjaValue::List(std::move(groups));
}

Result DictSortFilter(const JinjaValue& value, const JinjaArguments& arguments, JinjaBudget& budget) {
  if (value.AsDict() == nullptr) return absl::InvalidArgumentError("dictsort expects a dict");
  const JinjaValue* by = arguments.Find(1, "by");
  const bool by_value = by != nullptr && by->AsString() != nullptr && *by->AsString() == "value";
  if (by != nullptr && !by_value && (by->AsString() == nullptr || *by->AsString() != "key"))
    return absl::InvalidArgumentError("dictsort: by must be 'key' or 'value'");
  TANDEM_ASSIGN_OR_RETURN(const JinjaValue pairs, CallJinjaMethod(value, "items", {}, budget));
  TANDEM_ASSIGN_OR_RETURN(
      const std::vector<JinjaValue> keys, [&]() -> absl::StatusOr<std::vector<JinjaValue>> {
        const JinjaValue place = JinjaValue::Int(by_value ? 1 : 0);
        return KeysOf(*pairs.AsItems(), &place, arguments.IsSet(0, "case_sensitive"), budget);
      }());
  TANDEM_ASSIGN_OR_RETURN(const std::vector<size_t> order,
                          OrderOf(keys, arguments.IsSet(2, "reverse"), budget));
  JinjaValue::Items sorted;
  for (const size_t at : order) sorted.push_back((*pairs.AsItems())[at]);
  return JinjaValue::List(std::move(sorted));
}

Result Extreme(const JinjaValue& value, const JinjaArguments& arguments, bool greatest, JinjaBudget& budget) {
  TANDEM_ASSIGN_OR_RETURN(const JinjaValue::Items items, JinjaIterate(value, budget));
  if (items.empty()) return JinjaValue::Undefined("No aggregated item, sequence was empty.");
  TANDEM_ASSIGN_OR_RETURN(
      const std::vector<JinjaValue> keys,
      KeysOf(items, arguments.Find(1, "attribute"), arguments.IsSet(0, "case_sensitive"), budget));
  size_t best = 0;
  for (size_t i = 1; i < keys.size(); ++i) {
    TANDEM_ASSIGN_OR_RETURN(const bool better, greatest ? JinjaLess(keys[best], keys[i], budget)
                                                        : JinjaLess(keys[i], keys[best], budget));
    if (better) best = i;
  }
  return items[best];
}

Result SumFilter(const JinjaValue& value, const JinjaArguments& arguments, JinjaBudget& budget) {
  TANDEM_ASSIGN_OR_RETURN(const JinjaValue::Items items, JinjaIterate(value, budget));
  const JinjaValue* attribute = arguments.Find(0, "attribute");
  const JinjaValue* start = arguments.Find(1, "start");
  JinjaValue sum = start == nullptr ? JinjaValue::Int(0) : *start;
  for (const JinjaValue& item : items) {
    JinjaValue term = item;
    if (attribute != nullptr) {
      TANDEM_ASSIGN_OR_RETURN(term, JinjaMemberAt(item, *attribute, budget));
    }
    TANDEM_ASSIGN_OR_RETURN(sum, JinjaArithmetic("+", sum, term, budget));
  }
  return sum;
}

// The value as a number; null if it is none.
const double* NumberOf(const JinjaValue& value, double& storage) {
  if (const bool* flag = value.As<bool>()) {
    storage = *flag ? 1.0 : 0.0;
  } else if (const int64_t* integer = value.As<int64_t>()) {
    storage = static_cast<double>(*integer);
  } else if (const double* number = value.As<double>()) {
    storage = *number;
  } else {
    const std::optional<double> parsed =
        value.AsString() == nullptr ? std::nullopt : PythonFloat(*value.AsString());
    if (!parsed.has_value()) return nullptr;
    storage = *parsed;
  }
  return &storage;
}

Result FloatFilter(const JinjaValue& value, const JinjaArguments& arguments, JinjaBudget&) {
  if (const auto* undefined = value.As<JinjaUndefined>())
    return absl::InvalidArgumentError(absl::StrCat("'", undefined->name, "' is undefined"));
  double number = 0.0;
  if (NumberOf(value, number) != nullptr) return JinjaValue::Float(number);
  const JinjaValue* fallback = arguments.Find(0, "default");
  return fallback == nullptr ? JinjaValue::Float(0.0) : *fallback;
}

// Rounds as Python does: half to even, for the exact value of the binary number.
Result RoundFilter(const JinjaValue& value, const JinjaArguments& arguments, JinjaBudget&) {
  double number = 0.0;
  if (value.AsString() != nullptr || NumberOf(value, number) == nullptr) {
    return absl::InvalidArgumentError("round expects a number");
  }
  const JinjaValue* digits = arguments.Find(0, "precision");
  const int64_t precision =
      digits == nullptr || digits->As<int64_t>() == nullptr ? 0 : *digits->As<int64_t>();
  const JinjaValue* given = arguments.Find(1, "method");
  const std::string method = given == nullptr || given->AsString() == nullptr ? "common" : *given->AsString();
  if (precision < -300 || precision > 15)
    return absl::InvalidArgumentError("round expects a precision up to 15");
  const double scale = std::pow(10.0, static_cast<double>(precision));
  if (method == "ceil" || method == "floor") {
    if (!std::isfinite(number)) return absl::InvalidArgumentError("round expects a finite number");
    // Python rounds to an integer, which has no negative zero.
    const double rounded = method == "ceil" ? std::ceil(number * scale) : std::floor(number * scale);
    return JinjaValue::Float(rounded == 0 ? 0.0 : rounded / scale);
  }
  if (method != "common") return absl::InvalidArgumentError("round: method must be common, ceil or floor");
  if (value.As<double>() == nullptr) {
    // An integer stays an integer.
    return JinjaValue::Int(
        static_cast<int64_t>(precision >= 0 ? number : std::nearbyint(number * scale) / scale));
  }
  if (precision <= 0) return JinjaValue::Float(std::nearbyint(number * scale) / scale);
  double rounded = number;
  char text[400];
  std::snprintf(text, sizeof(text), "%.*f", static_cast<int>(precision), number);
  return absl::SimpleAtod(text, &rounded) ? JinjaValue::Float(rounded) : value;
}

Result AbsFilter(const JinjaValue& value, const JinjaArguments&, JinjaBudget& budget) {
  if (const int64_t* integer = value.As<int64_t>()) {
    return *integer < 0 ? JinjaArithmetic("-", JinjaValue::Int(0), value, budget) : value;
  }
  double number = 0.0;
  if (value.AsString() != nullptr || NumberOf(value, number) == nullptr) {
    return absl::InvalidArgumentError("abs expects a number");
  }
  return value.As<bool>() != nullptr ? JinjaValue::Int(static_cast<int64_t>(number))
                                     : JinjaValue::Float(std::fabs(number));
}

}  // namespace

absl::StatusOr<JinjaValue> JinjaMemberAt(const JinjaValue& value, const JinjaValue& path, JinjaBudget& budget,
                                         const JinjaValue* fallback) {
  if (fallback != nullptr && fallback->IsNone()) fallback = nullptr;
  const auto member = [&](const JinjaValue& of, const JinjaValue& key) -> Result {
    TANDEM_ASSIGN_OR_RETURN(JinjaValue found, JinjaItem(of, key, budget));
    return found.IsUndefined() && fallback != nullptr ? *fallback : std::move(found);
  };
  if (path.IsNone()) return value;
  if (path.AsString() == nullptr) return member(value, path);
  JinjaValue result = value;
  for (const std::string& part : PythonSplit(*path.AsString(), ".", -1)) {
    int64_t index = 0;
    const bool is_index = PythonIsDecimal(part) && absl::SimpleAtoi(part, &index);
    const JinjaValue key = is_index ? JinjaValue::Int(index) : JinjaValue::String(part);
    TANDEM_ASSIGN_OR_RETURN(result, member(result, key));
  }
  return result;
}

const absl::flat_hash_map<absl::string_view, JinjaFilter>& JinjaSequenceFilters() {
  static const auto* filters = new absl::flat_hash_map<absl::string_view, JinjaFilter>{
      {"sort", SortFilter},
      {"unique", UniqueFilter},
      {"groupby", GroupByFilter},
      {"dictsort", DictSortFilter},
      {"min",
       [](const JinjaValue& v, const JinjaArguments& a, JinjaBudget& b) { return Extreme(v, a, false, b); }},
      {"max",
       [](const JinjaValue& v, const JinjaArguments& a, JinjaBudget& b) { return Extreme(v, a, true, b); }},
      {"sum", SumFilter},
      {"float", FloatFilter},
      {"round", RoundFilter},
      {"abs", AbsFilter},
  };
  return *filters;
}

}  // namespace tandem
