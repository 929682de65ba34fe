#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/token.h"
#include "common/grammar/compiled.h"
#include "common/tokenizer/tokenizer.h"
#include "drafter/drafting/draft_model.h"

namespace tandem {

// A target's vocabulary, from its folder or GGUF file. The weights need not exist.
struct TargetVocabulary {
  std::string folder;
  std::shared_ptr<const Tokenizer> tokenizer;
  int32_t width = 0;  // Of the target's logits.
  uint64_t fingerprint = 0;
  TokenIds end_tokens;
  std::shared_ptr<const GrammarVocabulary> grammar;  // Null: constraints are not heeded.
};

// Errors are those of Model::ReadSettings and Tokenizer::LoadForModel.
absl::StatusOr<TargetVocabulary> LoadTargetVocabulary(const std::string& folder);

// Compares a draft model, with this tokenizer and `draft_width` logits, to this target, whose fingerprint
// differs.
OtherVocabulary Compare(const std::shared_ptr<const Tokenizer>& draft, int32_t draft_width,
                        const TargetVocabulary& target);

}  // namespace tandem
