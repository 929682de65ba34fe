#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/grammar/compiled.h"
#include "common/grammar/token_mask.h"

namespace tandem {

// For tests: a vocabulary of all bytes, in which a text has one spelling, and an end.
inline constexpr TokenId kByteEnd = 256;
inline std::shared_ptr<const GrammarVocabulary> ByteVocabulary() {
  std::vector<std::string> bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
  bytes.emplace_back("<end>");
  return GrammarVocabulary::Create(std::move(bytes), {kByteEnd}).value();
}

// The tokens that a state's mask allows.
inline TokenIds AllowedTokens(ConstraintState& state, int32_t vocab_size) {
  std::vector<uint32_t> mask(MaskWords(vocab_size));
  state.FillMask(absl::MakeSpan(mask));
  TokenIds tokens;
  for (TokenId token = 0; token < vocab_size; ++token) {
    if (IsAllowed(mask, token)) tokens.push_back(token);
  }
  return tokens;
}

// Takes bytes; how many it took.
inline size_t TakeBytes(ConstraintState& state, absl::string_view text) {
  size_t taken = 0;
  while (taken < text.size() && state.Accept(static_cast<unsigned char>(text[taken]))) ++taken;
  return taken;
}

// Whether the text that a state has taken may end.
inline bool MayEnd(ConstraintState& state) {
  const TokenIds allowed = AllowedTokens(state, kByteEnd + 1);
  return std::find(allowed.begin(), allowed.end(), kByteEnd) != allowed.end();
}

}  // namespace tandem
