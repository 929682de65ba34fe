#include "common/tokenizer/jinja/jinja_syntax.h"

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
    if (name == "generation") return ParseGeneration();
    if (name == "filter") return ParseFilterBlock();
    if (name == "break" || name == "continue") {
      if (loop_depth_ == 0) return Malformed(absl::StrCat("'", name, "' outside a loop"));
      Statement statement = Make(name == "break" ? Statement::Kind::kBreak : Statement::Kind::kContinue);
      TANDEM_RETURN_IF_ERROR(EndBlock());
      return statement;
    }
    for (absl::string_view known :
         {"extends", "include", "import", "from", "call", "with", "block", "autoescape", "do", "trans"}) {
      if (name == known) {
        return absl::UnimplementedError(
            absl::StrCat("line ", Current().line, ": tag '", name, "' is not supported"));
      }
    }
    return Malformed(absl::StrCat("unexpected tag '", name, "'"));
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

  absl::Status ParseTargets(std::vector<std::string>& names) {
    do {
      TANDEM_ASSIGN_OR_RETURN(std::string name, TakeAnyName());
      names.push_back(std::move(name));
    } while (TakeOperator(","));
    return absl::OkStatus();
  }

  absl::StatusOr<Statement> ParseFor() {
    Statement statement = Make(Statement::Kind::kFor);
    TANDEM_RETURN_IF_ERROR(ParseTargets(statement.names));
    if (!TakeName("in")) return Expected("'in'");
    // Not a conditional expression: an "if" here filters the items.
    TANDEM_ASSIGN_OR_RETURN(statement.expression, ParseOr());
    JinjaExpressionPtr condition;
    if (TakeName("if")) {
      TANDEM_ASSIGN_OR_RETURN(condition, ParseExpression());
    }
    statement.conditions.push_back(std::move(condition));
    if (IsName("recursive")) return absl::UnimplementedError("recursive loops are not supported");
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
    if (Is(Next(), Kind::kOperator, ".")) {
      TANDEM_ASSIGN_OR_RETURN(statement.text, TakeAnyName());
      Skip();
      TANDEM_ASSIGN_OR_RETURN(std::string attribute, TakeAnyName());
      statement.names.push_back(std::move(attribute));
    } else {
      TANDEM_RETURN_IF_ERROR(ParseTargets(statement.names));
    }
    if (TakeOperator("=")) {
      TANDEM_ASSIGN_OR_RETURN(statement.expression, ParseTuple());
      TANDEM_RETURN_IF_ERROR(EndBlock());
      return statement;
    }
    if (Current().kind != Kind::kBlockEnd || !statement.text.empty() || statement.names.size() != 1) {
      return Expected("'='");
    }
    statement.kind = Statement::Kind::kSetBlock;
    TANDEM_RETURN_IF_ERROR(EndBlock());
    std::string ending;
    TANDEM_ASSIGN_OR_RETURN(JinjaBody body, ParseBody({"endset"}, ending));
    statement.bodies.push_back(std::move(body));
    TANDEM_RETURN_IF_ERROR(EndBlock());
    return statement;
  }

  absl::StatusOr<Statement> ParseMacro() {
    Statement statement = Make(Statement::Kind::kMacro);
    auto macro = std::make_shared<JinjaMacro>();
    TANDEM_ASSIGN_OR_RETURN(macro->name, TakeAnyName());
    TANDEM_RETURN_IF_ERROR(ExpectOperator("("));
    while (!TakeOperator(")")) {
      if (!macro->parameters.empty()) TANDEM_RETURN_IF_ERROR(ExpectOperator(","));
      TANDEM_ASSIGN_OR_RETURN(std::string name, TakeAnyName());
      JinjaExpressionPtr if_absent;
      if (TakeOperator("=")) {
        TANDEM_ASSIGN_OR_RETURN(if_absent, ParseExpression());
      }
      macro->parameters.emplace_back(std::move(name), std::move(if_absent));
    }
    TANDEM_RETURN_IF_ERROR(EndBlock());
    const int outer_loop_depth = std::exchange(loop_depth_, 0);
    std::string ending;
    TANDEM_ASSIGN_OR_RETURN(macro->body, ParseBody({"endmacro"}, ending));
    loop_depth_ = outer_loop_depth;
    TANDEM_RETURN_IF_ERROR(EndBlock());
    statement.macro = std::move(macro);
    return statement;
  }

  // {% generation %} marks the model's text for training. It does not change the output.
  absl::StatusOr<Statement> ParseGeneration() {
    Statement statement = Make(Statement::Kind::kBlock);
    TANDEM_RETURN_IF_ERROR(EndBlock());
    std::string ending;
    TANDEM_ASSIGN_OR_RETURN(JinjaBody body, ParseBody({"endgeneration"}, ending));
    statement.bodies.push_back(std::move(body));
    TANDEM_RETURN_IF_ERROR(EndBlock());
    return statement;
  }

  absl::StatusOr<Statement> ParseFilterBlock() {
    Statement statement = Make(Statement::Kind::kFilterBlock);
    TANDEM_ASSIGN_OR_RETURN(statement.expression,
                            Finish(MakeExpression(JinjaExpression::Kind::kName, kJinjaCaptured)));
    do {
      TANDEM_ASSIGN_OR_RETURN(statement.expression, ParseFilter(std::move(statement.expression)));
    } while (TakeOperator("|"));
    TANDEM_RETURN_IF_ERROR(EndBlock());
    std::string ending;
    TANDEM_ASSIGN_OR_RETURN(JinjaBody body, ParseBody({"endfilter"}, ending));
    statement.bodies.push_back(std::move(body));
    TANDEM_RETURN_IF_ERROR(EndBlock());
    return statement;
  }

  int block_depth_ = 0;
  int loop_depth_ = 0;
};

}  // namespace

absl::StatusOr<JinjaBody> ParseJinja(absl::string_view source) {
  TANDEM_ASSIGN_OR_RETURN(std::vector<JinjaToken> tokens, TokenizeJinja(source));
  return Parser(std::move(tokens)).ParseTemplate();
}

}  // namespace tandem
