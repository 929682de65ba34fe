#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/tokenizer.h"

namespace tandem::bench {

struct Prompt {
  std::string dataset;
  std::string label;  // Where it stands in its file, such as "line 7" or the file's own id.
  std::string text;
  bool chat = false;  // A message of a user, to be laid out by the chat template.
};

// Bounds on a prompt file, which may come from anywhere.
inline constexpr size_t kMaxPromptFileBytes = size_t{64} << 20;
inline constexpr size_t kMaxPromptBytes = size_t{1} << 20;
inline constexpr size_t kMaxPrompts = 100'000;

// The prompts of a file's contents: an entry a line where `path` ends in .jsonl, a JSON list of entries where
// it ends in .json, else one prompt a line. An entry is a string or an object with the prompt in
//
//   "prompt"                    HumanEval
//   "question"                  GSM8K
//   "chat"                      files of `tandem calibrate`: a message of a user
//   "instruction" and "input"   finance-alpaca: both, with an empty line between them; "input" may be empty
//   "document"                  XSum: the article
//   "conversations"             ShareGPT: the first message of a human; a conversation without one is passed
//   over "turns"                     MT-bench, summarisation: the first "text"
//
// and optionally an id in "task_id", "question_id" or "id". Blank lines are skipped. InvalidArgument names
// path and line or entry, and says what was expected; a file without a prompt is one too.
absl::StatusOr<std::vector<Prompt>> ParsePrompts(absl::string_view dataset, absl::string_view contents,
                                                 absl::string_view path);

// Reads `NAME=FILE`.
absl::StatusOr<std::vector<Prompt>> LoadPrompts(absl::string_view name_and_file);

// Cuts `text` to its first `max_tokens` tokens, special ones not counted; whole characters only.
absl::StatusOr<std::string> CutToTokens(const Tokenizer& tokenizer, absl::string_view text,
                                        size_t max_tokens);

}  // namespace tandem::bench
