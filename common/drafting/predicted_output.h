#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/drafting/draft_source.h"

namespace tandem {

// Drafts from an output that the request predicts, for example the file to be edited. While the output
// agrees with the prediction, it drafts the prediction's next tokens. When they diverge, it searches for
// the position again: where the longest suffix of the output occurs in the prediction, and of equal
// matches the one nearest to the divergence. Right after a token that differs, it drafts both the token
// after the expected one (a token was replaced) and the expected token itself (a token was inserted).
//
// Ignores the prompt. Construction takes O(n log n) for n tokens, so do it outside the engine's thread.
// Each observed token takes at most kMostPlaces * kLongestMatch comparisons. Memory: two words per token.
class PredictedOutput final : public DraftSource {
 public:
  // Most places that are compared with the end of the output, on each side of the divergence,
  static constexpr size_t kMostPlaces = 64;
  // and the length of the comparison.
  static constexpr uint32_t kLongestMatch = 32;

  // Tokens of at least 0.
  explicit PredictedOutput(TokenIds prediction);

  void Start(absl::Span<const TokenId> tokens, uint32_t prompt_length) override;
  void Read(absl::Span<const TokenId>) override {}
  void Observe(absl::Span<const TokenId> committed) override;
  std::vector<ProposedNode> Propose(const ProposalLimits& limits) const override;

 private:
  void Append(TokenId token);
  // The length of the longest common end, up to kLongestMatch, of the output and of the prediction before
  // `place`.
  uint32_t MatchBefore(size_t place) const;
  // Moves to the best place after an occurrence of `token`, the output's last one.
  void FindPlace(TokenId token);

  const TokenIds prediction_;
  std::vector<uint32_t> by_token_;  // Places in prediction_, by token and then in order.
  size_t num_observed_ = 0;
  TokenIds end_;  // Of the output: up to kLongestMatch tokens.
  // Where in prediction_ the next token of the output is expected; nullopt while unknown.
  std::optional<size_t> place_ = 0;
  uint32_t match_ = 0;              // Tokens in front of it that agree, as far as they are counted.
  size_t parted_ = 0;               // The place where they parted last, after they had agreed for some time.
  std::optional<size_t> expected_;  // Where they parted with the output's last token, if they did.
};

}  // namespace tandem
