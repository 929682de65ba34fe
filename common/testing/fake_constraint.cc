#include "common/testing/fake_constraint.h"

#include <algorithm>
#include <limits>

namespace tandem {

bool FakeConstraint::Allows(const Options& options, absl::Span<const TokenId> taken, TokenId token) {
  if (taken.size() >= options.dead_end || (!taken.empty() && taken.back() == kEnd)) return false;
  uint64_t sum = taken.size();
  for (const TokenId before : taken) sum = sum * 31 + static_cast<uint64_t>(before);
  if (token == kEnd) return taken.size() >= 12 && taken.size() % 4 == 0 && options.dead_end == SIZE_MAX;
  if (taken.size() % 4 == 3) {
    return token == static_cast<TokenId>(1 + sum % (static_cast<uint64_t>(options.vocab_size) - 1));
  }
  return (sum + static_cast<uint64_t>(token)) % 3 == 0;
}

void FakeConstraint::Mask(const Options& options, absl::Span<const TokenId> taken, absl::Span<float> logits) {
  for (TokenId token = 0; token < options.vocab_size; ++token) {
    if (Allows(options, taken, token)) continue;
    logits[static_cast<size_t>(token)] = -std::numeric_limits<float>::infinity();
  }
}

bool FakeConstraint::Accept(TokenId token) {
  if (!Allows(options_, taken_, token)) return false;
  taken_.push_back(token);
  return true;
}

void FakeConstraint::FillMask(absl::Span<uint32_t> mask) {
  steps_ += options_.mask_steps;
  std::fill(mask.begin(), mask.end(), 0u);
  for (TokenId token = 0; token < options_.vocab_size; ++token) {
    const auto at = static_cast<uint32_t>(token);
    if (Allows(options_, taken_, token)) mask[at / 32] |= 1u << (at % 32);
  }
}

std::string FakeConstraint::ForcedBytes() {
  if (taken_.size() % 4 != 3 || options_.tokenizer == nullptr) return {};
  for (TokenId token = 1; token < options_.vocab_size; ++token) {
    if (Allows(options_, taken_, token)) return std::string(options_.tokenizer->TokenBytes(token));
  }
  return {};
}

}  // namespace tandem
