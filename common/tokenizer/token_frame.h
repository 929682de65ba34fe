#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "common/base/token.h"
#include "common/tokenizer/json_view.h"

namespace tandem {

// The tokens that a post-processor puts around a text.
struct TokenFrame {
  TokenIds prefix;
  TokenIds suffix;
};

// Reads the frame of a single text from a post-processor of tokenizer.json: TemplateProcessing,
// RobertaProcessing, BertProcessing, ByteLevel (which adds no tokens) or a Sequence of them. nullopt if none
// of them adds tokens.
absl::StatusOr<std::optional<TokenFrame>> ParseTokenFrame(const JsonView& post_processor);

}  // namespace tandem
