#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/grammar/compiled.h"
#include "common/tokenizer/tokenizer.h"

namespace tandem {

// A constraint for tests. It allows about a third of the tokens, chosen by all tokens before. At every fourth
// position it forces one token, never the end-of-text token, which is token 0. From the twelfth token on, the
// output may end after every fourth.
class FakeConstraint final : public ConstraintState {
 public:
  struct Options {
    int32_t vocab_size = 64;
    std::shared_ptr<const Tokenizer> tokenizer = nullptr;  // Of forced bytes; none: none are told.
    size_t dead_end = SIZE_MAX;  // How many tokens there are at most, without a way to end.
    uint64_t mask_steps = 0;     // That it says a mask took.
  };
  explicit FakeConstraint(Options options) : options_(std::move(options)) {}

  static constexpr TokenId kEnd = 0;
  static bool Allows(const Options& options, absl::Span<const TokenId> taken, TokenId token);
  // Leaves a chance, of the tokens after `taken`, to those that may come.
  static void Mask(const Options& options, absl::Span<const TokenId> taken, absl::Span<float> logits);

  bool Accept(TokenId token) override;
  void Rollback(uint32_t count) override { taken_.resize(taken_.size() - count); }
  void FillMask(absl::Span<uint32_t> mask) override;
  std::string ForcedBytes() override;
  uint64_t steps() const override { return steps_; }

 private:
  const Options options_;
  TokenIds taken_;
  uint64_t steps_ = 0;
};

}  // namespace tandem
