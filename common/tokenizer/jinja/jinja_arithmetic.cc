#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/checked_math.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/jinja/jinja_interpreter.h"
#include "common/tokenizer/jinja/python_format.h"

namespace tandem {
namespace {

using Result = absl::StatusOr<JinjaValue>;

std::optional<int64_t> IntegerOf(const JinjaValue& value) {
  if (const bool* b = value.As<bool>()) return *b ? 1 : 0;
  if (const int64_t* i = value.As<int64_t>()) return *i;
  return std::nullopt;
}

std::optional<double> NumberOf(const JinjaValue& value) {
  if (const double* d = value.As<double>()) return *d;
  if (const std::optional<int64_t> i = IntegerOf(value)) return static_cast<double>(*i);
  return std::nullopt;
}

absl::Status DivisionByZero() {
  return absl::InvalidArgumentError("division by zero");
}

std::optional<int64_t> Power(int64_t base, int64_t exponent) {
  std::optional<int64_t> result = 1;
  // Any base except -1, 0 and 1 leaves the range within 63 steps.
  if (base == 0 || base == 1) return exponent == 0 ? 1 : base;
  if (base == -1) return exponent % 2 == 0 ? 1 : -1;
  for (; exponent > 0 && result.has_value(); --exponent) result = CheckedMultiply(*result, base);
  return result;
}

Result FloatPower(double left, double right) {
  if (left == 0 && right < 0) return DivisionByZero();
  if (left < 0 && std::isfinite(right) && right != std::floor(right))
    return absl::InvalidArgumentError("a power is a complex number");
  return JinjaValue::Float(std::pow(left, right));
}

Result IntegerArithmetic(absl::string_view op, int64_t left, int64_t right) {
  std::optional<int64_t> result;
  if (op == "+") result = CheckedAdd(left, right);
  if (op == "-") result = CheckedSubtract(left, right);
  if (op == "*") result = CheckedMultiply(left, right);
  if (op == "**") {
    if (right < 0) return FloatPower(static_cast<double>(left), static_cast<double>(right));
    result = Power(left, right);
  }
  if (op == "/" || op == "//" || op == "%") {
    if (right == 0) return DivisionByZero();
    if (op == "/") return JinjaValue::Float(static_cast<double>(left) / static_cast<double>(right));
    if (right == -1) {
      result = op == "%" ? 0 : CheckedSubtract(int64_t{0}, left);
    } else {
      // Python rounds towards minus infinity, and the remainder has the divisor's sign.
      const int64_t remainder = left % right;
      const bool adjust = remainder != 0 && (remainder < 0) != (right < 0);
      result = op == "%" ? remainder + (adjust ? right : 0) : left / right - (adjust ? 1 : 0);
    }
  }
  if (!result.has_value()) return absl::InvalidArgumentError("an integer overflows 64 bits");
  return JinjaValue::Int(*result);
}

Result FloatArithmetic(absl::string_view op, double left, double right) {
  if (op == "+") return JinjaValue::Float(left + right);
  if (op == "-") return JinjaValue::Float(left - right);
  if (op == "*") return JinjaValue::Float(left * right);
  if (op == "**") return FloatPower(left, right);
  if (right == 0) return DivisionByZero();
  if (op == "/") return JinjaValue::Float(left / right);
  // As in CPython: the remainder has the divisor's sign.
  double remainder = std::fmod(left, right);
  double quotient = (left - remainder) / right;
  if (remainder == 0) {
    remainder = std::copysign(0.0, right);
  } else if ((right < 0) != (remainder < 0)) {
    remainder += right;
    quotient -= 1;
  }
  if (op == "%") return JinjaValue::Float(remainder);
  if (quotient == 0) return JinjaValue::Float(std::copysign(0.0, left / right));
  const double floor = std::floor(quotient);
  return JinjaValue::Float(quotient - floor > 0.5 ? floor + 1 : floor);
}

// A string or a list, `count` times.
Result Repeat(const JinjaValue& value, int64_t count, JinjaBudget& budget) {
  const std::string* text = value.AsString();
  const size_t unit = text != nullptr ? text->size() : value.AsItems()->size() * sizeof(JinjaValue);
  const auto times = static_cast<size_t>(std::max<int64_t>(count, 0));
  TANDEM_RETURN_IF_ERROR(
      budget.Bytes(CheckedMultiply(unit, times).value_or(std::numeric_limits<size_t>::max())));
  std::string repeated;
  JinjaValue::Items items;
  for (size_t i = 0; unit > 0 && i < times; ++i) {
    if (text != nullptr) {
      repeated += *text;
    } else {
      items.insert(items.end(), value.AsItems()->begin(), value.AsItems()->end());
    }
  }
  if (value.IsMarkup()) return JinjaValue::Markup(std::move(repeated));
  if (text != nullptr) return JinjaValue::String(std::move(repeated));
  return JinjaValue::List(std::move(items), value.IsTuple() ? JinjaValue::kTuple : "");
}

JinjaValue Escaped(const JinjaValue& value) {
  if (value.AsString() == nullptr || value.IsMarkup()) return value;
  return JinjaValue::Markup(JinjaEscaped(*value.AsString()));
}

// `text % values`; what is put into HTML is escaped.
Result Format(const JinjaValue& text, const JinjaValue& values, JinjaBudget& budget) {
  if (!text.IsMarkup()) {
    TANDEM_ASSIGN_OR_RETURN(std::string formatted, PythonPercentFormat(*text.AsString(), values, budget));
    return JinjaValue::String(std::move(formatted));
  }
  JinjaValue escaped = Escaped(values);
  if (values.IsTuple()) {
    JinjaValue::Items items;
    for (const JinjaValue& item : *values.AsItems()) items.push_back(Escaped(item));
    TANDEM_ASSIGN_OR_RETURN(escaped, JinjaValue::List(std::move(items), JinjaValue::kTuple));
  } else if (values.AsDict() != nullptr) {
    JinjaValue::Members members;
    for (const auto& [key, member] : values.AsDict()->members) members.emplace_back(key, Escaped(member));
    TANDEM_ASSIGN_OR_RETURN(escaped, JinjaValue::Dict(std::move(members)));
  }
  TANDEM_ASSIGN_OR_RETURN(std::string formatted, PythonPercentFormat(*text.AsString(), escaped, budget));
  return JinjaValue::Markup(std::move(formatted));
}

bool IsSequence(const JinjaValue& value) {
  return value.AsString() != nullptr ||
         (value.AsItems() != nullptr && (value.ListKind().empty() || value.IsTuple()));
}

// Two texts. If one of them is HTML, the other becomes that too.
Result Join(const JinjaValue& left, const JinjaValue& right, JinjaBudget& budget) {
  TANDEM_RETURN_IF_ERROR(budget.Bytes(left.AsString()->size() + right.AsString()->size()));
  if (!left.IsMarkup() && !right.IsMarkup()) return JinjaValue::String(*left.AsString() + *right.AsString());
  const auto html = [](const JinjaValue& text) {
    return text.IsMarkup() ? *text.AsString() : JinjaEscaped(*text.AsString());
  };
  std::string joined = html(left) + html(right);
  TANDEM_RETURN_IF_ERROR(budget.Bytes(joined.size()));
  return JinjaValue::Markup(std::move(joined));
}

}  // namespace

Result JinjaArithmetic(absl::string_view op, const JinjaValue& left, const JinjaValue& right,
                       JinjaBudget& budget) {
  if (op == "~") {
    TANDEM_ASSIGN_OR_RETURN(std::string text, JinjaToText(left, budget));
    TANDEM_ASSIGN_OR_RETURN(const std::string tail, JinjaToText(right, budget));
    return JinjaValue::String(std::move(text) + tail);
  }
  if (op == "%" && left.AsString() != nullptr) return Format(left, right, budget);
  for (const JinjaValue* operand : {&left, &right}) {
    if (operand->IsUndefined()) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", operand->As<JinjaUndefined>()->name, "' is undefined"));
    }
  }
  if (IntegerOf(left) && IntegerOf(right)) return IntegerArithmetic(op, *IntegerOf(left), *IntegerOf(right));
  if (NumberOf(left) && NumberOf(right)) return FloatArithmetic(op, *NumberOf(left), *NumberOf(right));
  if (op == "+" && left.AsString() != nullptr && right.AsString() != nullptr)
    return Join(left, right, budget);
  if (op == "+" && left.AsItems() != nullptr && right.AsItems() != nullptr &&
      left.IsTuple() == right.IsTuple() && left.ListKind().empty() == right.ListKind().empty()) {
    JinjaValue::Items items = *left.AsItems();
    items.insert(items.end(), right.AsItems()->begin(), right.AsItems()->end());
    TANDEM_RETURN_IF_ERROR(budget.Bytes(items.size() * sizeof(JinjaValue)));
    return JinjaValue::List(std::move(items), left.IsTuple() ? JinjaValue::kTuple : "");
  }
  if (op == "*" && IsSequence(left) && IntegerOf(right)) return Repeat(left, *IntegerOf(right), budget);
  if (op == "*" && IntegerOf(left) && IsSequence(right)) return Repeat(right, *IntegerOf(left), budget);
  return absl::InvalidArgumentError(
      absl::StrCat("cannot apply '", op, "' to ", left.TypeName(), " and ", right.TypeName()));
}

}  // namespace tandem
