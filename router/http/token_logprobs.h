#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "router/http/openai_json.h"
#include "router/models/served_model.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// How tokens are written in log probabilities.
class TokenSpelling {
 public:
  // `as_ids`: as "token_id:17" (vLLM's return_tokens_as_token_ids). `encoder` outlives this.
  TokenSpelling(const PromptEncoder& encoder, bool as_ids) : encoder_(encoder), as_ids_(as_ids) {}

  // As UTF-8, with U+FFFD for bytes that form no character.
  std::string Text(uint32_t token) const;
  // As a key that tells tokens apart: a token whose bytes are no UTF-8 is "bytes:\xe2\x80".
  std::string Key(uint32_t token) const;
  static std::string Id(uint32_t token);
  absl::string_view Bytes(uint32_t token) const;

 private:
  const PromptEncoder& encoder_;
  const bool as_ids_;
};

// Counts the characters of a text that comes in bytes. As a decoder does, it takes a broken one for U+FFFD.
class CharacterCount {
 public:
  void Add(absl::string_view bytes);
  // Characters that are complete: the place of the next byte, or of the character that it belongs to.
  size_t whole() const { return whole_; }

 private:
  size_t whole_ = 0;
  std::string pending_;  // The beginning of a character.
};

// The text of bytes, with U+FFFD in place of what is no character, and the number of its characters.
std::string TextOfBytes(absl::string_view bytes);
size_t NumCharacters(absl::string_view text);

// Where the tokens of an echoed prompt stand in its text, in characters. A tokenizer may have put tokens in
// front of the text, dropped a blank or changed letters; what has no text stands where the next token does.
class EchoOffsets {
 public:
  // The text is that of the tokens, except the first `num_added`.
  explicit EchoOffsets(size_t num_added) : num_added_(num_added), aligns_(false) {}
  // The text was given; the first `num_added` tokens were put in front of it.
  EchoOffsets(std::string text, size_t num_added)
      : num_added_(num_added), aligns_(true), text_(std::move(text)) {}

  // The next token's place. `is_special`: its bytes may have no text.
  size_t Next(absl::string_view bytes, bool is_special);

 private:
  void Take(size_t num_bytes);

  size_t num_added_;  // Those that are still to come.
  const bool aligns_;
  const std::string text_;
  size_t at_ = 0;  // In text_, the next token's first byte.
  CharacterCount count_;
};

// An entry of the older API's log probabilities: "token", "logprob", "top" and "offset". "top" always has the
// token itself. Of tokens with one key, the less likely ones are written by their ids.
OrderedJson TextLogprob(uint32_t token, const v1::TokenDetail& detail, size_t offset,
                        const TokenSpelling& spelling);
// An entry of a chat's.
OrderedJson ChatLogprob(uint32_t token, const v1::TokenDetail& detail, const TokenSpelling& spelling);
// A token of the prompt as vLLM has it: an object of token ids. A rank is known of the likeliest alone.
OrderedJson PromptLogprob(uint32_t token, const v1::TokenDetail& detail, const TokenSpelling& spelling);

// The field `logprobs` of a choice: for chats a list, for the older API columns, whose offsets are at most
// `num_characters`. Null without entries.
OrderedJson LogprobsField(bool chat, const OrderedJson& entries, size_t num_characters);

}  // namespace tandem::router
