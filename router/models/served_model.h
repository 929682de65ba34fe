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
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// How a model's prompts become tokens, and tokens text. Thread-safe.
class PromptEncoder {
 public:
  virtual ~PromptEncoder() = default;
  // Text with special tokens recognised and the model's begin-of-text put in front. OutOfRange, and for
  // nothing else, when that is more than `max_tokens`; then no more work is done than for that many. `plain`:
  // nothing is put in front or behind.
  virtual absl::StatusOr<TokenIds> EncodeText(absl::string_view text, size_t max_tokens,
                                              bool plain) const = 0;
  // Messages laid out by the model's chat template, up to where the assistant answers; OutOfRange as above.
  virtual absl::StatusOr<TokenIds> EncodeChat(const v1::ChatPrompt& chat, size_t max_tokens) const = 0;
  // The bytes that a token adds to a text, for people to read: it may hold half a character. Empty for what
  // is no token. The view lives as long as the encoder.
  virtual absl::string_view TokenBytes(TokenId token) const = 0;
  // The text that an output of these tokens has when it is not over: without what may become one of the
  // `stop` strings, and without a character that is not whole.
  virtual std::string DeliveredText(absl::Span<const TokenId> tokens, absl::Span<const std::string> stop,
                                    bool include_special_tokens) const = 0;
  // The text of tokens: UTF-8, with U+FFFD for bytes that are none.
  virtual std::string Decode(absl::Span<const TokenId> tokens, bool skip_special) const = 0;
};

// Whether a prompt ends with a <think> that its template has opened.
bool OpensReasoning(const PromptEncoder& encoder, absl::Span<const TokenId> prompt);

// What the router knows of a target model: its tokenizer and limits, no weights. Immutable.
struct ServedModel {
  std::string name;
  std::string architecture;
  int32_t vocab_size = 0;      // The logits width.
  int32_t context_length = 0;  // Tokens, prompt and output together.
  uint64_t vocabulary_fingerprint = 0;
  GenerationDefaults defaults;
  std::shared_ptr<const PromptEncoder> encoder;
  OutputFormat output_format;
  bool lays_out_tools = false;  // The chat template tells of tools.
  // What calls begin with, or what is around reasoning, is a special token, which has no text by itself.
  bool has_special_call_marks = false;
  bool has_special_reasoning_marks = false;
};

// Reads what a model folder says about tokens: config.json, generation_config.json and the tokenizer. Errors
// name the file. `output_format` is the format's name; empty: by the chat template.
absl::StatusOr<ServedModel> LoadServedModel(const std::string& name, const std::string& folder,
                                            const std::string& output_format = "");

}  // namespace tandem::router
