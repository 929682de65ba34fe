#include "tests/fuzz/constraint_case.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/grammar/constraint.h"
#include "tests/fuzz/expression.h"

namespace tandem::fuzz {
namespace {

// A pattern's parts have no rules to refer to, and know shorthands.
void AddShorthands(InputReader& reader, Expression* expression) {
  constexpr const char* kShorthands[] = {"\\d", "\\w", ".", "\\S", "\\D", "[^\\d]", "[\\w-]"};
  if (expression->kind == Expression::Kind::kClass && reader.Below(3) == 0) {
    expression->text = kShorthands[reader.Below(std::size(kShorthands))];
  }
  for (Expression& part : expression->parts) AddShorthands(reader, &part);
}

bool HasShorthand(const Expression& expression) {
  if (expression.kind == Expression::Kind::kClass) return !expression.text.empty();
  return std::any_of(expression.parts.begin(), expression.parts.end(), HasShorthand);
}

}  // namespace

std::string MakeCharacter(InputReader& reader) {
  constexpr uint32_t kRare[] = {0,    1,     7,      8,       9,       0xa,      0xb,  0xc,  0xd,
                                0x1b, 0x1f,  '"',    '\\',    '/',     '\'',     '$',  '^',  ']',
                                '-',  '}',   '|',    '#',     0x7f,    0x80,     0x85, 0xa0, 0xad,
                                0xff, 0x100, 0x2028, 0xd7ff,  0xe000,  0xfeff,   '0',  'F',  'f',
                                '9',  ' ',   0xffff, 0x10000, 0x1f600, 0x10fffe, '?',  '.'};
  constexpr char kUsual[] = "abxyAB019";
  if (reader.Below(3) > 0) return std::string(1, kUsual[reader.Below(sizeof(kUsual) - 1)]);
  return Utf8(kRare[reader.Below(std::size(kRare))]);
}

ConstraintCase MakeChoicesCase(InputReader& reader) {
  std::vector<std::string> choices;
  const int count = 1 + reader.Below(6);
  for (int i = 0; i < count; ++i) {
    // Often one begins as another does.
    std::string choice = i > 0 && reader.Below(2) == 0 ? choices[reader.Below(i)] : "";
    for (int more = 1 + reader.Below(5); more > 0; --more) choice += MakeCharacter(reader);
    choices.push_back(std::move(choice));
  }
  std::sort(choices.begin(), choices.end());
  choices.erase(std::unique(choices.begin(), choices.end()), choices.end());
  const absl::StatusOr<ConstraintSource> source = ConstraintOfChoices(choices);
  Require(source.ok(), "choices are taken");
  return {.source = *source,
          .matches =
              [choices](absl::string_view text) {
                return std::find(choices.begin(), choices.end(), text) != choices.end();
              },
          .has_texts = true,
          .texts = choices};
}

ConstraintCase MakeGrammarCase(InputReader& reader) {
  auto rules = std::make_shared<Rules>();
  const size_t num_rules = 1 + reader.Below(4);
  for (size_t i = 0; i < num_rules; ++i) rules->push_back(MakeExpression(reader, num_rules, 3));
  ConstraintCase made{.source = {.form = ConstraintSource::Form::kGrammar, .text = PrintGrammar(*rules)},
                      .matches = [rules](absl::string_view text) { return HasText(*rules, text); },
                      .has_texts = FiniteRules(*rules)[0]};
  for (int i = 0; *made.has_texts && i < 3; ++i) {
    std::string text = SampleText(*rules, reader);
    if (text.size() < 200) made.texts.push_back(std::move(text));
  }
  return made;
}

ConstraintCase MakeRegexCase(InputReader& reader) {
  Expression expression = MakeExpression(reader, 0, 3);
  AddShorthands(reader, &expression);
  const std::string pattern = PrintPattern(expression);
  const int anchors = reader.Below(4);
  ConstraintCase made{
      .source = {.form = ConstraintSource::Form::kRegex,
                 .text = absl::StrCat(anchors & 1 ? "^" : "", pattern, anchors & 2 ? "$" : "")},
      .matches = [pattern](absl::string_view text) { return PatternMatches(pattern, text, /*whole=*/true); }};
  const Rules rules = {std::move(expression)};
  if (HasShorthand(rules[0])) return made;
  made.has_texts = true;
  for (int i = 0; i < 3; ++i) {
    std::string text = SampleText(rules, reader);
    if (text.size() < 200) made.texts.push_back(std::move(text));
  }
  return made;
}

bool PatternMatches(absl::string_view pattern, absl::string_view text, bool whole) {
  const auto bytes = [](absl::string_view view) { return reinterpret_cast<PCRE2_SPTR>(view.data()); };
  int error = 0;
  PCRE2_SIZE at = 0;
  const uint32_t options = PCRE2_UTF | (whole ? PCRE2_ANCHORED | PCRE2_ENDANCHORED : PCRE2_DOLLAR_ENDONLY);
  const std::unique_ptr<pcre2_code, void (*)(pcre2_code*)> code(
      pcre2_compile(bytes(pattern), pattern.size(), options, &error, &at, nullptr), pcre2_code_free);
  Require(code != nullptr, absl::StrCat("PCRE2 knows ", pattern));
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> match(
      pcre2_match_data_create_from_pattern(code.get(), nullptr), pcre2_match_data_free);
  const int found = pcre2_match(code.get(), bytes(text), text.size(), 0, 0, match.get(), nullptr);
  // Where it gives up nothing is known.
  return found >= 0 || found == PCRE2_ERROR_MATCHLIMIT;
}

}  // namespace tandem::fuzz
