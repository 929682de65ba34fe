#include "common/tokenizer/jinja/jinja_interpreter.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

using Expression = JinjaExpression;
using Statement = JinjaStatement;

constexpr int kMaxMacroDepth = 16;
constexpr int64_t kMaxRange = 100'000;  // as Jinja's sandbox has it
constexpr absl::string_view kFunctions[] = {"raise_exception", "range", "namespace", "dict"};

JinjaValue MakeCallable(JinjaCallable callable) {
  return JinjaValue(JinjaValue::Variant(std::make_shared<const JinjaCallable>(std::move(callable))));
}

}  // namespace

JinjaInterpreter::JinjaInterpreter(JinjaScope variables, std::optional<absl::Time> now,
                                   size_t max_output_bytes, JinjaBudget budget)
    : now_(now), max_output_bytes_(max_output_bytes), budget_(budget) {
  scopes_.push_back(std::move(variables));
}

JinjaInterpreter::~JinjaInterpreter() {
  for (const auto& names : namespaces_) names->members.clear();
}

absl::StatusOr<std::string> JinjaInterpreter::Run(const JinjaBody& body) {
  TANDEM_RETURN_IF_ERROR(Execute(body).status());
  return std::move(output_);
}

absl::StatusOr<JinjaInterpreter::Flow> JinjaInterpreter::Execute(const JinjaBody& body) {
  for (const Statement& statement : body) {
    const absl::Status step = budget_.Step();
    absl::StatusOr<Flow> flow = step.ok() ? ExecuteStatement(statement) : absl::StatusOr<Flow>(step);
    if (!flow.ok()) {
      // The innermost statement knows the line best.
      if (std::exchange(error_is_placed_, true)) return flow.status();
      return absl::Status(flow.status().code(),
                          absl::StrCat("line ", statement.line, ": ", flow.status().message()));
    }
    if (*flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

absl::StatusOr<JinjaInterpreter::Flow> JinjaInterpreter::ExecuteStatement(const JinjaStatement& statement) {
  switch (statement.kind) {
    case Statement::Kind::kText:
      TANDEM_RETURN_IF_ERROR(Output(statement.text));
      return Flow::kNormal;
    case Statement::Kind::kOutput: {
      TANDEM_ASSIGN_OR_RETURN(const JinjaValue value, Evaluate(*statement.expression));
      TANDEM_ASSIGN_OR_RETURN(const std::string text, JinjaToText(value, budget_));
      TANDEM_RETURN_IF_ERROR(Output(text));
      return Flow::kNormal;
    }
    case Statement::Kind::kIf:
      return ExecuteIf(statement);
    case Statement::Kind::kFor:
      return ExecuteFor(statement);
    case Statement::Kind::kSet:
      TANDEM_RETURN_IF_ERROR(ExecuteSet(statement));
      return Flow::kNormal;
    case Statement::Kind::kSetBlock: {
      TANDEM_ASSIGN_OR_RETURN(std::string text, Capture(statement.bodies[0]));
      TANDEM_RETURN_IF_ERROR(Assign(statement.names, JinjaValue::String(std::move(text))));
      return Flow::kNormal;
    }
    case Statement::Kind::kMacro:
      scopes_.back()[statement.macro->name] = MakeCallable(
          {JinjaCallable::Kind::kMacro, statement.macro->name, JinjaValue(), statement.macro.get()});
      return Flow::kNormal;
    case Statement::Kind::kBlock:
      return Execute(statement.bodies[0]);
    case Statement::Kind::kFilterBlock: {
      TANDEM_ASSIGN_OR_RETURN(std::string text, Capture(statement.bodies[0]));
      scopes_.emplace_back();
      scopes_.back()[kJinjaCaptured] = JinjaValue::String(std::move(text));
      TANDEM_ASSIGN_OR_RETURN(const JinjaValue value, Evaluate(*statement.expression));
      scopes_.pop_back();
      TANDEM_ASSIGN_OR_RETURN(const std::string filtered, JinjaToText(value, budget_));
      TANDEM_RETURN_IF_ERROR(Output(filtered));
      return Flow::kNormal;
    }
    case Statement::Kind::kBreak:
      return Flow::kBreak;
    case Statement::Kind::kContinue:
      return Flow::kContinue;
  }
  return absl::InternalError("unknown statement");
}

absl::StatusOr<JinjaInterpreter::Flow> JinjaInterpreter::ExecuteIf(const JinjaStatement& statement) {
  for (size_t i = 0; i < statement.bodies.size(); ++i) {
    if (statement.conditions[i] != nullptr) {
      TANDEM_ASSIGN_OR_RETURN(const JinjaValue condition, Evaluate(*statement.conditions[i]));
      if (!condition.IsTrue()) continue;
    }
    return Execute(statement.bodies[i]);
  }
  return Flow::kNormal;
}

absl::StatusOr<JinjaValue::Items> JinjaInterpreter::FilteredItems(const JinjaStatement& statement) {
  TANDEM_ASSIGN_OR_RETURN(const JinjaValue value, Evaluate(*statement.expression));
  TANDEM_ASSIGN_OR_RETURN(JinjaValue::Items items, JinjaIterate(value, budget_));
  const JinjaExpressionPtr& condition = statement.conditions[0];
  if (condition == nullptr) return items;
  JinjaValue::Items kept;
  for (JinjaValue& item : items) {
    scopes_.emplace_back();
    TANDEM_RETURN_IF_ERROR(Assign(statement.names, item));
    TANDEM_ASSIGN_OR_RETURN(const JinjaValue holds, Evaluate(*condition));
    scopes_.pop_back();
    if (holds.IsTrue()) kept.push_back(std::move(item));
  }
  return kept;
}

absl::StatusOr<JinjaInterpreter::Flow> JinjaInterpreter::ExecuteFor(const JinjaStatement& statement) {
  TANDEM_ASSIGN_OR_RETURN(JinjaValue::Items items, FilteredItems(statement));
  TANDEM_ASSIGN_OR_RETURN(const JinjaValue list, JinjaValue::List(std::move(items)));
  const auto& shared = *list.As<std::shared_ptr<const JinjaList>>();
  // As in Jinja, "else" runs if no pass of the loop reached its end.
  bool is_through = false;
  for (size_t i = 0; i < shared->items.size(); ++i) {
    TANDEM_RETURN_IF_ERROR(budget_.Step());
    scopes_.emplace_back();
    TANDEM_RETURN_IF_ERROR(Assign(statement.names, shared->items[i]));
    scopes_.back()["loop"] =
        JinjaValue(JinjaValue::Variant(std::make_shared<const JinjaLoop>(JinjaLoop{shared, i})));
    TANDEM_ASSIGN_OR_RETURN(const Flow flow, Execute(statement.bodies[0]));
    scopes_.pop_back();
    if (flow == Flow::kBreak) break;
    is_through = is_through || flow == Flow::kNormal;
  }
  if (!is_through && statement.bodies.size() > 1) return Execute(statement.bodies[1]);
  return Flow::kNormal;
}

absl::Status JinjaInterpreter::ExecuteSet(const JinjaStatement& statement) {
  TANDEM_ASSIGN_OR_RETURN(const JinjaValue value, Evaluate(*statement.expression));
  if (statement.text.empty()) return Assign(statement.names, value);
  const JinjaValue target = Lookup(statement.text);
  const auto* names = target.As<std::shared_ptr<JinjaNamespace>>();
  if (names == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("'", statement.text, "' is not a namespace"));
  }
  (*names)->members[statement.names[0]] = value;
  return absl::OkStatus();
}

absl::Status JinjaInterpreter::Output(absl::string_view text) {
  if (text.size() > max_output_bytes_ - std::min(output_.size(), max_output_bytes_)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the output is longer than ", max_output_bytes_, " bytes"));
  }
  output_.append(text.data(), text.size());
  return absl::OkStatus();
}

absl::StatusOr<std::string> JinjaInterpreter::Capture(const JinjaBody& body) {
  std::string outer = std::exchange(output_, std::string());
  TANDEM_RETURN_IF_ERROR(Execute(body).status());
  TANDEM_RETURN_IF_ERROR(budget_.Bytes(output_.size()));
  return std::exchange(output_, std::move(outer));
}

absl::Status JinjaInterpreter::Assign(const std::vector<std::string>& names, const JinjaValue& value) {
  if (names.size() == 1) {
    scopes_.back()[names[0]] = value;
    return absl::OkStatus();
  }
  TANDEM_ASSIGN_OR_RETURN(const JinjaValue::Items items, JinjaIterate(value, budget_));
  if (items.size() != names.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot unpack ", items.size(), " values into ", names.size()));
  }
  for (size_t i = 0; i < names.size(); ++i) scopes_.back()[names[i]] = items[i];
  return absl::OkStatus();
}

JinjaInterpreter::Result JinjaInterpreter::Evaluate(const JinjaExpression& expression) {
  TANDEM_RETURN_IF_ERROR(budget_.Step());
  const std::vector<JinjaExpressionPtr>& operands = expression.operands;
  switch (expression.kind) {
    case Expression::Kind::kConstant:
      return expression.constant;
    case Expression::Kind::kName:
      return Lookup(expression.text);
    case Expression::Kind::kList: {
      JinjaValue::Items items;
      for (const JinjaExpressionPtr& operand : operands) {
        TANDEM_ASSIGN_OR_RETURN(JinjaValue item, Evaluate(*operand));
        items.push_back(std::move(item));
      }
      return JinjaValue::List(std::move(items), expression.text);
    }
    case Expression::Kind::kDict:
      return EvaluateDict(expression);
    case Expression::Kind::kSlice:
      return EvaluateSlice(expression);
    case Expression::Kind::kCompare:
      return EvaluateCompare(expression);
    case Expression::Kind::kUnary:
      return EvaluateUnary(expression);
    case Expression::Kind::kConditional: {
      TANDEM_ASSIGN_OR_RETURN(const JinjaValue condition, Evaluate(*operands[0]));
      if (condition.IsTrue()) return Evaluate(*operands[1]);
      return operands[2] == nullptr ? JinjaValue::Undefined("an if without else") : Evaluate(*operands[2]);
    }
    default:
      break;
  }
  TANDEM_ASSIGN_OR_RETURN(JinjaValue first, Evaluate(*operands[0]));
  switch (expression.kind) {
    case Expression::Kind::kAttribute:
      return JinjaAttribute(first, expression.text, budget_);
    case Expression::Kind::kAnd:
      return first.IsTrue() ? Evaluate(*operands[1]) : Result(std::move(first));
    case Expression::Kind::kOr:
      return first.IsTrue() ? Result(std::move(first)) : Evaluate(*operands[1]);
    case Expression::Kind::kItem: {
      TANDEM_ASSIGN_OR_RETURN(const JinjaValue key, Evaluate(*operands[1]));
      return JinjaItem(first, key, budget_);
    }
    case Expression::Kind::kBinary: {
      TANDEM_ASSIGN_OR_RETURN(const JinjaValue second, Evaluate(*operands[1]));
      return JinjaArithmetic(expression.text, first, second, budget_);
    }
    default:
      break;
  }
  TANDEM_ASSIGN_OR_RETURN(const JinjaArguments arguments, EvaluateArguments(expression));
  if (expression.kind == Expression::Kind::kCall) return Call(first, arguments);
  if (expression.kind == Expression::Kind::kFilter) {
    return ApplyJinjaFilter(expression.text, first, arguments, budget_);
  }
  TANDEM_ASSIGN_OR_RETURN(const bool holds, ApplyJinjaTest(expression.text, first, arguments, budget_));
  return JinjaValue::Bool(holds);
}

JinjaInterpreter::Result JinjaInterpreter::EvaluateOptional(const JinjaExpressionPtr& expression) {
  if (expression == nullptr) return JinjaValue();
  return Evaluate(*expression);
}

JinjaInterpreter::Result JinjaInterpreter::EvaluateDict(const JinjaExpression& expression) {
  JinjaValue::Members members;
  for (size_t i = 0; i < expression.operands.size(); i += 2) {
    TANDEM_ASSIGN_OR_RETURN(const JinjaValue key, Evaluate(*expression.operands[i]));
    TANDEM_ASSIGN_OR_RETURN(JinjaValue value, Evaluate(*expression.operands[i + 1]));
    TANDEM_RETURN_IF_ERROR(CheckJinjaKey(key));
    TANDEM_RETURN_IF_ERROR(budget_.Bytes(members.size()));
    const auto same = [&key](const auto& member) { return SameJinjaKey(member.first, key); };
    const auto it = std::find_if(members.begin(), members.end(), same);
    if (it != members.end()) {
      it->second = std::move(value);
    } else {
      members.emplace_back(key, std::move(value));
    }
  }
  return JinjaValue::Dict(std::move(members));
}

JinjaInterpreter::Result JinjaInterpreter::EvaluateSlice(const JinjaExpression& expression) {
  TANDEM_ASSIGN_OR_RETURN(const JinjaValue value, Evaluate(*expression.operands[0]));
  if (value.AsItems() == nullptr && value.AsString() == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("cannot slice ", value.TypeName()));
  }
  std::optional<int64_t> bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    TANDEM_ASSIGN_OR_RETURN(const JinjaValue bound, EvaluateOptional(expression.operands[i + 1]));
    if (bound.IsNone()) continue;
    if (bound.As<int64_t>() == nullptr) return absl::InvalidArgumentError("a slice expects integers");
    bounds[i] = *bound.As<int64_t>();
  }
  TANDEM_ASSIGN_OR_RETURN(const JinjaValue::Items items, JinjaIterate(value, budget_));
  const auto length = static_cast<int64_t>(items.size());
  // A step longer than the list has the same effect as one of its length, and cannot overflow.
  const int64_t step = std::clamp(bounds[2].value_or(1), -length - 1, length + 1);
  if (step == 0) return absl::InvalidArgumentError("the step of a slice is zero");
  const int64_t low = step > 0 ? 0 : -1;
  const int64_t high = step > 0 ? length : length - 1;
  const auto resolve = [&](int64_t bound) {
    if (bound < 0) bound = bound < -length ? low : bound + length;
    return std::clamp(bound, low, high);
  };
  const int64_t begin = bounds[0].has_value() ? resolve(*bounds[0]) : (step > 0 ? low : high);
  const int64_t end = bounds[1].has_value() ? resolve(*bounds[1]) : (step > 0 ? high : low);
  JinjaValue::Items sliced;
  for (int64_t i = begin; step > 0 ? i < end : i > end; i += step)
    sliced.push_back(items[static_cast<size_t>(i)]);
  if (value.AsString() == nullptr) {
    const bool is_tuple = value.ListKind() == JinjaValue::kTuple;
    return JinjaValue::List(std::move(sliced), is_tuple ? JinjaValue::kTuple : "");
  }
  std::string text;
  for (const JinjaValue& character : sliced) text += *character.AsString();
  return JinjaValue::String(std::move(text));
}

JinjaInterpreter::Result JinjaInterpreter::EvaluateCompare(const JinjaExpression& expression) {
  TANDEM_ASSIGN_OR_RETURN(JinjaValue left, Evaluate(*expression.operands[0]));
  for (size_t i = 0; i < expression.operators.size(); ++i) {
    TANDEM_ASSIGN_OR_RETURN(JinjaValue right, Evaluate(*expression.operands[i + 1]));
    const std::string& op = expression.operators[i];
    absl::StatusOr<bool> holds = false;
    if (op == "==" || op == "!=") {
      holds = JinjaEqual(left, right, budget_);
    } else if (op == "in" || op == "not in") {
      holds = JinjaContains(right, left, budget_);
    } else if (op == "<" || op == ">=") {
      holds = JinjaLess(left, right, budget_);
    } else {
      holds = JinjaLess(right, left, budget_);
    }
    TANDEM_RETURN_IF_ERROR(holds.status());
    const bool negated = op == "!=" || op == "not in" || op == ">=" || op == "<=";
    if (*holds == negated) return JinjaValue::Bool(false);
    left = std::move(right);
  }
  return JinjaValue::Bool(true);
}

JinjaInterpreter::Result JinjaInterpreter::EvaluateUnary(const JinjaExpression& expression) {
  TANDEM_ASSIGN_OR_RETURN(const JinjaValue operand, Evaluate(*expression.operands[0]));
  if (expression.text == "not") return JinjaValue::Bool(!operand.IsTrue());
  return JinjaArithmetic(expression.text, JinjaValue::Int(0), operand, budget_);
}

absl::StatusOr<JinjaArguments> JinjaInterpreter::EvaluateArguments(const JinjaExpression& expression) {
  JinjaArguments arguments;
  for (const auto& [name, argument] : expression.arguments) {
    TANDEM_ASSIGN_OR_RETURN(JinjaValue value, Evaluate(*argument));
    if (name.empty()) {
      arguments.positional.push_back(std::move(value));
    } else {
      arguments.named.emplace_back(name, std::move(value));
    }
  }
  return arguments;
}

JinjaValue JinjaInterpreter::Lookup(const std::string& name) const {
  for (size_t i = scopes_.size(); i > visible_from_; --i) {
    const auto it = scopes_[i - 1].find(name);
    if (it != scopes_[i - 1].end()) return it->second;
  }
  const auto it = scopes_[0].find(name);
  if (it != scopes_[0].end()) return it->second;
  const bool is_function =
      std::find(std::begin(kFunctions), std::end(kFunctions), name) != std::end(kFunctions) ||
      (name == "strftime_now" && now_.has_value());
  if (is_function) return MakeCallable({JinjaCallable::Kind::kFunction, name, JinjaValue(), nullptr});
  return JinjaValue::Undefined(name);
}

JinjaInterpreter::Result JinjaInterpreter::Call(const JinjaValue& callee, const JinjaArguments& arguments) {
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
    case JinjaCallable::Kind::kMethod:
      return CallJinjaMethod((*callable)->self, (*callable)->name, arguments, budget_);
    case JinjaCallable::Kind::kMacro:
      return CallMacro(*(*callable)->macro, arguments);
  }
  return absl::InternalError("unknown kind of callable");
}

JinjaInterpreter::Result JinjaInterpreter::CallFunction(const std::string& name,
                                                        const JinjaArguments& arguments) {
  if (name == "range") return MakeRange(arguments);
  if (name == "namespace") return MakeNamespace(arguments);
  if (name == "dict") {
    if (!arguments.positional.empty()) return absl::UnimplementedError("dict(...) expects named arguments");
    JinjaValue::Members members;
    for (const auto& [key, value] : arguments.named) members.emplace_back(JinjaValue::String(key), value);
    return JinjaValue::Dict(std::move(members));
  }
  const JinjaValue* first = arguments.Find(0, name == "raise_exception" ? "message" : "format");
  if (first == nullptr) return absl::InvalidArgumentError(absl::StrCat(name, " expects an argument"));
  TANDEM_ASSIGN_OR_RETURN(const std::string text, JinjaToText(*first, budget_));
  if (name == "raise_exception") {
    error_is_placed_ = true;  // a template's own error message goes to the user unchanged
    return absl::InvalidArgumentError(text);
  }
  return JinjaValue::String(absl::FormatTime(text, *now_, absl::UTCTimeZone()));
}

JinjaInterpreter::Result JinjaInterpreter::CallMacro(const JinjaMacro& macro,
                                                     const JinjaArguments& arguments) {
  if (macro_depth_ >= kMaxMacroDepth) return absl::InvalidArgumentError("macros call one another too deeply");
  if (arguments.positional.size() > macro.parameters.size()) {
    return absl::InvalidArgumentError(absl::StrCat("macro '", macro.name, "' takes fewer arguments"));
  }
  for (const auto& [name, value] : arguments.named) {
    const auto is_parameter = [&name = name](const auto& parameter) { return parameter.first == name; };
    if (std::none_of(macro.parameters.begin(), macro.parameters.end(), is_parameter)) {
      return absl::InvalidArgumentError(
          absl::StrCat("macro '", macro.name, "' has no parameter '", name, "'"));
    }
  }
  const size_t outer_visible_from = std::exchange(visible_from_, scopes_.size());
  scopes_.emplace_back();
  ++macro_depth_;
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    const auto& [name, if_absent] = macro.parameters[i];
    JinjaValue value = JinjaValue::Undefined(name);
    if (const JinjaValue* given = arguments.Find(i, name)) {
      value = *given;
    } else if (if_absent != nullptr) {
      TANDEM_ASSIGN_OR_RETURN(value, Evaluate(*if_absent));
    }
    scopes_.back()[name] = std::move(value);
  }
  TANDEM_ASSIGN_OR_RETURN(std::string text, Capture(macro.body));
  --macro_depth_;
  scopes_.pop_back();
  visible_from_ = outer_visible_from;
  return JinjaValue::String(std::move(text));
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
