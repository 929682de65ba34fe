#pragma once

#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/json_view.h"

namespace tandem {

// A stretch of normalized text on its way to the model.
struct TextPiece {
  absl::string_view text;
  bool at_text_start;  // nothing of the original text stands before it
};

// The pre-tokenizer of a tokenizer.json: cuts text into the words that the model merges within. Immutable,
// safe to share between threads.
class PreTokenizer {
 public:
  using Emit = absl::FunctionRef<absl::Status(TextPiece)>;

  virtual ~PreTokenizer() = default;

  // Passes the non-empty words of `piece` to `emit`, in order; a word is valid only during the call. Stops at
  // the first error of `emit`.
  virtual absl::Status Split(TextPiece piece, Emit emit) const = 0;
};

// Reads ByteLevel, Split, Digits, Metaspace or a Sequence of them; Unimplemented for other types.
absl::StatusOr<std::unique_ptr<const PreTokenizer>> ParsePreTokenizer(const JsonView& json);

}  // namespace tandem
