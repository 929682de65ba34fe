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

// The names of a part of a template, inside those of what stands around it.
struct JinjaFrame {
  JinjaScope names;
  std::shared_ptr<JinjaFrame> outer;
};

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
  absl::StatusOr<Flow> ExecuteInside(const JinjaBody& body);
  absl::StatusOr<Flow> ExecuteBlock(const JinjaStatement& statement);
  absl::Status ExecuteWith(const JinjaStatement& statement);
  absl::Status ExecuteSetBlock(const JinjaStatement& statement);
  absl::Status ExecuteCall(const JinjaStatement& statement);
  absl::StatusOr<Flow> RunLoop(const JinjaStatement& statement, const JinjaValue& value, size_t depth);
  absl::Status Output(absl::string_view text);
  absl::StatusOr<std::string> Capture(const JinjaBody& body);
  Result FilterCaptured(const JinjaExpression& filters, std::string text);
  absl::Status Assign(const JinjaTarget& target, const JinjaValue& value);
  absl::StatusOr<JinjaValue::Items> FilteredItems(const JinjaStatement& statement, const JinjaValue& value);

  Result Evaluate(const JinjaExpression& expression);
  Result EvaluateOptional(const JinjaExpressionPtr& expression);
  Result EvaluateDict(const JinjaExpression& expression);
  Result EvaluateSlice(const JinjaExpression& expression);
  Result EvaluateCompare(const JinjaExpression& expression);
  Result EvaluateUnary(const JinjaExpression& expression);
  absl::StatusOr<JinjaArguments> EvaluateArguments(const JinjaExpression& expression);

  absl::Status AddArguments(const std::string& kind, const JinjaValue& value, JinjaArguments& arguments);

  JinjaValue Lookup(const std::string& name) const;

  // In jinja_calls.cc.
  Result Call(const JinjaValue& callee, const JinjaArguments& arguments);
  Result CallFunction(const std::string& name, const JinjaArguments& arguments);
  Result CallMacro(const JinjaCallable& callable, const JinjaArguments& arguments);
  Result CallLoop(const JinjaLoop& loop, const JinjaArguments& arguments);
  Result HasChanged(const JinjaLoop& loop, const JinjaArguments& arguments);
  Result MakeRange(const JinjaArguments& arguments);
  Result MakeDict(const JinjaArguments& arguments);
  Result MakeNamespace(const JinjaArguments& arguments);
  Result MakeObject(JinjaNamespace::Kind kind, JinjaValue::Items items);
  Result TimeNow(const std::string& format) const;
  JinjaValue MacroValue(const JinjaMacro& macro);

  // Puts a frame around a part of the template.
  class Inside {
   public:
    Inside(JinjaInterpreter& interpreter, std::shared_ptr<JinjaFrame> outer);
    ~Inside() { interpreter_.frame_ = std::move(before_); }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    JinjaInterpreter& interpreter_;
    std::shared_ptr<JinjaFrame> before_;
  };

  std::shared_ptr<JinjaFrame> root_;
  std::shared_ptr<JinjaFrame> frame_;
  std::optional<absl::Time> now_;
  size_t max_output_bytes_;
  JinjaBudget budget_;
  std::string output_;
  int call_depth_ = 0;
  bool error_is_placed_ = false;
  // What can hold one another in a circle, which the destructor breaks: namespaces, frames that macros see,
  // and loops.
  std::vector<std::shared_ptr<JinjaNamespace>> namespaces_;
  std::vector<std::shared_ptr<JinjaFrame>> held_frames_;
  std::vector<std::shared_ptr<JinjaLoopState>> held_loops_;
};

// `left op right` for + - * / // % ** and ~, with Python's meaning.
absl::StatusOr<JinjaValue> JinjaArithmetic(absl::string_view op, const JinjaValue& left,
                                           const JinjaValue& right, JinjaBudget& budget);

}  // namespace tandem
