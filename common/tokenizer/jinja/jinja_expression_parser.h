#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/jinja/jinja_catalog.h"
#include "common/tokenizer/jinja/jinja_lexer.h"
#include "common/tokenizer/jinja/jinja_syntax.h"

namespace tandem {

// The half of the template parser that reads expressions, by recursive descent with a bounded depth. A
// derived class (jinja_syntax.cc) reads statements. Errors are InvalidArgument and name the line.
class JinjaExpressionParser {
 protected:
  using Kind = JinjaToken::Kind;
  using Expression = JinjaExpression;
  using ParsedExpression = absl::StatusOr<JinjaExpressionPtr>;

  static constexpr int kMaxExpressionDepth = 100;

  explicit JinjaExpressionParser(std::vector<JinjaToken> tokens) : tokens_(std::move(tokens)) {}

  const JinjaToken& Current() const { return tokens_[position_]; }
  const JinjaToken& Next() const { return tokens_[std::min(position_ + 1, tokens_.size() - 1)]; }
  void Skip() {
    if (position_ + 1 < tokens_.size()) ++position_;
  }
  static bool Is(const JinjaToken& token, Kind kind, absl::string_view text) {
    return token.kind == kind && token.text == text;
  }
  bool IsOperator(absl::string_view text) const { return Is(Current(), Kind::kOperator, text); }
  bool IsName(absl::string_view text) const { return Is(Current(), Kind::kName, text); }
  bool TakeOperator(absl::string_view text) {
    if (!IsOperator(text)) return false;
    Skip();
    return true;
  }
  bool TakeName(absl::string_view text) {
    if (!IsName(text)) return false;
    Skip();
    return true;
  }

  absl::Status Malformed(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("line ", Current().line, ": ", what));
  }
  absl::Status Expected(absl::string_view what) const {
    const std::string found = Current().kind == Kind::kEnd        ? "the end of the template"
                              : Current().kind == Kind::kBlockEnd ? "'%}'"
                              : Current().kind == Kind::kOutputEnd
                                  ? "'}}'"
                                  : absl::StrCat("'", Current().text.substr(0, 40), "'");
    return Malformed(absl::StrCat("expected ", what, ", found ", found));
  }
  absl::Status ExpectOperator(absl::string_view text) {
    return TakeOperator(text) ? absl::OkStatus() : Expected(absl::StrCat("'", text, "'"));
  }
  absl::Status Expect(Kind kind, absl::string_view what) {
    if (Current().kind != kind) return Expected(what);
    Skip();
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> TakeAnyName() {
    if (Current().kind != Kind::kName) return Expected("a name");
    std::string name = Current().text;
    Skip();
    return name;
  }

  // Expressions, from loosest to tightest.

  std::unique_ptr<Expression> MakeExpression(Expression::Kind kind, absl::string_view text = "") const {
    auto node = std::make_unique<Expression>();
    node->kind = kind;
    node->text = std::string(text);
    node->line = Current().line;
    return node;
  }

  // Finishes a node whose children are complete.
  ParsedExpression Finish(std::unique_ptr<Expression> node) const {
    for (const JinjaExpressionPtr& operand : node->operands) {
      if (operand != nullptr) node->depth = std::max(node->depth, operand->depth + 1);
    }
    for (const auto& argument : node->arguments)
      node->depth = std::max(node->depth, argument.second->depth + 1);
    if (node->depth > kMaxExpressionDepth) return Malformed("an expression nests too deeply");
    return JinjaExpressionPtr(std::move(node));
  }

  ParsedExpression MakeBinary(Expression::Kind kind, absl::string_view text, JinjaExpressionPtr left,
                              JinjaExpressionPtr right) const {
    std::unique_ptr<Expression> node = MakeExpression(kind, text);
    node->operands.push_back(std::move(left));
    node->operands.push_back(std::move(right));
    return Finish(std::move(node));
  }

  absl::Status Unsupported(absl::string_view what) const {
    return absl::UnimplementedError(absl::StrCat("line ", Current().line, ": ", what, " is not supported"));
  }

  // One expression, or several with commas between them, which make a tuple. Without conditional expressions,
  // an "if" belongs to what stands around them.
  ParsedExpression ParseTuple(bool with_conditions = true) {
    const auto parse_item = [&] { return with_conditions ? ParseExpression() : ParseOr(); };
    TANDEM_ASSIGN_OR_RETURN(JinjaExpressionPtr first, parse_item());
    if (!IsOperator(",")) return first;
    std::unique_ptr<Expression> node = MakeExpression(Expression::Kind::kList, JinjaValue::kTuple);
    node->operands.push_back(std::move(first));
    while (TakeOperator(",")) {
      const Kind kind = Current().kind;
      if (kind == Kind::kBlockEnd || kind == Kind::kOutputEnd || IsOperator(")")) break;
      TANDEM_ASSIGN_OR_RETURN(JinjaExpressionPtr item, parse_item());
      node->operands.push_back(std::move(item));
    }
    return Finish(std::move(node));
  }

  ParsedExpression ParseExpression() {
    // The parser recurses before a node's depth is known.
    if (++expression_depth_ > kMaxExpressionDepth) return Malformed("an expression nests too deeply");
    TANDEM_ASSIGN_OR_RETURN(JinjaExpressionPtr value, ParseOr());
    while (TakeName("if")) {
      std::unique_ptr<Expression> node = MakeExpression(Expression::Kind::kConditional);
      TANDEM_ASSIGN_OR_RETURN(JinjaExpressionPtr condition, ParseOr());
      JinjaExpressionPtr otherwise;
      if (TakeName("else")) {
        TANDEM_ASSIGN_OR_RETURN(otherwise, ParseExpression());
      }
      node->operands.push_back(std::move(condition));
      node->operands.push_back(std::move(value));
      node->operands.push_back(std::move(otherwise));
      TANDEM_ASSIGN_OR_RETURN(value, Finish(std::move(node)));
    }
    --expression_depth_;
    return value;
  }

  ParsedExpression ParseOr() {
    TANDEM_ASSIGN_OR_RETURN(JinjaExpressionPtr left, ParseAnd());
    while (TakeName("or")) {
      TANDEM_ASSIGN_OR_RETURN(JinjaExpressionPtr right, ParseAnd());
      TANDEM_ASSIGN_OR_RETURN(left,
                              MakeBinary(Expression::Kind::kOr, "or", std::move(left), std::move(right)));
    }
    return left;
  }

  ParsedExpression ParseAnd() {
    TANDEM_ASSIGN_OR_RETURN(JinjaExpressionPtr left, ParseNot());
    while (TakeName("and")) {
      TANDEM_ASSIGN_OR_RETURN(JinjaExpressionPtr right, ParseNot());
      TANDEM_ASSIGN_OR_RETURN(left,
                              MakeBinary(Expression::Kind::kAnd, "and", std::move(left), std::move(right)));
    }
    return left;
  }

  ParsedExpression ParseNot() {
    if (!IsName("not")) return ParseCompare();
    std::unique_ptr<Expression> node = MakeExpression(Expression::Kind::kUnary, "not");
    Skip();
    if (++expression_depth_ > kMaxExpressionDepth) return Malformed("an expression nests too deeply");
    TANDEM_ASSIGN_OR_RETURN(JinjaExpressionPtr operand, ParseNot());
    --expression_depth_;
    node->operands.push_back(std::move(operand));
    return Finish(std::move(node));
  }

  std::string TakeComparison() {
    for (absl::string_view op : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (TakeOperator(op)) return std::string(op);
    }
    if (TakeName("in")) return "in";
    if (IsName("not") && Is(Next(), Kind::kName, "in")) {
      Skip();
      Skip();
      return "not in";
    }
    return "";
  }

  ParsedExpression ParseCompare() {
    TANDEM_ASSIGN_OR_RETURN(JinjaExpressionPtr left, ParseSum());
    std::string op = TakeComparison();
    if (op.empty()) return left;
    std::unique_ptr<Expression> node = MakeExpression(Expression::Kind::kCompare);
    node->operands.push_back(std::move(left));
    for (; !op.empty(); op = TakeComparison()) {
      TANDEM_ASSIGN_OR_RETURN(JinjaExpressionPtr right, ParseSum());
      node->operators.push_back(op);
      node->operands.push_back(std::move(right));
    }
    return Finish(std::move(node));
  }

  // A chain of binary operators of one precedence, which group from the left.
  template <size_t N, typename Tighter>
  ParsedExpression ParseChain(const std::array<absl::string_view, N>& operators, Tighter tighter) {
    TANDEM_ASSIGN_OR_RETURN(JinjaExpressionPtr left, tighter());
    while (true) {
      const auto op = std::find_if(operators.begin(), operators.end(),
                                   [this](absl::string_view text) { return IsOperator(text); });
      if (op == operators.end()) return left;
      Skip();
      TANDEM_ASSIGN_OR_RETURN(JinjaExpressionPtr right, tighter());
      TANDEM_ASSIGN_OR_RETURN(left,
                              MakeBinary(Expression::Kind::kBinary, *op, std::move(left), std::move(right)));
    }
  }

  ParsedExpression ParseSum() {
    return ParseChain(std::array<absl::string_view, 2>{"+", "-"}, [this] { return ParseConcatenation(); });
  }
  ParsedExpression ParseConcatenation() {
    return ParseChain(std::array<absl::string_view, 1>{"~"}, [this] { return ParseProduct(); });
  }
  ParsedExpression ParseProduct() {
    return ParseChain(std::array<absl::string_view, 4>{"*", "/", "//", "%"}, [this] { return ParsePower(); });
  }
  ParsedExpression ParsePower() {
    return ParseChain(std::array<absl::string_view, 1>{"**"}, [this] { return ParseUnary(true); });
  }

  ParsedExpression ParseUnary(bool with_filters) {
    JinjaExpressionPtr value;
    if (IsOperator("-") || IsOperator("+")) {
      std::unique_ptr<Expression> node = MakeExpression(Expression::Kind::kUnary, Current().text);
      Skip();
      if (++expression_depth_ > kMaxExpressionDepth) return Malformed("an expression nests too deeply");
      TANDEM_ASSIGN_OR_RETURN(JinjaExpressionPtr operand, ParseUnary(false));
      --expression_depth_;
      node->operands.push_back(std::move(operand));
      TANDEM_ASSIGN_OR_RETURN(value, Finish(std::move(node)));
    } else {
      TANDEM_ASSIGN_OR_RETURN(value, ParsePrimary());
    }
    TANDEM_ASSIGN_OR_RETURN(value, ParsePostfix(std::move(value)));
    if (!with_filters) return value;
    while (true) {
      if (TakeOperator("|")) {
        TANDEM_ASSIGN_OR_RETURN(value, ParseFilter(std::move(value)));
      } else if (TakeName("is")) {
        TANDEM_ASSIGN_OR_RETURN(value, ParseTest(std::move(value)));
      } else if (IsOperator("(")) {
        TANDEM_ASSIGN_OR_RETURN(value, ParsePostfix(std::move(value)));
      } else {
        return value;
      }
    }
  }

  ParsedExpression ParsePrimary() {
    const JinjaToken& token = Current();
    switch (token.kind) {
      case Kind::kName:
        return ParseNameOrConstant();
      case Kind::kString: {
        std::string text;
        while (Current().kind == Kind::kString) {
          text += Current().text;
          Skip();
        }
        return MakeConstant(JinjaValue::String(std::move(text)));
      }
      case Kind::kInteger:
        Skip();
        return MakeConstant(JinjaValue::Int(token.integer));
      case Kind::kFloat:
        Skip();
        return MakeConstant(JinjaValue::Float(token.number));
      default:
        break;
    }
    if (TakeOperator("(")) return ParseParentheses();
    if (TakeOperator("[")) return ParseListDisplay();
    if (TakeOperator("{")) return ParseDictDisplay();
    return Expected("an expression");
  }

  ParsedExpression MakeConstant(JinjaValue value) const {
    std::unique_ptr<Expression> node = MakeExpression(Expression::Kind::kConstant);
    node->constant = std::move(value);
    return JinjaExpressionPtr(std::move(node));
  }

  ParsedExpression ParseNameOrConstant() {
    const std::string name = Current().text;
    std::unique_ptr<Expression> node = MakeExpression(Expression::Kind::kName, name);
    Skip();
    if (name == "true" || name == "True") return MakeConstant(JinjaValue::Bool(true));
    if (name == "false" || name == "False") return MakeConstant(JinjaValue::Bool(false));
    if (name == "none" || name == "None") return MakeConstant(JinjaValue());
    if (IsUnsupportedJinjaFunction(name)) return Unsupported(absl::StrCat("'", name, "'"));
    for (JinjaMacro* macro : open_macros_) {
      macro->uses_caller = macro->uses_caller || name == "caller";
      macro->uses_varargs = macro->uses_varargs || name == "varargs";
      macro->uses_kwargs = macro->uses_kwargs || name == "kwargs";
    }
    return JinjaExpressionPtr(std::move(node));
  }

  ParsedExpression ParseParentheses() {
    if (TakeOperator(")")) return Finish(MakeExpression(Expression::Kind::kList, JinjaValue::kTuple));
    TANDEM_ASSIGN_OR_RETURN(JinjaExpressionPtr value, ParseTuple());
    TANDEM_RETURN_IF_ERROR(ExpectOperator(")"));
    return value;
  }

  ParsedExpression ParseListDisplay() {
    std::unique_ptr<Expression> node = MakeExpression(Expression::Kind::kList);
    while (!TakeOperator("]")) {
      if (!node->operands.empty()) {
        TANDEM_RETURN_IF_ERROR(ExpectOperator(","));
        if (TakeOperator("]")) break;
      }
      TANDEM_ASSIGN_OR_RETURN(JinjaExpressionPtr item, ParseExpression());
      node->operands.push_back(std::move(item));
    }
    return Finish(std::move(node));
  }

  ParsedExpression ParseDictDisplay() {
    std::unique_ptr<Expression> node = MakeExpression(Expression::Kind::kDict);
    while (!TakeOperator("}")) {
      if (!node->operands.empty()) {
        TANDEM_RETURN_IF_ERROR(ExpectOperator(","));
        if (TakeOperator("}")) break;
      }
      TANDEM_ASSIGN_OR_RETURN(JinjaExpressionPtr key, ParseExpression());
      TANDEM_RETURN_IF_ERROR(ExpectOperator(":"));
      TANDEM_ASSIGN_OR_RETURN(JinjaExpressionPtr value, ParseExpression());
      node->operands.push_back(std::move(key));
      node->operands.push_back(std::move(value));
    }
    return Finish(std::move(node));
  }

  ParsedExpression ParsePostfix(JinjaExpressionPtr value) {
    while (true) {
      if (TakeOperator(".")) {
        std::unique_ptr<Expression> node = MakeExpression(Expression::Kind::kAttribute, Current().text);
        node->operands.push_back(std::move(value));
        if (Current().kind == Kind::kInteger) {
          node->kind = Expression::Kind::kItem;
          TANDEM_ASSIGN_OR_RETURN(JinjaExpressionPtr index, MakeConstant(JinjaValue::Int(Current().integer)));
          node->operands.push_back(std::move(index));
        } else if (Current().kind != Kind::kName) {
          return Expected("a name");
        }
        Skip();
        TANDEM_ASSIGN_OR_RETURN(value, Finish(std::move(node)));
      } else if (TakeOperator("[")) {
        TANDEM_ASSIGN_OR_RETURN(value, ParseSubscript(std::move(value)));
      } else if (TakeOperator("(")) {
        std::unique_ptr<Expression> node = MakeExpression(Expression::Kind::kCall);
        TANDEM_RETURN_IF_ERROR(CheckCallee(*value));
        node->operands.push_back(std::move(value));
        TANDEM_RETURN_IF_ERROR(ParseArguments(*node));
        TANDEM_ASSIGN_OR_RETURN(value, Finish(std::move(node)));
      } else {
        return value;
      }
    }
  }

  ParsedExpression ParseSubscript(JinjaExpressionPtr value) {
    std::unique_ptr<Expression> node = MakeExpression(Expression::Kind::kItem);
    node->operands.push_back(std::move(value));
    JinjaExpressionPtr part;
    if (!IsOperator(":")) {
      TANDEM_ASSIGN_OR_RETURN(part, ParseExpression());
      if (TakeOperator("]")) {
        node->operands.push_back(std::move(part));
        return Finish(std::move(node));
      }
    }
    node->kind = Expression::Kind::kSlice;
    node->operands.push_back(std::move(part));
    while (node->operands.size() < 4 && TakeOperator(":")) {
      JinjaExpressionPtr bound;
      if (!IsOperator(":") && !IsOperator("]")) {
        TANDEM_ASSIGN_OR_RETURN(bound, ParseExpression());
      }
      node->operands.push_back(std::move(bound));
    }
    node->operands.resize(4);
    TANDEM_RETURN_IF_ERROR(ExpectOperator("]"));
    return Finish(std::move(node));
  }

  // What is called, where its name alone says that there is no such thing here.
  absl::Status CheckCallee(const Expression& callee) const {
    if (callee.kind != Expression::Kind::kAttribute) return absl::OkStatus();
    if (IsUnsupportedPythonMethod(callee.text))
      return Unsupported(absl::StrCat("method '", callee.text, "'"));
    return absl::OkStatus();
  }

  // From after "(" up to ")".
  absl::Status ParseArguments(Expression& node) {
    bool is_first = true;
    bool has_named = false;  // Or a "*", behind which only those may come.
    bool has_dict = false;
    while (!TakeOperator(")")) {
      if (!is_first) {
        TANDEM_RETURN_IF_ERROR(ExpectOperator(","));
        if (TakeOperator(")")) break;
      }
      is_first = false;
      std::string name;
      if (has_dict) return Expected("')'");
      if (IsOperator("*") || IsOperator("**")) {
        name = Current().text;
        if (name == "*" && has_named) return Expected("a named argument");
        has_named = true;
        has_dict = name == "**";
        Skip();
      } else if (Current().kind == Kind::kName && Is(Next(), Kind::kOperator, "=")) {
        name = Current().text;
        has_named = true;
        Skip();
        Skip();
      } else if (has_named) {
        return Expected("a named argument");
      }
      TANDEM_ASSIGN_OR_RETURN(JinjaExpressionPtr argument, ParseExpression());
      node.arguments.emplace_back(std::move(name), std::move(argument));
    }
    return absl::OkStatus();
  }

  // Whether a filter or a test takes these arguments, as far as it can be seen here.
  absl::Status CheckArguments(const Expression& node, const JinjaSignature& signature,
                              absl::string_view what) const {
    size_t num_positional = 0;
    std::vector<absl::string_view> named;
    for (const auto& argument : node.arguments) {
      if (argument.first == "*" || argument.first == "**") return absl::OkStatus();
      if (argument.first.empty()) {
        ++num_positional;
      } else {
        named.push_back(argument.first);
      }
    }
    const absl::Status status =
        CheckJinjaCall(signature, absl::StrCat(what, " '", node.text, "'"), num_positional, named);
    return status.ok() ? status : Malformed(status.message());
  }

  // Filters that apply another filter or a test, which an argument names.
  absl::Status CheckNamed(const Expression& node) const {
    const bool is_map = node.text == "map";
    const bool by_attribute = node.text == "selectattr" || node.text == "rejectattr";
    if (!is_map && !by_attribute && node.text != "select" && node.text != "reject") return absl::OkStatus();
    const size_t place = by_attribute ? 1 : 0;
    if (node.arguments.size() <= place || !node.arguments[place].first.empty()) return absl::OkStatus();
    const std::string* const name = node.arguments[place].second->constant.AsString();
    if (node.arguments[place].second->kind != Expression::Kind::kConstant || name == nullptr)
      return absl::OkStatus();
    if (is_map && FindJinjaFilter(*name) == nullptr) return Unsupported(absl::StrCat("filter '", *name, "'"));
    if (!is_map && FindJinjaTest(*name) == nullptr) return Unsupported(absl::StrCat("test '", *name, "'"));
    return absl::OkStatus();
  }

  ParsedExpression ParseFilter(JinjaExpressionPtr value) {
    std::unique_ptr<Expression> node = MakeExpression(Expression::Kind::kFilter, Current().text);
    TANDEM_RETURN_IF_ERROR(Expect(Kind::kName, "the name of a filter"));
    node->operands.push_back(std::move(value));
    const JinjaSignature* const signature = FindJinjaFilter(node->text);
    if (signature == nullptr) return Unsupported(absl::StrCat("filter '", node->text, "'"));
    if (TakeOperator("(")) TANDEM_RETURN_IF_ERROR(ParseArguments(*node));
    TANDEM_RETURN_IF_ERROR(CheckArguments(*node, *signature, "filter"));
    TANDEM_RETURN_IF_ERROR(CheckNamed(*node));
    return Finish(std::move(node));
  }

  ParsedExpression ParseTest(JinjaExpressionPtr value) {
    const bool negated = TakeName("not");
    std::unique_ptr<Expression> node = MakeExpression(Expression::Kind::kTest, Current().text);
    TANDEM_RETURN_IF_ERROR(Expect(Kind::kName, "the name of a test"));
    node->operands.push_back(std::move(value));
    const JinjaSignature* const signature = FindJinjaTest(node->text);
    if (signature == nullptr) return Unsupported(absl::StrCat("test '", node->text, "'"));
    const Kind kind = Current().kind;
    const bool is_word = kind == Kind::kName && !IsName("else") && !IsName("or") && !IsName("and") &&
                         !IsName("is") && !IsName("if") && !IsName("in") && !IsName("not");
    if (TakeOperator("(")) {
      TANDEM_RETURN_IF_ERROR(ParseArguments(*node));
    } else if (is_word || kind == Kind::kString || kind == Kind::kInteger || kind == Kind::kFloat ||
               IsOperator("[") || IsOperator("{")) {
      TANDEM_ASSIGN_OR_RETURN(JinjaExpressionPtr argument, ParsePrimary());
      TANDEM_ASSIGN_OR_RETURN(argument, ParsePostfix(std::move(argument)));
      node->arguments.emplace_back("", std::move(argument));
    }
    TANDEM_RETURN_IF_ERROR(CheckArguments(*node, *signature, "test"));
    TANDEM_ASSIGN_OR_RETURN(JinjaExpressionPtr test, Finish(std::move(node)));
    if (!negated) return test;
    std::unique_ptr<Expression> negation = MakeExpression(Expression::Kind::kUnary, "not");
    negation->operands.push_back(std::move(test));
    return Finish(std::move(negation));
  }

  // The macros around what is parsed.
  std::vector<JinjaMacro*> open_macros_;

 private:
  std::vector<JinjaToken> tokens_;
  size_t position_ = 0;
  int expression_depth_ = 0;
};

}  // namespace tandem
