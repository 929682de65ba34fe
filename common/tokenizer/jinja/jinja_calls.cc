// The calls of a template: functions, macros, methods, loops.

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/civil_time.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/jinja/jinja_interpreter.h"

namespace tandem {
namespace {

constexpr int kMaxCallDepth = 24;
constexpr int64_t kMaxRange = 100'000;  // as Jinja's sandbox has it

absl::Status TooManyCalls() {
  return absl::InvalidArgumentError("macros call one another too deeply");
}

}  // namespace

JinjaValue JinjaInterpreter::MacroValue(const JinjaMacro& macro) {
  if (held_frames_.empty() || held_frames_.back() != frame_) held_frames_.push_back(frame_);
  return JinjaValue(JinjaValue::Variant(std::make_shared<const JinjaCallable>(JinjaCallable{
      .kind = JinjaCallable::Kind::kMacro, .name = macro.name, .macro = &macro, .frame = frame_})));
}

JinjaInterpreter::Result JinjaInterpreter::Call(const JinjaValue& callee, const JinjaArguments& arguments) {
  if (const auto* loop = callee.As<std::shared_ptr<const JinjaLoop>>()) return CallLoop(**loop, arguments);
  if (const auto* object = callee.As<std::shared_ptr<JinjaNamespace>>();
      object != nullptr && (*object)->kind == JinjaNamespace::Kind::kJoiner) {
    // Nothing the first time.
    return (*object)->position++ == 0 ? JinjaValue::String("") : (*object)->items[0];
  }
  const auto* callable = callee.As<std::shared_ptr<const JinjaCallable>>();
  if (callable == nullptr) {
    const auto* undefined = callee.As<JinjaUndefined>();
    return absl::InvalidArgumentError(undefined != nullptr
                                          ? absl::StrCat("'", undefined->name, "' is undefined")
                                          : absl::StrCat(callee.TypeName(), " cannot be called"));
  }
  switch ((*callable)->kind) {
    case JinjaCallable::Kind::kFunction:
      return CallFunction((*callable)->name, arguments);
    case JinjaCallable::Kind::kMethod: {
      const auto* loop = (*callable)->self.As<std::shared_ptr<const JinjaLoop>>();
      if (loop != nullptr && (*callable)->name == "changed") return HasChanged(**loop, arguments);
      return CallJinjaMethod((*callable)->self, (*callable)->name, arguments, budget_);
    }
    case JinjaCallable::Kind::kMacro:
      return CallMacro(**callable, arguments);
  }
  return absl::InternalError("unknown kind of callable");
}

JinjaInterpreter::Result JinjaInterpreter::CallLoop(const JinjaLoop& loop, const JinjaArguments& arguments) {
  if (loop.state->recursive == nullptr)
    return absl::InvalidArgumentError("the loop is called, expected one that is marked recursive");
  if (arguments.positional.size() != 1 || !arguments.named.empty())
    return absl::InvalidArgumentError("loop(...) expects one argument");
  if (call_depth_ >= kMaxCallDepth) return TooManyCalls();
  ++call_depth_;
  std::string outer = std::exchange(output_, std::string());
  {
    const Inside inside(*this, loop.state->frame);
    TANDEM_RETURN_IF_ERROR(
        RunLoop(*loop.state->recursive, arguments.positional[0], loop.state->depth + 1).status());
  }
  --call_depth_;
  TANDEM_RETURN_IF_ERROR(budget_.Bytes(output_.size()));
  return JinjaValue::String(std::exchange(output_, std::move(outer)));
}

JinjaInterpreter::Result JinjaInterpreter::HasChanged(const JinjaLoop& loop,
                                                      const JinjaArguments& arguments) {
  JinjaLoopState& state = *loop.state;
  TANDEM_RETURN_IF_ERROR(budget_.Bytes((arguments.positional.size() + 1) * sizeof(JinjaValue)));
  bool same = state.has_changed && state.last_changed.size() == arguments.positional.size();
  for (size_t i = 0; same && i < arguments.positional.size(); ++i) {
    TANDEM_ASSIGN_OR_RETURN(same, JinjaEqual(state.last_changed[i], arguments.positional[i], budget_));
  }
  if (same) return JinjaValue::Bool(false);
  if (!std::exchange(state.has_changed, true)) held_loops_.push_back(loop.state);
  state.last_changed = arguments.positional;
  return JinjaValue::Bool(true);
}

JinjaInterpreter::Result JinjaInterpreter::CallFunction(const std::string& name,
                                                        const JinjaArguments& arguments) {
  if (name == "range") return MakeRange(arguments);
  if (name == "namespace") return MakeNamespace(arguments);
  if (name == "dict") return MakeDict(arguments);
  if (name == "cycler") {
    if (arguments.positional.empty()) return absl::InvalidArgumentError("cycler expects at least one item");
    return MakeObject(JinjaNamespace::Kind::kCycler, arguments.positional);
  }
  if (name == "joiner") {
    const JinjaValue* separator = arguments.Find(0, "sep");
    return MakeObject(JinjaNamespace::Kind::kJoiner,
                      {separator == nullptr ? JinjaValue::String(", ") : *separator});
  }
  const JinjaValue* first = arguments.Find(0, name == "raise_exception" ? "message" : "format");
  if (first == nullptr) return absl::InvalidArgumentError(absl::StrCat(name, " expects an argument"));
  TANDEM_ASSIGN_OR_RETURN(const std::string text, JinjaToText(*first, budget_));
  if (name == "raise_exception") {
    error_is_placed_ = true;  // a template's own error message goes to the user unchanged
    return absl::InvalidArgumentError(text);
  }
  return TimeNow(text);
}

// As Python's strftime shows a time without zone. absl::FormatTime knows the other letters.
JinjaInterpreter::Result JinjaInterpreter::TimeNow(const std::string& format) const {
  std::string known;
  for (size_t i = 0; i < format.size(); ++i) {
    const char next = format[i] == '%' && i + 1 < format.size() ? format[i + 1] : '\0';
    if (next == 'f') {
      absl::StrAppendFormat(&known, "%06d", absl::ToUnixMicros(*now_) % 1'000'000);
    } else if (next != 'z' && next != 'Z' && next != '\0') {
      absl::StrAppend(&known, format.substr(i, 2));
    } else if (next == '\0') {
      known += format[i];
      continue;
    }
    ++i;
  }
  return JinjaValue::String(absl::FormatTime(known, *now_, absl::UTCTimeZone()));
}

JinjaInterpreter::Result JinjaInterpreter::CallMacro(const JinjaCallable& callable,
                                                     const JinjaArguments& arguments) {
  const JinjaMacro& macro = *callable.macro;
  if (call_depth_ >= kMaxCallDepth) return TooManyCalls();
  const size_t num_parameters = macro.parameters.size();
  if (arguments.positional.size() > num_parameters && !macro.uses_varargs) {
    return absl::InvalidArgumentError(absl::StrCat("macro '", macro.name, "' takes fewer arguments"));
  }
  const Inside inside(*this, callable.frame);
  JinjaScope& names = frame_->names;
  JinjaValue::Members others;
  if (macro.uses_caller) names["caller"] = JinjaValue::Undefined("caller");
  for (const auto& [name, value] : arguments.named) {
    const auto found =
        std::find_if(macro.parameters.begin(), macro.parameters.end(),
                     [&name = name](const auto& parameter) { return parameter.first == name; });
    if (found != macro.parameters.end()) {
      if (static_cast<size_t>(found - macro.parameters.begin()) < arguments.positional.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("macro '", macro.name, "': parameter '", name, "' a second time"));
      }
    } else if (name == "caller" && macro.uses_caller) {
      names["caller"] = value;
    } else if (macro.uses_kwargs) {
      others.emplace_back(JinjaValue::String(name), value);
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("macro '", macro.name, "' has no parameter '", name, "'"));
    }
  }
  ++call_depth_;
  for (size_t i = 0; i < num_parameters; ++i) {
    const auto& [name, if_absent] = macro.parameters[i];
    JinjaValue value = JinjaValue::Undefined(name);
    if (const JinjaValue* given = arguments.Find(i, name)) {
      value = *given;
    } else if (if_absent != nullptr) {
      TANDEM_ASSIGN_OR_RETURN(value, Evaluate(*if_absent));
    }
    names[name] = std::move(value);
  }
  if (macro.uses_varargs) {
    JinjaValue::Items rest;
    if (arguments.positional.size() > num_parameters) {
      rest.assign(arguments.positional.begin() + static_cast<ptrdiff_t>(num_parameters),
                  arguments.positional.end());
    }
    TANDEM_ASSIGN_OR_RETURN(names["varargs"], JinjaValue::List(std::move(rest), JinjaValue::kTuple));
  }
  if (macro.uses_kwargs) {
    TANDEM_ASSIGN_OR_RETURN(names["kwargs"], JinjaValue::Dict(std::move(others)));
  }
  std::string outer = std::exchange(output_, std::string());
  TANDEM_RETURN_IF_ERROR(Execute(macro.body).status());
  --call_depth_;
  TANDEM_RETURN_IF_ERROR(budget_.Bytes(output_.size()));
  return JinjaValue::String(std::exchange(output_, std::move(outer)));
}

JinjaInterpreter::Result JinjaInterpreter::MakeObject(JinjaNamespace::Kind kind, JinjaValue::Items items) {
  TANDEM_RETURN_IF_ERROR(budget_.Bytes(sizeof(JinjaNamespace) + items.size() * sizeof(JinjaValue)));
  auto object = std::make_shared<JinjaNamespace>();
  object->kind = kind;
  object->items = std::move(items);
  namespaces_.push_back(object);
  return JinjaValue(JinjaValue::Variant(std::move(object)));
}

// dict(mapping, name=value...) or dict(pairs, ...).
JinjaInterpreter::Result JinjaInterpreter::MakeDict(const JinjaArguments& arguments) {
  if (arguments.positional.size() > 1) return absl::InvalidArgumentError("dict expects one argument at most");
  JinjaValue::Members members;
  const auto put = [&](const JinjaValue& key, const JinjaValue& value) -> absl::Status {
    TANDEM_RETURN_IF_ERROR(CheckJinjaKey(key));
    TANDEM_RETURN_IF_ERROR(budget_.Bytes(members.size() + sizeof(JinjaValue)));
    const auto it = std::find_if(members.begin(), members.end(),
                                 [&key](const auto& member) { return SameJinjaKey(member.first, key); });
    if (it != members.end()) {
      it->second = value;
    } else {
      members.emplace_back(key, value);
    }
    return absl::OkStatus();
  };
  if (!arguments.positional.empty() && arguments.positional[0].AsDict() != nullptr) {
    for (const auto& [key, value] : arguments.positional[0].AsDict()->members)
      TANDEM_RETURN_IF_ERROR(put(key, value));
  } else if (!arguments.positional.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const JinjaValue::Items pairs, JinjaIterate(arguments.positional[0], budget_));
    for (const JinjaValue& pair : pairs) {
      TANDEM_ASSIGN_OR_RETURN(const JinjaValue::Items two, JinjaIterate(pair, budget_));
      if (two.size() != 2) return absl::InvalidArgumentError("dict expects pairs");
      TANDEM_RETURN_IF_ERROR(put(two[0], two[1]));
    }
  }
  for (const auto& [name, value] : arguments.named)
    TANDEM_RETURN_IF_ERROR(put(JinjaValue::String(name), value));
  return JinjaValue::Dict(std::move(members));
}

JinjaInterpreter::Result JinjaInterpreter::MakeRange(const JinjaArguments& arguments) {
  int64_t values[3] = {0, 0, 1};
  const size_t count = arguments.positional.size();
  if (count < 1 || count > 3) return absl::InvalidArgumentError("range expects one to three integers");
  for (size_t i = 0; i < count; ++i) {
    const int64_t* value = arguments.positional[i].As<int64_t>();
    constexpr int64_t kMaxBound = int64_t{1} << 40;
    if (value == nullptr || *value < -kMaxBound || *value > kMaxBound) {
      return absl::InvalidArgumentError("range expects integers of at most 2^40");
    }
    values[count == 1 ? 1 : i] = *value;
  }
  const auto [begin, end, step] = values;
  if (step == 0) return absl::InvalidArgumentError("the step of a range is zero");
  const int64_t span = step > 0 ? end - begin : begin - end;
  const int64_t stride = step > 0 ? step : -step;
  const int64_t length = span <= 0 ? 0 : (span + stride - 1) / stride;
  if (length > kMaxRange) {
    return absl::ResourceExhaustedError(absl::StrCat("a range has more than ", kMaxRange, " items"));
  }
  TANDEM_RETURN_IF_ERROR(budget_.Bytes(static_cast<size_t>(length) * sizeof(JinjaValue)));
  JinjaValue::Items items;
  for (int64_t i = 0; i < length; ++i) items.push_back(JinjaValue::Int(begin + i * step));
  std::string shown =
      absl::StrCat("range(", begin, ", ", end, step == 1 ? "" : absl::StrCat(", ", step), ")");
  return JinjaValue::List(std::move(items), std::move(shown));
}

JinjaInterpreter::Result JinjaInterpreter::MakeNamespace(const JinjaArguments& arguments) {
  auto names = std::make_shared<JinjaNamespace>();
  TANDEM_RETURN_IF_ERROR(budget_.Bytes(sizeof(JinjaNamespace)));
  namespaces_.push_back(names);
  for (const JinjaValue& source : arguments.positional) {
    if (source.AsDict() == nullptr)
      return absl::InvalidArgumentError("namespace expects a dict or named arguments");
    for (const auto& [name, value] : source.AsDict()->members) {
      if (name.AsString() == nullptr) return absl::InvalidArgumentError("namespace expects names as keys");
      names->members[*name.AsString()] = value;
    }
  }
  for (const auto& [name, value] : arguments.named) names->members[name] = value;
  return JinjaValue(JinjaValue::Variant(std::move(names)));
}

}  // namespace tandem
