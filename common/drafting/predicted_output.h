#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/drafting/draft_source.h"

namespace tandem {

// Drafts from an output that the request itself predicts, such as the file that is to be edited. While output
// and prediction agree it goes along the prediction. When they part, it looks for its place again: where the
// longest end of the output stands in the prediction, of equal ones the nearest to where they parted. Right
// after a token that differs, what followed the expected token and that token itself are its guesses: a
// token was replaced, or one was put in.
//
// The prompt counts for nothing. Construction takes O(n log n) for n tokens and belongs off an engine's
// thread; each token observed takes at most kMostPlaces * kLongestMatch comparisons. Memory: two words a
// token.
class PredictedOutput final : public DraftSource {
 public:
  // Places that are compared with the end of the output, on either side of where they parted,
  static constexpr size_t kMostPlaces = 64;
  // and how far back.
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
  // Goes to the best place in front of which `token`, the output's last one, stands.
  void FindPlace(TokenId token);

  const TokenIds prediction_;
  std::vector<uint32_t> by_token_;  // Places in prediction_, by token and then in order.
  size_t num_observed_ = 0;
  TokenIds end_;  // Of the output: up to kLongestMatch tokens.
  // Where in prediction_ the next token of the output is expected; nothing while it is lost.
  std::optional<size_t> place_ = 0;
  uint32_t match_ = 0;              // Tokens in front of it that agree, as far as they are counted.
  size_t parted_ = 0;               // The place where they parted last, after they had agreed for some time.
  std::optional<size_t> expected_;  // Where they parted with the output's last token, if they did.
};

}  // namespace tandem
