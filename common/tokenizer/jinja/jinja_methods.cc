#include "common/tokenizer/jinja/jinja_builtins.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/jinja/jinja_catalog.h"
#include "common/tokenizer/jinja/jinja_string_methods.h"
#include "common/tokenizer/jinja/jinja_syntax.h"
#include "common/tokenizer/jinja/python_text.h"

namespace tandem {
namespace {

constexpr absl::string_view kDictMethods[] = {"items", "keys", "values", "get", "copy"};
constexpr absl::string_view kListMethods[] = {"index", "count", "copy"};
constexpr absl::string_view kTupleMethods[] = {"index", "count"};
constexpr absl::string_view kRangeMethods[] = {"index", "count"};
constexpr absl::string_view kLoopMethods[] = {"cycle", "changed"};
constexpr absl::string_view kCyclerMethods[] = {"next", "reset"};
// Jinja's sandbox hides what changes a dict.
constexpr absl::string_view kHiddenDictMethods[] = {"clear", "pop", "popitem", "setdefault", "update"};

template <size_t N>
bool IsOneOf(const absl::string_view (&names)[N], absl::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

const JinjaNamespace* CyclerOf(const JinjaValue& value) {
  const auto* names = value.As<std::shared_ptr<JinjaNamespace>>();
  return names != nullptr && (*names)->kind == JinjaNamespace::Kind::kCycler ? names->get() : nullptr;
}

absl::StatusOr<JinjaValue> CallDictMethod(const JinjaDict& dict, absl::string_view name,
                                          const JinjaArguments& arguments, JinjaBudget& budget) {
  TANDEM_RETURN_IF_ERROR(budget.Bytes(dict.members.size() * sizeof(JinjaValue)));
  const bool is_get = name == "get";
  const JinjaSignature signature =
      is_get ? JinjaSignature{{"key", "default"}, 1, false, true} : JinjaSignature{};
  TANDEM_RETURN_IF_ERROR(CheckJinjaCall(signature, absl::StrCat("dict.", name), arguments));
  if (name == "copy") return JinjaValue::Dict(dict.members);
  if (is_get) {
    const JinjaValue* key = arguments.Find(0, "key");
    if (!key->IsUndefined()) TANDEM_RETURN_IF_ERROR(CheckJinjaKey(*key));
    const JinjaValue* found = dict.Find(*key);
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
  if (name == "copy") {
    TANDEM_RETURN_IF_ERROR(budget.Bytes(items.size() * sizeof(JinjaValue)));
    return JinjaValue::List(items);
  }
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

// loop.cycle, and the methods of a cycler.
absl::StatusOr<JinjaValue> CallCycling(const JinjaValue& self, absl::string_view name,
                                       const JinjaArguments& arguments) {
  if (const auto* loop = self.As<std::shared_ptr<const JinjaLoop>>()) {
    if (arguments.positional.empty()) return absl::InvalidArgumentError("loop.cycle expects values");
    return arguments.positional[(*loop)->index % arguments.positional.size()];
  }
  JinjaNamespace& cycler = **self.As<std::shared_ptr<JinjaNamespace>>();
  if (name == "reset") {
    cycler.position = 0;
    return JinjaValue();
  }
  const JinjaValue value = cycler.items[cycler.position];
  cycler.position = (cycler.position + 1) % cycler.items.size();
  return value;
}

absl::StatusOr<JinjaValue> LoopAttribute(const JinjaLoop& loop, absl::string_view name) {
  const JinjaValue::Items& items = loop.state->list->items;
  const size_t index = loop.index;
  const size_t length = items.size();
  if (name == "index") return JinjaValue::Int(static_cast<int64_t>(index + 1));
  if (name == "index0") return JinjaValue::Int(static_cast<int64_t>(index));
  if (name == "revindex") return JinjaValue::Int(static_cast<int64_t>(length - index));
  if (name == "revindex0") return JinjaValue::Int(static_cast<int64_t>(length - index - 1));
  if (name == "length") return JinjaValue::Int(static_cast<int64_t>(length));
  if (name == "depth") return JinjaValue::Int(static_cast<int64_t>(loop.state->depth + 1));
  if (name == "depth0") return JinjaValue::Int(static_cast<int64_t>(loop.state->depth));
  if (name == "first") return JinjaValue::Bool(index == 0);
  if (name == "last") return JinjaValue::Bool(index + 1 == length);
  if (name == "previtem" && index > 0) return items[index - 1];
  if (name == "nextitem" && index + 1 < length) return items[index + 1];
  return JinjaValue::Undefined(name);
}

absl::StatusOr<JinjaValue> MacroAttribute(const JinjaCallable& callable, absl::string_view name) {
  if (callable.kind != JinjaCallable::Kind::kMacro) return JinjaValue::Undefined(name);
  if (name == "name") return JinjaValue::String(callable.name);
  if (name == "catch_kwargs") return JinjaValue::Bool(callable.macro->uses_kwargs);
  if (name == "catch_varargs") return JinjaValue::Bool(callable.macro->uses_varargs);
  if (name == "caller") return JinjaValue::Bool(callable.macro->uses_caller);
  if (name != "arguments") return JinjaValue::Undefined(name);
  JinjaValue::Items parameters;
  for (const auto& parameter : callable.macro->parameters)
    parameters.push_back(JinjaValue::String(parameter.first));
  return JinjaValue::List(std::move(parameters), JinjaValue::kTuple);
}

// A method of HTML: what it takes is escaped, and what it makes is HTML as well.
absl::StatusOr<JinjaValue> CallMarkupMethod(const std::string& text, absl::string_view name,
                                            const JinjaArguments& arguments, JinjaBudget& budget) {
  const auto escape = [](JinjaValue& value) {
    if (value.AsString() != nullptr && !value.IsMarkup())
      value = JinjaValue::String(JinjaEscaped(*value.AsString()));
  };
  JinjaArguments escaped = arguments;
  if (name == "format") {
    for (JinjaValue& value : escaped.positional) escape(value);
    for (auto& value : escaped.named) escape(value.second);
  } else if (name == "replace" && escaped.positional.size() > 1) {
    escape(escaped.positional[1]);
  } else if (name == "join" && !escaped.positional.empty()) {
    TANDEM_ASSIGN_OR_RETURN(JinjaValue::Items items, JinjaIterate(escaped.positional[0], budget));
    for (JinjaValue& item : items) escape(item);
    TANDEM_ASSIGN_OR_RETURN(escaped.positional[0], JinjaValue::List(std::move(items)));
  }
  TANDEM_ASSIGN_OR_RETURN(const JinjaValue made, CallPythonStringMethod(text, name, escaped, budget));
  if (made.AsString() != nullptr) return JinjaValue::Markup(*made.AsString());
  if (made.AsItems() == nullptr) return made;
  JinjaValue::Items items;
  for (const JinjaValue& item : *made.AsItems()) items.push_back(JinjaValue::Markup(*item.AsString()));
  return JinjaValue::List(std::move(items), made.ListKind());
}

absl::Status UndefinedError(const JinjaValue& value) {
  return absl::InvalidArgumentError(absl::StrCat("'", value.As<JinjaUndefined>()->name, "' is undefined"));
}

}  // namespace

bool HasJinjaMethod(const JinjaValue& self, absl::string_view name) {
  if (self.AsString() != nullptr) return HasPythonStringMethod(name);
  if (self.AsDict() != nullptr) return IsOneOf(kDictMethods, name);
  if (self.AsItems() != nullptr) {
    if (self.ListKind().empty()) return IsOneOf(kListMethods, name);
    if (self.IsTuple()) return IsOneOf(kTupleMethods, name);
    return absl::StartsWith(self.ListKind(), "range(") && IsOneOf(kRangeMethods, name);
  }
  if (self.As<std::shared_ptr<const JinjaLoop>>() != nullptr) return IsOneOf(kLoopMethods, name);
  return CyclerOf(self) != nullptr && IsOneOf(kCyclerMethods, name);
}

absl::StatusOr<JinjaValue> CallJinjaMethod(const JinjaValue& self, absl::string_view name,
                                           const JinjaArguments& arguments, JinjaBudget& budget) {
  if (self.IsMarkup()) return CallMarkupMethod(*self.AsString(), name, arguments, budget);
  if (self.AsString() != nullptr) return CallPythonStringMethod(*self.AsString(), name, arguments, budget);
  if (self.AsDict() != nullptr) return CallDictMethod(*self.AsDict(), name, arguments, budget);
  if (self.AsItems() != nullptr) return CallListMethod(*self.AsItems(), name, arguments, budget);
  return CallCycling(self, name, arguments);
}

absl::StatusOr<JinjaValue> JinjaAttribute(const JinjaValue& value, const std::string& name,
                                          JinjaBudget& budget) {
  if (value.IsUndefined()) return UndefinedError(value);
  if (HasJinjaMethod(value, name)) {
    return JinjaValue(JinjaValue::Variant(std::make_shared<const JinjaCallable>(
        JinjaCallable{.kind = JinjaCallable::Kind::kMethod, .name = name, .self = value})));
  }
  if (const JinjaNamespace* cycler = CyclerOf(value))
    return name == "current" ? cycler->items[cycler->position] : JinjaValue::Undefined(name);
  if (const auto* callable = value.As<std::shared_ptr<const JinjaCallable>>())
    return MacroAttribute(**callable, name);
  if (value.IsTuple() && value.ListKind() == JinjaValue::kGroup && (name == "grouper" || name == "list"))
    return (*value.AsItems())[name == "list" ? 1 : 0];
  if (value.AsDict() != nullptr && IsOneOf(kHiddenDictMethods, name)) return JinjaValue::Undefined(name);
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
  const bool* flag = key.As<bool>();
  const int64_t as_number = flag != nullptr && *flag ? 1 : 0;
  const int64_t* index = flag != nullptr ? &as_number : key.As<int64_t>();
  if (index == nullptr) return JinjaValue::Undefined(key.TypeName());
  const JinjaValue::Items* items = value.AsItems();
  const std::string* text = value.AsString();
  if (items == nullptr && text == nullptr) return JinjaValue::Undefined(absl::StrCat(*index));
  if (text != nullptr) TANDEM_RETURN_IF_ERROR(budget.Bytes(text->size()));
  const auto length = static_cast<int64_t>(text != nullptr ? CountCharacters(*text) : items->size());
  const int64_t at = *index < 0 ? *index + length : *index;
  if (at < 0 || at >= length) return JinjaValue::Undefined(absl::StrCat(*index));
  if (items != nullptr) return (*items)[static_cast<size_t>(at)];
  std::string character(CharacterRange(*text, static_cast<size_t>(at), 1));
  return value.IsMarkup() ? JinjaValue::Markup(std::move(character))
                          : JinjaValue::String(std::move(character));
}

}  // namespace tandem
