#include "common/tokenizer/jinja/jinja_syntax.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/jinja/jinja_expression_parser.h"
#include "common/tokenizer/jinja/jinja_lexer.h"

namespace tandem {
namespace {

using Statement = JinjaStatement;

constexpr int kMaxBlockDepth = 40;

class Parser : private JinjaExpressionParser {
 public:
  explicit Parser(std::vector<JinjaToken> tokens) : JinjaExpressionParser(std::move(tokens)) {}

  absl::StatusOr<JinjaBody> ParseTemplate() {
    std::string ending;
    TANDEM_ASSIGN_OR_RETURN(JinjaBody body, ParseBody({}, ending));
    return body;
  }

 private:
  // Parses up to a block tag named in `endings`, and stops after that name. Without endings, parses up to the
  // end.
  absl::StatusOr<JinjaBody> ParseBody(std::vector<absl::string_view> endings, std::string& ending) {
    if (++block_depth_ > kMaxBlockDepth) return Malformed("blocks nest too deeply");
    JinjaBody body;
    while (true) {
      const JinjaToken& token = Current();
      if (token.kind == Kind::kEnd) {
        if (!endings.empty()) return Expected(absl::StrCat("'{% ", endings.back(), " %}'"));
        break;
      }
      if (token.kind == Kind::kText) {
        body.push_back(Make(Statement::Kind::kText));
        body.back().text = token.text;
        Skip();
      } else if (token.kind == Kind::kOutputBegin) {
        Skip();
        body.push_back(Make(Statement::Kind::kOutput));
        TANDEM_ASSIGN_OR_RETURN(body.back().expression, ParseTuple());
        TANDEM_RETURN_IF_ERROR(Expect(Kind::kOutputEnd, "'}}'"));
      } else {
        TANDEM_RETURN_IF_ERROR(Expect(Kind::kBlockBegin, "a tag"));
        TANDEM_ASSIGN_OR_RETURN(const std::string name, TakeAnyName());
        if (std::find(endings.begin(), endings.end(), name) != endings.end()) {
          ending = name;
          break;
        }
        TANDEM_ASSIGN_OR_RETURN(Statement statement, ParseStatement(name));
        body.push_back(std::move(statement));
      }
    }
    --block_depth_;
    return body;
  }

  Statement Make(Statement::Kind kind) const {
    Statement statement;
    statement.kind = kind;
    statement.line = Current().line;
    return statement;
  }

  absl::Status EndBlock() { return Expect(Kind::kBlockEnd, "'%}'"); }

  absl::StatusOr<Statement> ParseStatement(const std::string& name) {
    if (name == "if") return ParseIf();
    if (name == "for") return ParseFor();
    if (name == "set") return ParseSet();
    if (name == "macro") return ParseMacro();
    if (name == "call") return ParseCall();
    if (name == "generation") return ParseGeneration();
    if (name == "with") return ParseWith();
    if (name == "block") return ParseBlock();
    if (name == "filter") return ParseFilterBlock();
    if (name == "autoescape") return ParseAutoescape();
    if (name == "break" || name == "continue") {
      if (loop_depth_ == 0) return Malformed(absl::StrCat("'", name, "' outside a loop"));
      Statement statement = Make(name == "break" ? Statement::Kind::kBreak : Statement::Kind::kContinue);
      TANDEM_RETURN_IF_ERROR(EndBlock());
      return statement;
    }
    for (absl::string_view known : {"extends", "include", "import", "from", "do", "trans", "debug"}) {
      if (name == known) return Unsupported(absl::StrCat("tag '", name, "'"));
    }
    return Malformed(absl::StrCat("unexpected tag '", name, "'"));
  }

  // The rest of a tag, and a body up to another one.
  absl::Status ParseOnlyBody(absl::string_view ending, Statement& statement) {
    TANDEM_RETURN_IF_ERROR(EndBlock());
    std::string found;
    TANDEM_ASSIGN_OR_RETURN(JinjaBody body, ParseBody({ending}, found));
    statement.bodies.push_back(std::move(body));
    return absl::OkStatus();
  }

  absl::StatusOr<Statement> ParseIf() {
    Statement statement = Make(Statement::Kind::kIf);
    std::string ending = "elif";
    while (ending != "endif") {
      JinjaExpressionPtr condition;
      if (ending == "elif") {
        TANDEM_ASSIGN_OR_RETURN(condition, ParseTuple());
      }
      TANDEM_RETURN_IF_ERROR(EndBlock());
      std::vector<absl::string_view> endings = {"elif", "else", "endif"};
      if (ending == "else") endings = {"endif"};
      TANDEM_ASSIGN_OR_RETURN(JinjaBody body, ParseBody(endings, ending));
      statement.conditions.push_back(std::move(condition));
      statement.bodies.push_back(std::move(body));
    }
    TANDEM_RETURN_IF_ERROR(EndBlock());
    return statement;
  }

  // A name, an attribute of a namespace, or a tuple in parentheses.
  absl::StatusOr<JinjaTarget> ParseOneTarget(int depth) {
    if (depth > kMaxBlockDepth) return Malformed("names nest too deeply");
    if (TakeOperator("(")) {
      TANDEM_ASSIGN_OR_RETURN(JinjaTarget inner, ParseTarget(depth + 1));
      TANDEM_RETURN_IF_ERROR(ExpectOperator(")"));
      return inner;
    }
    JinjaTarget target;
    TANDEM_ASSIGN_OR_RETURN(target.name, TakeAnyName());
    for (const absl::string_view constant : {"true", "false", "none", "True", "False", "None"}) {
      if (target.name == constant) return Malformed(absl::StrCat("cannot assign to '", constant, "'"));
    }
    if (TakeOperator(".")) {
      TANDEM_ASSIGN_OR_RETURN(target.attribute, TakeAnyName());
    }
    return target;
  }

  // One target, or several with commas between them.
  absl::StatusOr<JinjaTarget> ParseTarget(int depth = 0) {
    TANDEM_ASSIGN_OR_RETURN(JinjaTarget first, ParseOneTarget(depth));
    if (!IsOperator(",")) return first;
    JinjaTarget several;
    several.is_tuple = true;
    several.items.push_back(std::move(first));
    while (TakeOperator(",")) {
      // Jinja takes a comma behind the last one only in parentheses.
      if (depth > 0 && IsOperator(")")) break;
      if (IsName("in")) return Expected("a name");
      TANDEM_ASSIGN_OR_RETURN(JinjaTarget item, ParseOneTarget(depth));
      several.items.push_back(std::move(item));
    }
    return several;
  }

  absl::StatusOr<Statement> ParseFor() {
    Statement statement = Make(Statement::Kind::kFor);
    TANDEM_ASSIGN_OR_RETURN(statement.target, ParseTarget());
    if (!TakeName("in")) return Expected("'in'");
    TANDEM_ASSIGN_OR_RETURN(statement.expression, ParseTuple(/*with_conditions=*/false));
    JinjaExpressionPtr condition;
    if (TakeName("if")) {
      TANDEM_ASSIGN_OR_RETURN(condition, ParseExpression());
    }
    statement.conditions.push_back(std::move(condition));
    statement.is_recursive = TakeName("recursive");
    TANDEM_RETURN_IF_ERROR(EndBlock());
    std::string ending;
    ++loop_depth_;
    TANDEM_ASSIGN_OR_RETURN(JinjaBody body, ParseBody({"else", "endfor"}, ending));
    --loop_depth_;
    statement.bodies.push_back(std::move(body));
    if (ending == "else") {
      TANDEM_RETURN_IF_ERROR(EndBlock());
      TANDEM_ASSIGN_OR_RETURN(JinjaBody otherwise, ParseBody({"endfor"}, ending));
      statement.bodies.push_back(std::move(otherwise));
    }
    TANDEM_RETURN_IF_ERROR(EndBlock());
    return statement;
  }

  absl::StatusOr<Statement> ParseSet() {
    Statement statement = Make(Statement::Kind::kSet);
    TANDEM_ASSIGN_OR_RETURN(statement.target, ParseTarget());
    if (TakeOperator("=")) {
      TANDEM_ASSIGN_OR_RETURN(statement.expression, ParseTuple());
      TANDEM_RETURN_IF_ERROR(EndBlock());
      return statement;
    }
    if (statement.target.is_tuple || (Current().kind != Kind::kBlockEnd && !IsOperator("|")))
      return Expected("'='");
    statement.kind = Statement::Kind::kSetBlock;
    if (TakeOperator("|")) {
      TANDEM_ASSIGN_OR_RETURN(statement.expression, ParseCapturedFilters());
    }
    TANDEM_RETURN_IF_ERROR(ParseOnlyBody("endset", statement));
    TANDEM_RETURN_IF_ERROR(EndBlock());
    return statement;
  }

  // From after "(" up to ")".
  absl::Status ParseParameters(JinjaMacro& macro) {
    while (!TakeOperator(")")) {
      if (!macro.parameters.empty()) TANDEM_RETURN_IF_ERROR(ExpectOperator(","));
      if (TakeOperator(")")) break;
      TANDEM_ASSIGN_OR_RETURN(std::string name, TakeAnyName());
      JinjaExpressionPtr if_absent;
      if (TakeOperator("=")) {
        TANDEM_ASSIGN_OR_RETURN(if_absent, ParseExpression());
      } else if (!macro.parameters.empty() && macro.parameters.back().second != nullptr) {
        return Malformed("a parameter without default behind one with a default");
      }
      macro.parameters.emplace_back(std::move(name), std::move(if_absent));
    }
    return absl::OkStatus();
  }

  absl::Status ParseMacroBody(absl::string_view ending, JinjaMacro& macro) {
    TANDEM_RETURN_IF_ERROR(EndBlock());
    const int outer_loop_depth = std::exchange(loop_depth_, 0);
    open_macros_.push_back(&macro);
    std::string found;
    TANDEM_ASSIGN_OR_RETURN(macro.body, ParseBody({ending}, found));
    open_macros_.pop_back();
    loop_depth_ = outer_loop_depth;
    return EndBlock();
  }

  absl::StatusOr<Statement> ParseMacro() {
    Statement statement = Make(Statement::Kind::kMacro);
    auto macro = std::make_shared<JinjaMacro>();
    TANDEM_ASSIGN_OR_RETURN(macro->name, TakeAnyName());
    TANDEM_RETURN_IF_ERROR(ExpectOperator("("));
    TANDEM_RETURN_IF_ERROR(ParseParameters(*macro));
    TANDEM_RETURN_IF_ERROR(ParseMacroBody("endmacro", *macro));
    statement.macro = std::move(macro);
    return statement;
  }

  absl::StatusOr<Statement> ParseCall() {
    Statement statement = Make(Statement::Kind::kCall);
    auto caller = std::make_shared<JinjaMacro>();
    caller->name = "caller";
    if (TakeOperator("(")) TANDEM_RETURN_IF_ERROR(ParseParameters(*caller));
    TANDEM_ASSIGN_OR_RETURN(statement.expression, ParseExpression());
    if (statement.expression->kind != JinjaExpression::Kind::kCall) return Expected("a call");
    TANDEM_RETURN_IF_ERROR(ParseMacroBody("endcall", *caller));
    statement.macro = std::move(caller);
    return statement;
  }

  // {% generation %} marks the model's text for training. It does not change the output.
  absl::StatusOr<Statement> ParseGeneration() {
    Statement statement = Make(Statement::Kind::kScope);
    const int outer_loop_depth = std::exchange(loop_depth_, 0);
    TANDEM_RETURN_IF_ERROR(ParseOnlyBody("endgeneration", statement));
    loop_depth_ = outer_loop_depth;
    TANDEM_RETURN_IF_ERROR(EndBlock());
    return statement;
  }

  absl::StatusOr<Statement> ParseWith() {
    Statement statement = Make(Statement::Kind::kWith);
    while (Current().kind != Kind::kBlockEnd) {
      if (!statement.targets.empty()) TANDEM_RETURN_IF_ERROR(ExpectOperator(","));
      TANDEM_ASSIGN_OR_RETURN(JinjaTarget target, ParseOneTarget(0));
      TANDEM_RETURN_IF_ERROR(ExpectOperator("="));
      TANDEM_ASSIGN_OR_RETURN(JinjaExpressionPtr value, ParseExpression());
      statement.targets.push_back(std::move(target));
      statement.conditions.push_back(std::move(value));
    }
    TANDEM_RETURN_IF_ERROR(ParseOnlyBody("endwith", statement));
    TANDEM_RETURN_IF_ERROR(EndBlock());
    return statement;
  }

  absl::StatusOr<Statement> ParseBlock() {
    Statement statement = Make(Statement::Kind::kBlock);
    TANDEM_ASSIGN_OR_RETURN(statement.text, TakeAnyName());
    if (!blocks_.insert(statement.text).second)
      return Malformed(absl::StrCat("block '", statement.text, "' a second time"));
    statement.is_scoped = TakeName("scoped");
    const int outer_loop_depth = std::exchange(loop_depth_, 0);
    TANDEM_RETURN_IF_ERROR(ParseOnlyBody("endblock", statement));
    loop_depth_ = outer_loop_depth;
    if (IsName(statement.text)) Skip();
    TANDEM_RETURN_IF_ERROR(EndBlock());
    return statement;
  }

  // Nothing is escaped unless a filter does it, so only `false` makes sense.
  absl::StatusOr<Statement> ParseAutoescape() {
    Statement statement = Make(Statement::Kind::kScope);
    if (!TakeName("false") && !TakeName("False"))
      return Unsupported("tag 'autoescape' other than with false");
    TANDEM_RETURN_IF_ERROR(ParseOnlyBody("endautoescape", statement));
    TANDEM_RETURN_IF_ERROR(EndBlock());
    return statement;
  }

  // Filters for what a body has output.
  ParsedExpression ParseCapturedFilters() {
    TANDEM_ASSIGN_OR_RETURN(JinjaExpressionPtr value,
                            Finish(MakeExpression(JinjaExpression::Kind::kName, kJinjaCaptured)));
    do {
      TANDEM_ASSIGN_OR_RETURN(value, ParseFilter(std::move(value)));
    } while (TakeOperator("|"));
    return value;
  }

  absl::StatusOr<Statement> ParseFilterBlock() {
    Statement statement = Make(Statement::Kind::kFilterBlock);
    TANDEM_ASSIGN_OR_RETURN(statement.expression, ParseCapturedFilters());
    TANDEM_RETURN_IF_ERROR(ParseOnlyBody("endfilter", statement));
    TANDEM_RETURN_IF_ERROR(EndBlock());
    return statement;
  }

  std::set<std::string> blocks_;
  int block_depth_ = 0;
  int loop_depth_ = 0;
};

}  // namespace

absl::StatusOr<JinjaBody> ParseJinja(absl::string_view source) {
  TANDEM_ASSIGN_OR_RETURN(std::vector<JinjaToken> tokens, TokenizeJinja(source));
  return Parser(std::move(tokens)).ParseTemplate();
}

}  // namespace tandem
