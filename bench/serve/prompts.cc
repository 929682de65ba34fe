#include "bench/serve/prompts.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "common/model/strict_json.h"
#include "common/tokenizer/unicode.h"
#include "nlohmann/json.hpp"

namespace tandem::bench {
namespace {

using nlohmann::json;

constexpr char kExpected[] =
    "expected a string, or an object with the prompt in \"prompt\", \"question\", \"turns\" or \"text\"";

// The string in which a line of one of the known formats has its prompt.
const json* FindText(const json& line) {
  if (line.is_string()) return &line;
  if (!line.is_object()) return nullptr;
  for (const char* key : {"prompt", "question", "text"}) {
    if (const auto found = line.find(key); found != line.end() && found->is_string()) return &*found;
  }
  const auto turns = line.find("turns");
  if (turns == line.end() || !turns->is_array() || turns->empty() || !turns->front().is_string())
    return nullptr;
  return &turns->front();
}

std::string FindLabel(const json& line, size_t line_number) {
  if (line.is_object()) {
    for (const char* key : {"task_id", "question_id", "id"}) {
      const auto found = line.find(key);
      if (found == line.end()) continue;
      if (found->is_string()) return PrintableText(found->get_ref<const std::string&>());
      if (found->is_number_integer()) return absl::StrCat(found->get<int64_t>());
    }
  }
  return absl::StrCat("line ", line_number);
}

absl::StatusOr<Prompt> ParseLine(absl::string_view line, bool is_json, const std::string& where,
                                 size_t line_number) {
  Prompt prompt{.label = absl::StrCat("line ", line_number)};
  if (is_json) {
    TANDEM_ASSIGN_OR_RETURN(const json value, ParseStrictJson(line, where));
    const json* const text = FindText(value);
    if (text == nullptr) return absl::InvalidArgumentError(absl::StrCat(where, ": ", kExpected));
    prompt.text = text->get<std::string>();
    prompt.label = FindLabel(value, line_number);
  } else {
    prompt.text = std::string(line);
  }
  if (prompt.text.empty()) return absl::InvalidArgumentError(absl::StrCat(where, ": the prompt is empty"));
  if (prompt.text.size() > kMaxPromptBytes) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": a prompt of ", prompt.text.size(),
                                                   " bytes, expected at most ", kMaxPromptBytes));
  }
  if (const std::optional<size_t> at = FindInvalidUtf8(prompt.text)) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": byte ", *at, " of the prompt is not UTF-8"));
  }
  return prompt;
}

}  // namespace

absl::StatusOr<std::vector<Prompt>> ParsePrompts(absl::string_view dataset, absl::string_view contents,
                                                 absl::string_view path) {
  const bool is_json = absl::EndsWith(path, ".jsonl");
  std::vector<Prompt> prompts;
  size_t line_number = 0;
  while (!contents.empty()) {
    ++line_number;
    const size_t end = std::min(contents.find('\n'), contents.size());
    absl::string_view line = contents.substr(0, end);
    contents.remove_prefix(std::min(end + 1, contents.size()));
    if (absl::EndsWith(line, "\r")) line.remove_suffix(1);
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    const std::string where = absl::StrCat(path, ": line ", line_number);
    if (prompts.size() == kMaxPrompts) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": more than ", kMaxPrompts, " prompts"));
    }
    TANDEM_ASSIGN_OR_RETURN(Prompt prompt, ParseLine(line, is_json, where, line_number));
    prompt.dataset = std::string(dataset);
    prompts.push_back(std::move(prompt));
  }
  if (prompts.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": no prompts, expected at least one line"));
  }
  return prompts;
}

absl::StatusOr<std::vector<Prompt>> LoadPrompts(absl::string_view name_and_file) {
  const size_t equals = name_and_file.find('=');
  if (equals == absl::string_view::npos || equals == 0 || equals + 1 == name_and_file.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--prompts: \"", PrintableText(name_and_file), "\", expected NAME=FILE"));
  }
  const std::string path(name_and_file.substr(equals + 1));
  TANDEM_ASSIGN_OR_RETURN(const std::string contents, ReadFile(path, kMaxPromptFileBytes));
  return ParsePrompts(name_and_file.substr(0, equals), contents, path);
}

absl::StatusOr<std::string> CutToTokens(const Tokenizer& tokenizer, absl::string_view text,
                                        size_t max_tokens) {
  TANDEM_ASSIGN_OR_RETURN(TokenIds tokens,
                          tokenizer.Encode(text, {.parse_special = false, .add_special_tokens = false}));
  if (tokens.size() <= max_tokens) return std::string(text);
  // A token may end within a character; leaving out one more token at a time ends soon, since a character has
  // at most four bytes.
  for (size_t kept = max_tokens; kept > 0; --kept) {
    std::string cut = tokenizer.Decode(absl::MakeConstSpan(tokens).first(kept), /*skip_special=*/false);
    if (absl::StartsWith(text, cut)) return cut;
    if (!absl::EndsWith(cut, "\xEF\xBF\xBD")) return cut;
  }
  return absl::InvalidArgumentError("no whole character fits the tokens allowed");
}

}  // namespace tandem::bench
