#include "bench/serve/prompts.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "common/model/config/strict_json.h"
#include "common/tokenizer/unicode/unicode.h"
#include "nlohmann/json.hpp"

namespace tandem::bench {
namespace {

using nlohmann::json;

constexpr char kExpected[] =
    "expected a string, or an object with the prompt in \"prompt\", \"question\", \"chat\", \"instruction\", "
    "\"document\", "
    "\"conversations\", \"turns\" or \"text\"";

const std::string* StringAt(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) return nullptr;
  return &found->get_ref<const std::string&>();
}

// What people say in a conversation, ShareGPT's way: the first message of a human. Empty when there is none,
// as in conversations that were cut into pieces. Nothing when it is no conversation.
std::optional<std::string> FirstOfHuman(const json& conversation) {
  if (!conversation.is_array()) return std::nullopt;
  for (const json& message : conversation) {
    if (!message.is_object()) return std::nullopt;
    const std::string* const from = StringAt(message, "from");
    const std::string* const value = StringAt(message, "value");
    if (from == nullptr || value == nullptr) return std::nullopt;
    if (*from == "human" || *from == "user") return *value;
  }
  return std::string();
}

// The prompt of an entry in one of the known formats.
std::optional<std::string> FindText(const json& entry) {
  if (entry.is_string()) return entry.get<std::string>();
  if (!entry.is_object()) return std::nullopt;
  for (const char* key : {"prompt", "question", "chat"}) {
    if (const std::string* const text = StringAt(entry, key)) return *text;
  }
  // Alpaca's has a "text" as well, which is no prompt.
  if (const std::string* const instruction = StringAt(entry, "instruction")) {
    const std::string* const input = StringAt(entry, "input");
    return input == nullptr || input->empty() ? *instruction : absl::StrCat(*instruction, "\n\n", *input);
  }
  if (const std::string* const document = StringAt(entry, "document")) return *document;
  if (const auto found = entry.find("conversations"); found != entry.end()) return FirstOfHuman(*found);
  if (const auto turns = entry.find("turns"); turns != entry.end() && turns->is_array()) {
    if (turns->empty() || !turns->front().is_string()) return std::nullopt;
    return turns->front().get<std::string>();
  }
  if (const std::string* const text = StringAt(entry, "text")) return *text;
  return std::nullopt;
}

// A conversation in which no human speaks: there is nothing to send, and files have some of them.
bool HasNoPrompt(const json& entry, const std::string& text) {
  return text.empty() && entry.is_object() && entry.contains("conversations");
}

// `place` is for entries without an id.
std::string FindLabel(const json& entry, const std::string& place) {
  if (entry.is_object()) {
    for (const char* key : {"task_id", "question_id", "id"}) {
      const auto found = entry.find(key);
      if (found == entry.end()) continue;
      if (found->is_string()) return PrintableText(found->get_ref<const std::string&>());
      if (found->is_number_integer()) return absl::StrCat(found->get<int64_t>());
    }
  }
  return place;
}

// Gathers prompts within the bounds; errors begin with the path and the place.
class PromptList {
 public:
  PromptList(absl::string_view dataset, absl::string_view path) : dataset_(dataset), path_(path) {}

  absl::Status Add(std::string text, const std::string& label, const std::string& place, bool chat = false) {
    const std::string where = Where(place);
    if (prompts_.size() == kMaxPrompts) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": more than ", kMaxPrompts, " prompts"));
    }
    if (text.empty()) return absl::InvalidArgumentError(absl::StrCat(where, ": the prompt is empty"));
    if (text.size() > kMaxPromptBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": a prompt of ", text.size(), " bytes, expected at most ", kMaxPromptBytes));
    }
    if (const std::optional<size_t> at = FindInvalidUtf8(text)) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": byte ", *at, " of the prompt is not UTF-8"));
    }
    prompts_.push_back({.dataset = dataset_, .label = label, .text = std::move(text), .chat = chat});
    return absl::OkStatus();
  }

  absl::Status AddEntry(const json& entry, const std::string& place) {
    std::optional<std::string> text = FindText(entry);
    if (!text.has_value()) return absl::InvalidArgumentError(absl::StrCat(Where(place), ": ", kExpected));
    if (HasNoPrompt(entry, *text)) return absl::OkStatus();
    const bool chat = entry.is_object() && entry.contains("chat");
    return Add(*std::move(text), FindLabel(entry, place), place, chat);
  }

  std::string Where(const std::string& place) const { return absl::StrCat(path_, ": ", place); }
  std::vector<Prompt> Take() { return std::move(prompts_); }

 private:
  const std::string dataset_;
  const std::string path_;
  std::vector<Prompt> prompts_;
};

absl::Status AddLines(absl::string_view contents, bool is_json, PromptList* prompts) {
  size_t line_number = 0;
  while (!contents.empty()) {
    ++line_number;
    const size_t end = std::min(contents.find('\n'), contents.size());
    absl::string_view line = contents.substr(0, end);
    contents.remove_prefix(std::min(end + 1, contents.size()));
    if (absl::EndsWith(line, "\r")) line.remove_suffix(1);
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    const std::string place = absl::StrCat("line ", line_number);
    if (is_json) {
      TANDEM_ASSIGN_OR_RETURN(const json entry, ParseStrictJson(line, prompts->Where(place)));
      TANDEM_RETURN_IF_ERROR(prompts->AddEntry(entry, place));
    } else {
      TANDEM_RETURN_IF_ERROR(prompts->Add(std::string(line), place, place));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Prompt>> ParsePrompts(absl::string_view dataset, absl::string_view contents,
                                                 absl::string_view path) {
  PromptList list(dataset, path);
  if (absl::EndsWith(path, ".json")) {
    TANDEM_ASSIGN_OR_RETURN(const json entries, ParseStrictJson(contents, path));
    if (!entries.is_array()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": expected a list of entries; one entry a line is for a file *.jsonl"));
    }
    for (size_t i = 0; i < entries.size(); ++i) {
      TANDEM_RETURN_IF_ERROR(list.AddEntry(entries[i], absl::StrCat("entry ", i + 1)));
    }
  } else {
    TANDEM_RETURN_IF_ERROR(AddLines(contents, absl::EndsWith(path, ".jsonl"), &list));
  }
  std::vector<Prompt> prompts = list.Take();
  if (prompts.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": no prompts, expected at least one"));
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
