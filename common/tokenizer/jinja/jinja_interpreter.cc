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

constexpr absl::string_view kFunctions[] = {"raise_exception", "range", "namespace", "dict",
                                            "cycler",          "joiner"};

}  // namespace

JinjaInterpreter::JinjaInterpreter(JinjaScope variables, std::optional<absl::Time> now,
                                   size_t max_output_bytes, JinjaBudget budget)
    : root_(std::make_shared<JinjaFrame>()),
      frame_(root_),
      now_(now),
      max_output_bytes_(max_output_bytes),
      budget_(budget) {
  root_->names = std::move(variables);
}

JinjaInterpreter::~JinjaInterpreter() {
  for (const auto& names : namespaces_) {
    names->members.clear();
    names->items.clear();
  }
  for (const auto& loop : held_loops_) {
    loop->last_changed.clear();
    loop->frame.reset();
  }
  for (const auto& frame : held_frames_) {
    frame->names.clear();
    frame->outer.reset();
  }
}

JinjaInterpreter::Inside::Inside(JinjaInterpreter& interpreter, std::shared_ptr<JinjaFrame> outer)
    : interpreter_(interpreter), before_(interpreter.frame_) {
  interpreter_.frame_ = std::make_shared<JinjaFrame>();
  interpreter_.frame_->outer = std::move(outer);
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
    case Statement::Kind::kSet: {
      TANDEM_ASSIGN_OR_RETURN(const JinjaValue value, Evaluate(*statement.expression));
      TANDEM_RETURN_IF_ERROR(Assign(statement.target, value));
      return Flow::kNormal;
    }
    case Statement::Kind::kSetBlock:
      TANDEM_RETURN_IF_ERROR(ExecuteSetBlock(statement));
      return Flow::kNormal;
    case Statement::Kind::kMacro:
      frame_->names[statement.macro->name] = MacroValue(*statement.macro);
      return Flow::kNormal;
    case Statement::Kind::kScope:
      return ExecuteInside(statement.bodies[0]);
    case Statement::Kind::kBlock:
      return ExecuteBlock(statement);
    case Statement::Kind::kWith:
      TANDEM_RETURN_IF_ERROR(ExecuteWith(statement));
      return Flow::kNormal;
    case Statement::Kind::kCall:
      TANDEM_RETURN_IF_ERROR(ExecuteCall(statement));
      return Flow::kNormal;
    case Statement::Kind::kFilterBlock: {
      TANDEM_ASSIGN_OR_RETURN(std::string text, Capture(statement.bodies[0]));
      TANDEM_ASSIGN_OR_RETURN(const JinjaValue value, FilterCaptured(*statement.expression, std::move(text)));
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

absl::StatusOr<JinjaInterpreter::Flow> JinjaInterpreter::ExecuteInside(const JinjaBody& body) {
  const Inside inside(*this, frame_);
  return Execute(body);
}

// A block sees what the template itself has assigned, not the names of loops around it.
absl::StatusOr<JinjaInterpreter::Flow> JinjaInterpreter::ExecuteBlock(const JinjaStatement& statement) {
  const Inside inside(*this, statement.is_scoped ? frame_ : root_);
  return Execute(statement.bodies[0]);
}

absl::Status JinjaInterpreter::ExecuteWith(const JinjaStatement& statement) {
  JinjaValue::Items values;
  for (const JinjaExpressionPtr& expression : statement.conditions) {
    TANDEM_ASSIGN_OR_RETURN(JinjaValue value, Evaluate(*expression));
    values.push_back(std::move(value));
  }
  const Inside inside(*this, frame_);
  for (size_t i = 0; i < values.size(); ++i) TANDEM_RETURN_IF_ERROR(Assign(statement.targets[i], values[i]));
  return Execute(statement.bodies[0]).status();
}

absl::Status JinjaInterpreter::ExecuteSetBlock(const JinjaStatement& statement) {
  TANDEM_ASSIGN_OR_RETURN(std::string text, Capture(statement.bodies[0]));
  if (statement.expression == nullptr) return Assign(statement.target, JinjaValue::String(std::move(text)));
  TANDEM_ASSIGN_OR_RETURN(const JinjaValue value, FilterCaptured(*statement.expression, std::move(text)));
  return Assign(statement.target, value);
}

absl::Status JinjaInterpreter::ExecuteCall(const JinjaStatement& statement) {
  const JinjaExpression& call = *statement.expression;
  TANDEM_ASSIGN_OR_RETURN(const JinjaValue callee, Evaluate(*call.operands[0]));
  TANDEM_ASSIGN_OR_RETURN(JinjaArguments arguments, EvaluateArguments(call));
  arguments.named.emplace_back("caller", MacroValue(*statement.macro));
  TANDEM_ASSIGN_OR_RETURN(const JinjaValue value, Call(callee, arguments));
  TANDEM_ASSIGN_OR_RETURN(const std::string text, JinjaToText(value, budget_));
  return Output(text);
}

absl::StatusOr<JinjaValue::Items> JinjaInterpreter::FilteredItems(const JinjaStatement& statement,
                                                                  const JinjaValue& value) {
  TANDEM_ASSIGN_OR_RETURN(JinjaValue::Items items, JinjaIterate(value, budget_));
  const JinjaExpressionPtr& condition = statement.conditions[0];
  if (condition == nullptr) return items;
  JinjaValue::Items kept;
  for (JinjaValue& item : items) {
    const Inside inside(*this, frame_);
    TANDEM_RETURN_IF_ERROR(Assign(statement.target, item));
    TANDEM_ASSIGN_OR_RETURN(const JinjaValue holds, Evaluate(*condition));
    if (holds.IsTrue()) kept.push_back(std::move(item));
  }
  return kept;
}

absl::StatusOr<JinjaInterpreter::Flow> JinjaInterpreter::ExecuteFor(const JinjaStatement& statement) {
  TANDEM_ASSIGN_OR_RETURN(const JinjaValue value, Evaluate(*statement.expression));
  return RunLoop(statement, value, /*depth=*/0);
}

absl::StatusOr<JinjaInterpreter::Flow> JinjaInterpreter::RunLoop(const JinjaStatement& statement,
                                                                 const JinjaValue& value, size_t depth) {
  TANDEM_ASSIGN_OR_RETURN(JinjaValue::Items items, FilteredItems(statement, value));
  TANDEM_ASSIGN_OR_RETURN(const JinjaValue list, JinjaValue::List(std::move(items)));
  auto state = std::make_shared<JinjaLoopState>();
  state->list = *list.As<std::shared_ptr<const JinjaList>>();
  state->depth = depth;
  if (statement.is_recursive) {
    TANDEM_RETURN_IF_ERROR(budget_.Bytes(sizeof(JinjaLoopState)));
    state->recursive = &statement;
    state->frame = frame_;
    held_loops_.push_back(state);
  }
  // As in Jinja, "else" runs if no pass of the loop reached its end.
  bool is_through = false;
  for (size_t i = 0; i < state->list->items.size(); ++i) {
    TANDEM_RETURN_IF_ERROR(budget_.Step());
    const Inside inside(*this, frame_);
    frame_->names["loop"] =
        JinjaValue(JinjaValue::Variant(std::make_shared<const JinjaLoop>(JinjaLoop{state, i})));
    TANDEM_RETURN_IF_ERROR(Assign(statement.target, state->list->items[i]));
    TANDEM_ASSIGN_OR_RETURN(const Flow flow, Execute(statement.bodies[0]));
    if (flow == Flow::kBreak) break;
    is_through = is_through || flow == Flow::kNormal;
  }
  if (!is_through && statement.bodies.size() > 1) return ExecuteInside(statement.bodies[1]);
  return Flow::kNormal;
}

absl::Status JinjaInterpreter::Output(absl::string_view text) {
  if (text.size() > max_output_bytes_ - std::min(output_.size(), max_output_bytes_)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the output is longer than ", max_output_bytes_, " bytes"));
  }
  output_.append(text.data(), text.size());
  return absl::OkStatus();
}

// What a body outputs. Names that it assigns end with it.
absl::StatusOr<std::string> JinjaInterpreter::Capture(const JinjaBody& body) {
  std::string outer = std::exchange(output_, std::string());
  TANDEM_RETURN_IF_ERROR(ExecuteInside(body).status());
  TANDEM_RETURN_IF_ERROR(budget_.Bytes(output_.size()));
  return std::exchange(output_, std::move(outer));
}

JinjaInterpreter::Result JinjaInterpreter::FilterCaptured(const JinjaExpression& filters, std::string text) {
  const Inside inside(*this, frame_);
  frame_->names[kJinjaCaptured] = JinjaValue::String(std::move(text));
  return Evaluate(filters);
}

absl::Status JinjaInterpreter::Assign(const JinjaTarget& target, const JinjaValue& value) {
  if (!target.attribute.empty()) {
    const JinjaValue owner = Lookup(target.name);
    const auto* names = owner.As<std::shared_ptr<JinjaNamespace>>();
    if (names == nullptr || (*names)->kind != JinjaNamespace::Kind::kNamespace)
      return absl::InvalidArgumentError(absl::StrCat("'", target.name, "' is not a namespace"));
    (*names)->members[target.attribute] = value;
    return absl::OkStatus();
  }
  if (!target.is_tuple) {
    frame_->names[target.name] = value;
    return absl::OkStatus();
  }
  TANDEM_ASSIGN_OR_RETURN(const JinjaValue::Items items, JinjaIterate(value, budget_));
  if (items.size() != target.items.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot unpack ", items.size(), " values into ", target.items.size()));
  }
  for (size_t i = 0; i < items.size(); ++i) TANDEM_RETURN_IF_ERROR(Assign(target.items[i], items[i]));
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
    return JinjaValue::List(std::move(sliced), value.IsTuple() ? JinjaValue::kTuple : "");
  }
  std::string text;
  for (const JinjaValue& character : sliced) text += *character.AsString();
  return value.IsMarkup() ? JinjaValue::Markup(std::move(text)) : JinjaValue::String(std::move(text));
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

absl::Status JinjaInterpreter::AddArguments(const std::string& kind, const JinjaValue& value,
                                            JinjaArguments& arguments) {
  if (kind == "*") {
    TANDEM_ASSIGN_OR_RETURN(const JinjaValue::Items items, JinjaIterate(value, budget_));
    arguments.positional.insert(arguments.positional.end(), items.begin(), items.end());
    return absl::OkStatus();
  }
  if (value.AsDict() == nullptr) return absl::InvalidArgumentError("'**' expects a dict");
  for (const auto& [name, member] : value.AsDict()->members) {
    if (name.AsString() == nullptr) return absl::InvalidArgumentError("'**' expects names as keys");
    arguments.named.emplace_back(*name.AsString(), member);
  }
  return absl::OkStatus();
}

absl::StatusOr<JinjaArguments> JinjaInterpreter::EvaluateArguments(const JinjaExpression& expression) {
  JinjaArguments arguments;
  for (const auto& [name, argument] : expression.arguments) {
    TANDEM_ASSIGN_OR_RETURN(JinjaValue value, Evaluate(*argument));
    if (name == "*" || name == "**") {
      TANDEM_RETURN_IF_ERROR(AddArguments(name, value, arguments));
    } else if (name.empty()) {
      arguments.positional.push_back(std::move(value));
    } else {
      arguments.named.emplace_back(name, std::move(value));
    }
  }
  return arguments;
}

JinjaValue JinjaInterpreter::Lookup(const std::string& name) const {
  for (const JinjaFrame* frame = frame_.get(); frame != nullptr; frame = frame->outer.get()) {
    const auto it = frame->names.find(name);
    if (it != frame->names.end()) return it->second;
  }
  const bool is_function =
      std::find(std::begin(kFunctions), std::end(kFunctions), name) != std::end(kFunctions) ||
      (name == "strftime_now" && now_.has_value());
  if (!is_function) return JinjaValue::Undefined(name);
  return JinjaValue(JinjaValue::Variant(std::make_shared<const JinjaCallable>(
      JinjaCallable{.kind = JinjaCallable::Kind::kFunction, .name = name})));
}

}  // namespace tandem
