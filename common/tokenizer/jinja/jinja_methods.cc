#include "common/tokenizer/jinja/jinja_builtins.h"

#include <algorithm>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/jinja/python_text.h"

namespace tandem {
namespace {

constexpr absl::string_view kStringMethods[] = {
    "strip", "lstrip",  "rstrip",     "split", "startswith", "endswith",   "upper", "lower",
    "title", "replace", "capitalize", "find",  "count",      "splitlines", "join",  "isdigit"};
constexpr absl::string_view kDictMethods[] = {"items", "keys", "values", "get"};
constexpr absl::string_view kListMethods[] = {"index", "count"};

template <size_t N>
bool IsOneOf(const absl::string_view (&names)[N], absl::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

absl::StatusOr<std::optional<absl::string_view>> OptionalText(const JinjaArguments& arguments, size_t index,
                                                              absl::string_view name) {
  const JinjaValue* value = arguments.Find(index, name);
  if (value == nullptr || value->IsNone()) return std::nullopt;
  if (value->AsString() == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("expected a string, found ", value->TypeName()));
  }
  return std::optional<absl::string_view>(*value->AsString());
}

absl::StatusOr<absl::string_view> RequiredText(const JinjaArguments& arguments, size_t index,
                                               absl::string_view name) {
  TANDEM_ASSIGN_OR_RETURN(const std::optional<absl::string_view> text, OptionalText(arguments, index, name));
  if (!text.has_value()) return absl::InvalidArgumentError(absl::StrCat("argument '", name, "' is missing"));
  return *text;
}

absl::StatusOr<JinjaValue> TextList(std::vector<std::string> parts, JinjaBudget& budget) {
  TANDEM_RETURN_IF_ERROR(budget.Bytes(parts.size() * sizeof(JinjaValue)));
  JinjaValue::Items items;
  items.reserve(parts.size());
  for (std::string& part : parts) items.push_back(JinjaValue::String(std::move(part)));
  return JinjaValue::List(std::move(items));
}

absl::StatusOr<JinjaValue> HasAffix(const std::string& text, bool at_start, const JinjaArguments& arguments,
                                    JinjaBudget& budget) {
  const auto matches = [&](absl::string_view affix) {
    return at_start ? absl::StartsWith(text, affix) : absl::EndsWith(text, affix);
  };
  const JinjaValue* affix = arguments.Find(0, "prefix");
  if (affix == nullptr || (affix->AsString() == nullptr && affix->AsItems() == nullptr)) {
    return absl::InvalidArgumentError("startswith and endswith expect a string or several");
  }
  if (affix->AsString() != nullptr) return JinjaValue::Bool(matches(*affix->AsString()));
  for (const JinjaValue& choice : *affix->AsItems()) {
    TANDEM_RETURN_IF_ERROR(budget.Step());
    if (choice.AsString() != nullptr && matches(*choice.AsString())) return JinjaValue::Bool(true);
  }
  return JinjaValue::Bool(false);
}

absl::StatusOr<JinjaValue> SplitText(const std::string& text, const JinjaArguments& arguments,
                                     JinjaBudget& budget) {
  TANDEM_ASSIGN_OR_RETURN(const std::optional<absl::string_view> separator,
                          OptionalText(arguments, 0, "sep"));
  if (separator.has_value() && separator->empty())
    return absl::InvalidArgumentError("split at an empty string");
  int64_t max_splits = -1;
  if (const JinjaValue* limit = arguments.Find(1, "maxsplit")) {
    if (limit->As<int64_t>() == nullptr) return absl::InvalidArgumentError("maxsplit is not an integer");
    max_splits = *limit->As<int64_t>();
  }
  // Charged in advance: at worst, every byte is a part.
  TANDEM_RETURN_IF_ERROR(budget.Bytes(separator.has_value() ? text.size() / separator->size() : text.size()));
  return TextList(PythonSplit(text, separator, max_splits), budget);
}

absl::StatusOr<JinjaValue> ReplaceText(const std::string& text, const JinjaArguments& arguments,
                                       JinjaBudget& budget) {
  TANDEM_ASSIGN_OR_RETURN(const absl::string_view old, RequiredText(arguments, 0, "old"));
  TANDEM_ASSIGN_OR_RETURN(const absl::string_view replacement, RequiredText(arguments, 1, "new"));
  if (old.empty()) return absl::InvalidArgumentError("replace of an empty string");
  int64_t left = -1;
  if (const JinjaValue* limit = arguments.Find(2, "count"); limit != nullptr && !limit->IsNone()) {
    if (limit->As<int64_t>() == nullptr) return absl::InvalidArgumentError("count is not an integer");
    left = *limit->As<int64_t>();
  }
  std::string out;
  absl::string_view rest = text;
  while (left != 0) {
    const size_t at = rest.find(old);
    if (at == absl::string_view::npos) break;
    TANDEM_RETURN_IF_ERROR(budget.Bytes(at + replacement.size() + 1));
    out.append(rest.data(), at);
    out.append(replacement.data(), replacement.size());
    rest.remove_prefix(at + old.size());
    --left;
  }
  out.append(rest.data(), rest.size());
  return JinjaValue::String(std::move(out));
}

absl::StatusOr<JinjaValue> CountText(const std::string& text, const JinjaArguments& arguments) {
  TANDEM_ASSIGN_OR_RETURN(const absl::string_view part, RequiredText(arguments, 0, "sub"));
  if (part.empty()) return JinjaValue::Int(static_cast<int64_t>(CountCharacters(text)) + 1);
  int64_t count = 0;
  for (size_t at = text.find(part.data(), 0, part.size()); at != std::string::npos;
       at = text.find(part.data(), at + part.size(), part.size())) {
    ++count;
  }
  return JinjaValue::Int(count);
}

absl::StatusOr<JinjaValue> CallStringMethod(const std::string& text, absl::string_view name,
                                            const JinjaArguments& arguments, JinjaBudget& budget) {
  TANDEM_RETURN_IF_ERROR(budget.Bytes(text.size()));
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    TANDEM_ASSIGN_OR_RETURN(const std::optional<absl::string_view> characters,
                            OptionalText(arguments, 0, "chars"));
    if (characters.has_value()) TANDEM_RETURN_IF_ERROR(budget.Bytes(characters->size() * text.size()));
    const StripSide side = name == "strip"    ? StripSide::kBoth
                           : name == "lstrip" ? StripSide::kLeft
                                              : StripSide::kRight;
    return JinjaValue::String(std::string(PythonStrip(text, characters, side)));
  }
  if (name == "startswith") return HasAffix(text, true, arguments, budget);
  if (name == "endswith") return HasAffix(text, false, arguments, budget);
  if (name == "split") return SplitText(text, arguments, budget);
  if (name == "replace") return ReplaceText(text, arguments, budget);
  if (name == "upper") return JinjaValue::String(PythonUpper(text));
  if (name == "lower") return JinjaValue::String(PythonLower(text));
  if (name == "title") return JinjaValue::String(PythonTitle(text));
  if (name == "capitalize") return JinjaValue::String(PythonCapitalize(text));
  if (name == "count") return CountText(text, arguments);
  if (name == "find") {
    TANDEM_ASSIGN_OR_RETURN(const absl::string_view part, RequiredText(arguments, 0, "sub"));
    const size_t at = absl::string_view(text).find(part);
    if (at == absl::string_view::npos) return JinjaValue::Int(-1);
    return JinjaValue::Int(static_cast<int64_t>(CountCharacters(absl::string_view(text).substr(0, at))));
  }
  if (name == "splitlines") {
    std::vector<std::string> lines =
        PythonSplit(absl::StrReplaceAll(text, {{"\r\n", "\n"}, {"\r", "\n"}}), "\n", -1);
    if (lines.back().empty()) lines.pop_back();
    return TextList(std::move(lines), budget);
  }
  if (name == "isdigit") {
    const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
    return JinjaValue::Bool(!text.empty() && std::all_of(text.begin(), text.end(), is_digit));
  }
  // The only remaining method is join.
  const JinjaValue* parts = arguments.Find(0, "iterable");
  if (parts == nullptr) return absl::InvalidArgumentError("join expects a list");
  return ApplyJinjaFilter("join", *parts, JinjaArguments{{JinjaValue::String(text)}, {}}, budget);
}

absl::StatusOr<JinjaValue> CallDictMethod(const JinjaDict& dict, absl::string_view name,
                                          const JinjaArguments& arguments, JinjaBudget& budget) {
  TANDEM_RETURN_IF_ERROR(budget.Bytes(dict.members.size() * sizeof(JinjaValue)));
  if (name == "get") {
    const JinjaValue* key = arguments.Find(0, "key");
    const JinjaValue* found = key == nullptr ? nullptr : dict.Find(*key);
    if (found != nullptr) return *found;
    const JinjaValue* if_absent = arguments.Find(1, "default");
    return if_absent == nullptr ? JinjaValue() : *if_absent;
  }
  JinjaValue::Items items;
  for (const auto& [key, value] : dict.members) {
    if (name == "keys") {
      items.push_back(key);
    } else if (name == "values") {
      items.push_back(value);
    } else {
      TANDEM_ASSIGN_OR_RETURN(JinjaValue pair, JinjaValue::List({key, value}, JinjaValue::kTuple));
      items.push_back(std::move(pair));
    }
  }
  return JinjaValue::List(std::move(items), absl::StrCat("dict_", name));
}

absl::StatusOr<JinjaValue> CallListMethod(const JinjaValue::Items& items, absl::string_view name,
                                          const JinjaArguments& arguments, JinjaBudget& budget) {
  const JinjaValue* wanted = arguments.Find(0, "value");
  if (wanted == nullptr) return absl::InvalidArgumentError(absl::StrCat(name, " expects a value"));
  int64_t count = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    TANDEM_ASSIGN_OR_RETURN(const bool same, JinjaEqual(items[i], *wanted, budget));
    if (same && name == "index") return JinjaValue::Int(static_cast<int64_t>(i));
    count += same ? 1 : 0;
  }
  if (name == "index") return absl::InvalidArgumentError("the value is not in the list");
  return JinjaValue::Int(count);
}

absl::StatusOr<JinjaValue> LoopAttribute(const JinjaLoop& loop, absl::string_view name) {
  const JinjaValue::Items& items = loop.list->items;
  const size_t index = loop.index;
  const size_t length = items.size();
  if (name == "index") return JinjaValue::Int(static_cast<int64_t>(index + 1));
  if (name == "index0") return JinjaValue::Int(static_cast<int64_t>(index));
  if (name == "revindex") return JinjaValue::Int(static_cast<int64_t>(length - index));
  if (name == "revindex0") return JinjaValue::Int(static_cast<int64_t>(length - index - 1));
  if (name == "length") return JinjaValue::Int(static_cast<int64_t>(length));
  if (name == "first") return JinjaValue::Bool(index == 0);
  if (name == "last") return JinjaValue::Bool(index + 1 == length);
  if (name == "previtem" && index > 0) return items[index - 1];
  if (name == "nextitem" && index + 1 < length) return items[index + 1];
  if (name == "previtem" || name == "nextitem") return JinjaValue::Undefined(name);
  return absl::UnimplementedError(absl::StrCat("loop.", name, " is not supported"));
}

absl::Status UndefinedError(const JinjaValue& value) {
  return absl::InvalidArgumentError(absl::StrCat("'", value.As<JinjaUndefined>()->name, "' is undefined"));
}

}  // namespace

bool HasJinjaMethod(const JinjaValue& self, absl::string_view name) {
  if (self.AsString() != nullptr) return IsOneOf(kStringMethods, name);
  if (self.AsDict() != nullptr) return IsOneOf(kDictMethods, name);
  if (self.AsItems() != nullptr) return IsOneOf(kListMethods, name);
  return false;
}

absl::StatusOr<JinjaValue> CallJinjaMethod(const JinjaValue& self, absl::string_view name,
                                           const JinjaArguments& arguments, JinjaBudget& budget) {
  if (self.AsString() != nullptr) return CallStringMethod(*self.AsString(), name, arguments, budget);
  if (self.AsDict() != nullptr) return CallDictMethod(*self.AsDict(), name, arguments, budget);
  if (self.AsItems() != nullptr) return CallListMethod(*self.AsItems(), name, arguments, budget);
  return absl::InvalidArgumentError(absl::StrCat(self.TypeName(), " has no method '", name, "'"));
}

absl::StatusOr<JinjaValue> JinjaAttribute(const JinjaValue& value, const std::string& name,
                                          JinjaBudget& budget) {
  if (value.IsUndefined()) return UndefinedError(value);
  if (HasJinjaMethod(value, name)) {
    return JinjaValue(JinjaValue::Variant(std::make_shared<const JinjaCallable>(
        JinjaCallable{JinjaCallable::Kind::kMethod, name, value, nullptr})));
  }
  if (const auto* names = value.As<std::shared_ptr<JinjaNamespace>>()) {
    const auto it = (*names)->members.find(name);
    return it == (*names)->members.end() ? JinjaValue::Undefined(name) : it->second;
  }
  if (const auto* loop = value.As<std::shared_ptr<const JinjaLoop>>()) return LoopAttribute(**loop, name);
  if (value.AsDict() != nullptr) return JinjaItem(value, JinjaValue::String(name), budget);
  return JinjaValue::Undefined(name);
}

absl::StatusOr<JinjaValue> JinjaItem(const JinjaValue& value, const JinjaValue& key, JinjaBudget& budget) {
  if (value.IsUndefined()) return UndefinedError(value);
  if (const JinjaDict* dict = value.AsDict()) {
    TANDEM_RETURN_IF_ERROR(budget.Bytes(dict->members.size()));
    const JinjaValue* found = dict->Find(key);
    if (found != nullptr) return *found;
    return JinjaValue::Undefined(key.AsString() == nullptr ? key.TypeName()
                                                           : absl::string_view(*key.AsString()));
  }
  if (key.AsString() != nullptr) {
    return JinjaAttribute(value, *key.AsString(), budget);  // a list or a string has no such items
  }
  const int64_t* index = key.As<int64_t>();
  if (index == nullptr) return JinjaValue::Undefined(key.TypeName());
  const JinjaValue::Items* items = value.AsItems();
  const std::string* text = value.AsString();
  if (items == nullptr && text == nullptr) return JinjaValue::Undefined(absl::StrCat(*index));
  if (text != nullptr) TANDEM_RETURN_IF_ERROR(budget.Bytes(text->size()));
  const auto length = static_cast<int64_t>(text != nullptr ? CountCharacters(*text) : items->size());
  const int64_t at = *index < 0 ? *index + length : *index;
  if (at < 0 || at >= length) return JinjaValue::Undefined(absl::StrCat(*index));
  if (items != nullptr) return (*items)[static_cast<size_t>(at)];
  return JinjaValue::String(std::string(CharacterRange(*text, static_cast<size_t>(at), 1)));
}

}  // namespace tandem
