#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tokenizer/json_view.h"

namespace tandem {

// The normalizer of a tokenizer.json: rewrites text between added tokens before it is cut into words.
// Immutable, safe to share between threads.
class Normalizer {
 public:
  virtual ~Normalizer() = default;

  // Rewrites `text`, which must be well-formed UTF-8 and stays so.
  virtual absl::Status Apply(std::string& text) const = 0;
};

// Reads NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip or a Sequence of them; Unimplemented for
// other types.
absl::StatusOr<std::unique_ptr<const Normalizer>> ParseNormalizer(const JsonView& json);

}  // namespace tandem
