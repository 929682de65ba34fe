#include "common/grammar/constraint.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/grammar/call_marks.h"
#include "common/grammar/finite_schema.h"
#include "common/grammar/lark_string.h"
#include "common/grammar/schema/regex_grammar.h"
#include "common/grammar/schema/schema_document.h"
#include "common/model/config/strict_json.h"

namespace tandem {
namespace {

constexpr size_t kMostChoices = 10'000;
constexpr size_t kMostTags = 1'000;
constexpr size_t kMostTagBytes = 1'024;

constexpr uint32_t kMaxEscape = 0x10ffff;

absl::Status Invalid(absl::string_view message) {
  return absl::InvalidArgumentError(message);
}

uint32_t HexDigit(char digit) {
  return static_cast<uint32_t>(absl::ascii_isdigit(digit) ? digit - '0'
                                                          : absl::ascii_tolower(digit) - 'a' + 10);
}

// Brackets of a regular expression or a grammar: how deep they nest. What stands in a string, in a class or
// behind a backslash is none; comments of a grammar may hold some and count for nothing either.
absl::Status CheckBrackets(absl::string_view text, bool is_grammar, size_t max_depth) {
  size_t depth = 0;
  char closing = 0;  // Of the string, class or comment that we are in.
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\\' && closing != '\n') {
      ++i;
    } else if (closing != 0) {
      if (c == closing) closing = 0;
    } else if (c == '[') {
      closing = ']';
    } else if (is_grammar && (c == '"' || c == '\'')) {
      closing = c;
    } else if (is_grammar && c == '#') {
      closing = '\n';
    } else if (c == '(') {
      if (++depth > max_depth) {
        return Invalid(absl::StrCat("byte ", i, ": more than ", max_depth, " nested brackets"));
      }
    } else if (c == ')') {
      depth -= depth > 0 ? 1 : 0;
    }
  }
  return absl::OkStatus();
}

// The text must be characters, and none of them NUL, at which XGrammar stops to read.
absl::Status CheckCharacters(absl::string_view text) {
  if (const size_t nul = text.find('\0'); nul != absl::string_view::npos) {
    return Invalid(absl::StrCat("byte ", nul, ": NUL, expected an escape such as \\u0000 in its place"));
  }
  if (CleanUtf8(text) != text) return Invalid("not UTF-8");
  return absl::OkStatus();
}

// XGrammar's escapes for code points take any value, and make of those that are no characters what no output
// may hold.
absl::Status CheckEscapes(absl::string_view text) {
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    if (text[i] != '\\') continue;
    const size_t escape = i++;
    const char kind = text[i];
    if (kind != 'x' && kind != 'u' && kind != 'U') continue;
    const bool braced = i + 1 < text.size() && text[i + 1] == '{';
    const size_t begin = i + 1 + (braced ? 1 : 0);
    // As many digits as there are, or as the escape takes.
    const size_t most = braced || kind == 'x' ? text.size() : kind == 'u' ? 4 : 8;
    uint32_t code = 0;
    for (size_t at = begin; at < text.size() && at - begin < most && absl::ascii_isxdigit(text[at]); ++at) {
      code = std::min<uint32_t>(16 * code + HexDigit(text[at]), kMaxEscape + 1);
    }
    if (code > kMaxEscape || (code >= 0xd800 && code < 0xe000)) {
      return Invalid(absl::StrCat("byte ", escape,
                                  ": an escape of no character, expected a code point up to 10ffff",
                                  " other than d800 to dfff"));
    }
  }
  return absl::OkStatus();
}

// A string of XGrammar's EBNF. Its escapes have a fixed length: \x takes all hexadecimal digits that follow.
std::string Quoted(absl::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      absl::StrAppend(&quoted, "\\", absl::string_view(&c, 1));
    } else if (absl::ascii_iscntrl(c)) {
      absl::StrAppend(&quoted, "\\u", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad4));
    } else {
      quoted.push_back(c);
    }
  }
  quoted.push_back('"');
  return quoted;
}

// A part of a structural tag, as XGrammar's JSON has it.
absl::StatusOr<nlohmann::ordered_json> FormatOf(const ConstraintSource& source) {
  switch (source.form) {
    case ConstraintSource::Form::kJsonSchema:
      // As text, which keeps the order of properties and all digits (schema_source.h).
      return nlohmann::ordered_json{{"type", "json_schema"}, {"json_schema", source.text}};
    case ConstraintSource::Form::kRegex: {
      TANDEM_ASSIGN_OR_RETURN(std::string grammar, GrammarOfRegex(source.text));
      return nlohmann::ordered_json{{"type", "grammar"}, {"grammar", std::move(grammar)}};
    }
    case ConstraintSource::Form::kGrammar:
      return nlohmann::ordered_json{{"type", "grammar"}, {"grammar", source.text}};
    case ConstraintSource::Form::kLarkString:
      return nlohmann::ordered_json{{"type", kLarkStringType}, {"lark", source.text}};
    case ConstraintSource::Form::kStructuralTags:
      break;
  }
  return Invalid("content: structural tags within structural tags, expected another constraint");
}

// One of the tags or more; each may have a line end behind it.
ConstraintSource TagsAlone(nlohmann::ordered_json tags) {
  const nlohmann::ordered_json line_end = {{"type", "optional"},
                                           {"content", {{"type", "const_string"}, {"value", "\n"}}}};
  nlohmann::ordered_json tag = {{"type", "or"}, {"elements", std::move(tags)}};
  const nlohmann::ordered_json line = {
      {"type", "sequence"}, {"elements", nlohmann::ordered_json::array({std::move(tag), line_end})}};
  const nlohmann::ordered_json format = {{"type", "plus"}, {"content", line}};
  return {.form = ConstraintSource::Form::kStructuralTags,
          .text = nlohmann::ordered_json{{"type", "structural_tag"}, {"format", format}}.dump()};
}

absl::Status CheckTagText(absl::string_view text, absl::string_view field) {
  if (text.empty() || text.size() > kMostTagBytes) {
    return Invalid(absl::StrCat(field, ": ", text.size(), " bytes, expected 1 to ", kMostTagBytes));
  }
  if (CleanUtf8(text) != text) return Invalid(absl::StrCat(field, ": not UTF-8"));
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckConstraint(const ConstraintSource& source, const ConstraintLimits& limits) {
  if (source.text.empty()) return Invalid("empty");
  if (source.text.size() > limits.max_bytes) {
    return Invalid(absl::StrCat(source.text.size(), " bytes, expected at most ", limits.max_bytes));
  }
  switch (source.form) {
    case ConstraintSource::Form::kJsonSchema: {
      TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<const SchemaDocument> schema,
                              SchemaDocument::Read(source.text, limits.max_depth));
      return CheckFiniteSchema(*schema);
    }
    case ConstraintSource::Form::kStructuralTags:
      // Its parts have been looked at one by one.
      return ParseStrictJson(source.text, "structural tags", 0, {.max_depth = limits.max_depth + 8}).status();
    case ConstraintSource::Form::kLarkString:
      return absl::OkStatus();  // Its compiler bounds its own depth, and its process the rest.
    case ConstraintSource::Form::kRegex:
    case ConstraintSource::Form::kGrammar:
      break;
  }
  const bool is_grammar = source.form == ConstraintSource::Form::kGrammar;
  TANDEM_RETURN_IF_ERROR(CheckCharacters(source.text));
  TANDEM_RETURN_IF_ERROR(CheckBrackets(source.text, is_grammar, limits.max_depth));
  return is_grammar ? CheckEscapes(source.text) : GrammarOfRegex(source.text).status();
}

absl::StatusOr<ConstraintSource> ConstraintOfChoices(absl::Span<const std::string> choices) {
  if (choices.empty() || choices.size() > kMostChoices) {
    return Invalid(absl::StrCat(choices.size(), " choices, expected 1 to ", kMostChoices));
  }
  ConstraintSource source{.form = ConstraintSource::Form::kGrammar, .text = "root ::= "};
  std::set<absl::string_view> seen;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (choices[i].empty()) return Invalid(absl::StrCat("[", i, "]: empty, expected a text"));
    if (CleanUtf8(choices[i]) != choices[i]) return Invalid(absl::StrCat("[", i, "]: not UTF-8"));
    // One that is given twice is one choice.
    if (seen.insert(choices[i]).second)
      absl::StrAppend(&source.text, i == 0 ? "" : " | ", Quoted(choices[i]));
  }
  return source;
}

ConstraintSource AnyJsonObject(bool any_whitespace) {
  return {.form = ConstraintSource::Form::kJsonSchema,
          .text = R"({"type":"object","additionalProperties":true})",
          .any_whitespace = any_whitespace};
}

ConstraintSource JsonStringsMatching(absl::string_view regex) {
  // A pattern of JSON Schema matches anywhere.
  const nlohmann::ordered_json schema = {{"type", "string"}, {"pattern", absl::StrCat("^(?:", regex, ")$")}};
  return {
      .form = ConstraintSource::Form::kJsonSchema,
      .text = schema.dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::ordered_json::error_handler_t::replace)};
}

absl::StatusOr<ConstraintSource> ConstraintOfTags(const StructuralTags& tags,
                                                  const ConstraintLimits& limits) {
  const auto is_count = [](size_t count) { return count >= 1 && count <= kMostTags; };
  if (tags.only_tags && (!tags.at_least_one || tags.stop_after_first))
    return Invalid("only_tags: set, expected at_least_one with it, and not stop_after_first");
  if (!is_count(tags.tags.size())) {
    return Invalid(absl::StrCat("tags: ", tags.tags.size(), ", expected 1 to ", kMostTags));
  }
  if (!is_count(tags.triggers.size())) {
    return Invalid(absl::StrCat("triggers: ", tags.triggers.size(), ", expected 1 to ", kMostTags));
  }
  for (size_t i = 0; i < tags.triggers.size(); ++i) {
    TANDEM_RETURN_IF_ERROR(CheckTagText(tags.triggers[i], absl::StrCat("triggers[", i, "]")));
  }
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (size_t i = 0; i < tags.tags.size(); ++i) {
    const StructuralTag& tag = tags.tags[i];
    const std::string field = absl::StrCat("tags[", i, "]");
    TANDEM_RETURN_IF_ERROR(CheckTagText(tag.begin, field + ".begin"));
    if (!tag.end.empty()) TANDEM_RETURN_IF_ERROR(CheckTagText(tag.end, field + ".end"));
    const bool triggered =
        std::any_of(tags.triggers.begin(), tags.triggers.end(),
                    [&](const std::string& trigger) { return absl::StartsWith(tag.begin, trigger); });
    if (!triggered) return Invalid(absl::StrCat(field, ".begin: begins with none of the triggers"));
    const absl::Status checked = CheckConstraint(tag.content, limits);
    if (!checked.ok()) return Invalid(absl::StrCat(field, ".content: ", checked.message()));
    absl::StatusOr<nlohmann::ordered_json> content = FormatOf(tag.content);
    if (!content.ok()) return Invalid(absl::StrCat(field, ".", content.status().message()));
    list.push_back(
        {{"type", "tag"}, {"begin", tag.begin}, {"content", *std::move(content)}, {"end", tag.end}});
  }
  if (tags.only_tags) return TagsAlone(std::move(list));
  const nlohmann::ordered_json format = {{"type", "triggered_tags"},
                                         {"triggers", tags.triggers},
                                         {"tags", std::move(list)},
                                         {"at_least_one", tags.at_least_one},
                                         {"stop_after_first", tags.stop_after_first}};
  return ConstraintSource{
      .form = ConstraintSource::Form::kStructuralTags,
      .text = nlohmann::ordered_json{{"type", "structural_tag"}, {"format", format}}.dump()};
}

absl::StatusOr<std::shared_ptr<const GrammarVocabulary>> VocabularyOf(const Tokenizer& tokenizer,
                                                                      int32_t logits_width,
                                                                      absl::Span<const TokenId> end_tokens) {
  std::vector<std::string> bytes(static_cast<size_t>(logits_width));
  for (TokenId token = 0; token < std::min(logits_width, tokenizer.vocab_size()); ++token) {
    if (!tokenizer.HasToken(token)) continue;
    const absl::string_view text = tokenizer.TokenBytes(token);
    std::string& known = bytes[static_cast<size_t>(token)];
    if (!tokenizer.IsSpecial(token)) {
      known = std::string(text);
    } else if (const auto mark = std::find(kCallMarks.begin(), kCallMarks.end(), text);
               mark != kCallMarks.end()) {
      known = CallMarkBytes(static_cast<size_t>(mark - kCallMarks.begin()));
    }
  }
  KeepMarksApart(&bytes);
  return GrammarVocabulary::Create(std::move(bytes), {end_tokens.begin(), end_tokens.end()});
}

std::string KeyOf(const ConstraintSource& source) {
  return absl::StrCat(static_cast<int>(source.form), source.any_whitespace ? "+" : "-", source.text);
}

}  // namespace tandem
