#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/tokenizer/jinja/jinja_builtins.h"
#include "common/tokenizer/jinja/jinja_syntax.h"
#include "common/tokenizer/jinja/jinja_value.h"

namespace tandem {

using JinjaScope = absl::flat_hash_map<std::string, JinjaValue>;

// Runs one template once, within a budget. Not to be shared between threads.
class JinjaInterpreter {
 public:
  JinjaInterpreter(JinjaScope variables, std::optional<absl::Time> now, size_t max_output_bytes,
                   JinjaBudget budget);
  ~JinjaInterpreter();
  JinjaInterpreter(const JinjaInterpreter&) = delete;
  JinjaInterpreter& operator=(const JinjaInterpreter&) = delete;

  // The output of the template. Errors name the line.
  absl::StatusOr<std::string> Run(const JinjaBody& body);

 private:
  enum class Flow { kNormal, kBreak, kContinue };
  using Result = absl::StatusOr<JinjaValue>;

  absl::StatusOr<Flow> Execute(const JinjaBody& body);
  absl::StatusOr<Flow> ExecuteStatement(const JinjaStatement& statement);
  absl::StatusOr<Flow> ExecuteIf(const JinjaStatement& statement);
  absl::StatusOr<Flow> ExecuteFor(const JinjaStatement& statement);
  absl::Status ExecuteSet(const JinjaStatement& statement);
  absl::Status Output(absl::string_view text);
  absl::StatusOr<std::string> Capture(const JinjaBody& body);
  absl::Status Assign(const std::vector<std::string>& names, const JinjaValue& value);
  absl::StatusOr<JinjaValue::Items> FilteredItems(const JinjaStatement& statement);

  Result Evaluate(const JinjaExpression& expression);
  Result EvaluateOptional(const JinjaExpressionPtr& expression);
  Result EvaluateDict(const JinjaExpression& expression);
  Result EvaluateSlice(const JinjaExpression& expression);
  Result EvaluateCompare(const JinjaExpression& expression);
  Result EvaluateUnary(const JinjaExpression& expression);
  absl::StatusOr<JinjaArguments> EvaluateArguments(const JinjaExpression& expression);

  JinjaValue Lookup(const std::string& name) const;
  Result Call(const JinjaValue& callee, const JinjaArguments& arguments);
  Result CallFunction(const std::string& name, const JinjaArguments& arguments);
  Result CallMacro(const JinjaMacro& macro, const JinjaArguments& arguments);
  Result MakeRange(const JinjaArguments& arguments);
  Result MakeNamespace(const JinjaArguments& arguments);

  // scopes_[0] is the template's; a macro sees that one and those from visible_from_ on.
  std::vector<JinjaScope> scopes_;
  size_t visible_from_ = 1;
  std::optional<absl::Time> now_;
  size_t max_output_bytes_;
  JinjaBudget budget_;
  std::string output_;
  int macro_depth_ = 0;
  bool error_is_placed_ = false;
  // Namespaces can hold one another in a circle; the destructor breaks it.
  std::vector<std::shared_ptr<JinjaNamespace>> namespaces_;
};

// `left op right` for + - * / // % ** and ~, with Python's meaning.
absl::StatusOr<JinjaValue> JinjaArithmetic(absl::string_view op, const JinjaValue& left,
                                           const JinjaValue& right, JinjaBudget& budget);

}  // namespace tandem
