#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "absl/types/span.h"
#include "common/base/token.h"

namespace tandem {

// What became of one verification round of one session.
struct RoundOutcome {
  uint32_t depth = 0;     // Deepest level that was verified; 0 when the round was undrafted.
  uint32_t accepted = 0;  // Accepted draft tokens, V in the paper.
  // Whether the walk ended because none of the candidates for the next token was right, and not because there
  // were none: V < gamma for a chain.
  bool rejected = false;
  // There were candidates, and none was found worth verifying.
  bool declined = false;
  double wait_seconds = 0.0;  // How long the round waited for the drafter.
  // The tokens that the round committed: the accepted ones, then the target's own. Holds for the call only.
  absl::Span<const TokenId> committed;
};

// Single-token acceptance, estimated by maximum likelihood over the last rounds (On-the-fly adaptation,
// equation 2):
//
//   A = sum V / (sum V + number of rounds with V < gamma), at most 0.98.
//
// For a tree, it is the probability that some candidate is right at a level the walk reaches.
class AcceptanceEstimate {
 public:
  struct Options {
    uint32_t history = 6;   // h: rounds looked at.
    double maximum = 0.98;  // Acc_max.
    double initial = 0.6;   // Before the first observation.
  };
  AcceptanceEstimate() : AcceptanceEstimate(Options{}) {}
  explicit AcceptanceEstimate(const Options& options) : options_(options) {}

  // Undrafted rounds say nothing about acceptance and are not counted.
  void Observe(const RoundOutcome& outcome);
  double value() const;

 private:
  struct Round {
    uint32_t accepted;
    bool rejected;
  };
  Options options_;
  std::deque<Round> rounds_;
};

// The mean of the last few values: of a cost that jumps, such as the exposed time of a draft.
class RecentMean {
 public:
  explicit RecentMean(size_t history) : history_(history) {}

  void Add(double value);
  // 0 before the first value.
  double value() const;
  bool empty() const { return values_.empty(); }

 private:
  size_t history_;
  std::deque<double> values_;
};

// Expected tokens of a round with window `depth` (On-the-fly adaptation, appendix B.1): accepted ones and the
// bonus token, (1 - A^(depth+1)) / (1 - A) for A < 1.
double ExpectedTokens(double acceptance, uint32_t depth);

}  // namespace tandem
