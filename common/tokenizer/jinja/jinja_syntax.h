#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/jinja/jinja_value.h"

namespace tandem {

struct JinjaExpression;
using JinjaExpressionPtr = std::unique_ptr<const JinjaExpression>;

// A node of an expression. Which members are used depends on the kind. `depth` counts the levels below and is
// bounded by the parser, so that walking the tree by recursion is safe.
struct JinjaExpression {
  enum class Kind {
    kConstant,     // constant
    kName,         // text
    kList,         // operands
    kDict,         // operands: key, value, key, value...
    kAttribute,    // operands[0] . text
    kItem,         // operands[0] [ operands[1] ]
    kSlice,        // operands[0] [ operands[1] : operands[2] : operands[3] ], each bound may be null
    kCall,         // operands[0] ( arguments )
    kFilter,       // operands[0] | text ( arguments )
    kTest,         // operands[0] is text ( arguments )
    kUnary,        // text operands[0]; text is "-", "+" or "not"
    kBinary,       // operands[0] text operands[1], arithmetic or ~
    kAnd,          // operands[0] and operands[1]
    kOr,           // operands[0] or operands[1]
    kCompare,      // operands[0] operators[0] operands[1] operators[1] operands[2]...
    kConditional,  // operands[1] if operands[0] else operands[2], which may be null
  };
  Kind kind;
  int line = 1;
  int depth = 0;
  std::string text;
  JinjaValue constant;
  std::vector<JinjaExpressionPtr> operands;
  std::vector<std::string> operators;
  // Positional ones have no name; "*" and "**" are those that a list or a dict gives.
  std::vector<std::pair<std::string, JinjaExpressionPtr>> arguments;
};

// What is assigned to: a name, an attribute of a namespace, or several of these.
struct JinjaTarget {
  std::string name;
  std::string attribute;
  bool is_tuple = false;
  std::vector<JinjaTarget> items;
};

// A name that no template can write.
inline constexpr char kJinjaCaptured[] = "{captured}";

struct JinjaStatement;
using JinjaBody = std::vector<JinjaStatement>;

struct JinjaMacro;

struct JinjaStatement {
  enum class Kind {
    kText,         // text
    kOutput,       // expression
    kIf,           // bodies[i] for the first conditions[i] that holds; a null condition is "else"
    kFor,          // target in expression [if conditions[0]], bodies[0], else bodies[1]
    kSet,          // target = expression
    kSetBlock,     // target = what bodies[0] outputs, filtered by expression unless that is null
    kMacro,        // macro
    kScope,        // bodies[0], whose names end with it
    kBlock,        // the same, and it sees the template's own names alone unless is_scoped
    kWith,         // targets[i] = conditions[i], bodies[0]
    kCall,         // expression, a call, whose `caller` is macro
    kFilterBlock,  // expression, with the name kJinjaCaptured for what bodies[0] outputs
    kBreak,
    kContinue,
  };
  Kind kind;
  int line = 1;
  std::string text;
  JinjaTarget target;
  std::vector<JinjaTarget> targets;
  bool is_recursive = false;
  bool is_scoped = false;
  JinjaExpressionPtr expression;
  std::vector<JinjaExpressionPtr> conditions;
  std::vector<JinjaBody> bodies;
  std::shared_ptr<const JinjaMacro> macro;
};

struct JinjaMacro {
  std::string name;
  std::vector<std::pair<std::string, JinjaExpressionPtr>> parameters;  // with defaults or null
  JinjaBody body;
  // Which of these names it uses, and so takes more arguments than its parameters.
  bool uses_caller = false;
  bool uses_varargs = false;
  bool uses_kwargs = false;
};

// Parses a template. InvalidArgument, with the line, for malformed text, and for filters and tests with
// arguments that they do not take. Unimplemented, with the line and the name, for what Jinja or Python has
// and this engine has not: other templates (include, import, extends), some filters, functions and methods.
absl::StatusOr<JinjaBody> ParseJinja(absl::string_view source);

}  // namespace tandem
