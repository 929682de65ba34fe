#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/chat/output_format.h"
#include "common/model/config/model_config.h"
#include "common/tokenizer/template_trials.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// Turns a model's prompts into tokens, and tokens into text. Thread-safe.
class PromptEncoder {
 public:
  virtual ~PromptEncoder() = default;
  // Encodes text; recognises special tokens and adds the model's begin-of-text token. `plain`: adds nothing.
  // OutOfRange, only if there are more than `max_tokens` tokens; the work is then bounded by that number.
  virtual absl::StatusOr<TokenIds> EncodeText(absl::string_view text, size_t max_tokens,
                                              bool plain) const = 0;
  // Encodes messages with the model's chat template, up to where the assistant's answer begins. OutOfRange as
  // above.
  virtual absl::StatusOr<TokenIds> EncodeChat(const v1::ChatPrompt& chat, size_t max_tokens) const = 0;
  // The bytes that a token adds to a text, for display. They may be part of a character. Empty if `token` is
  // no token. The view lives as long as the encoder.
  virtual absl::string_view TokenBytes(TokenId token) const = 0;
  // Whether the token is a special one, which outputs have no text of unless that is asked for.
  virtual bool IsSpecial(TokenId token) const = 0;
  // The text that an unfinished output of these tokens has delivered: without a suffix that may become one of
  // the `stop` strings, and without an incomplete character.
  virtual std::string DeliveredText(absl::Span<const TokenId> tokens, absl::Span<const std::string> stop,
                                    bool include_special_tokens) const = 0;
  // The text of tokens as UTF-8, with U+FFFD in place of invalid bytes.
  virtual std::string Decode(absl::Span<const TokenId> tokens, bool skip_special) const = 0;
};

// Whether a prompt ends with a <think> that its template opened.
bool OpensReasoning(const PromptEncoder& encoder, absl::Span<const TokenId> prompt);

// How many tokens at the front of a text's the tokenizer has added to it. `tokens`: the text's first ones.
size_t NumAddedTokens(const PromptEncoder& encoder, absl::Span<const TokenId> tokens);

// What the router has of a target model: tokenizer and limits, but no weights. Immutable.
struct ServedModel {
  std::string name;
  std::string architecture;
  int32_t vocab_size = 0;      // The logits width.
  int32_t context_length = 0;  // Tokens, prompt and output together.
  uint64_t vocabulary_fingerprint = 0;
  GenerationDefaults defaults;
  std::shared_ptr<const PromptEncoder> encoder;
  OutputFormat output_format;
  TemplateTraits chat_traits;
  // Whether the mark of calls or of reasoning is a special token, which has no text.
  bool has_special_call_marks = false;
  bool has_special_reasoning_marks = false;
};

// Reads a model folder's config.json, generation_config.json and tokenizer. Errors name the file.
// `output_format`: the name of the output's format; empty: detected from the chat template.
absl::StatusOr<ServedModel> LoadServedModel(const std::string& name, const std::string& folder,
                                            const std::string& output_format = "");

}  // namespace tandem::router
