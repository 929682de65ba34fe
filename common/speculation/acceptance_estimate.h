#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>

#include "absl/types/span.h"
#include "common/base/token.h"

namespace tandem {

// The outcome of one round of one session.
struct RoundOutcome {
  uint32_t depth = 0;     // Deepest level that was verified; 0 when the round was undrafted.
  uint32_t accepted = 0;  // Accepted draft tokens, V in the paper.
  // Whether the walk ended because none of the candidates for the next token was right, and not because there
  // were none: V < gamma for a chain.
  bool rejected = false;
  // There were candidates, but none was worth verifying.
  bool declined = false;
  double wait_seconds = 0.0;  // How long the round waited for the drafter.
  // The tokens that the round committed: the accepted ones, then the target's own. Holds for the call only.
  absl::Span<const TokenId> committed;
};

// How the paper (On-the-fly adaptation) estimates single-token acceptance from the last rounds.
enum class AcceptanceEquation {
  // A = sum V / (sum V + number of rounds with V < gamma). The maximum likelihood of rounds that end with the
  // window where nothing was rejected, as rounds do.
  kEquation2,
  // The maximum likelihood of the paper's appendix B.2, which takes Y = V + 1 for truncated at gamma + 1: the
  // A with sum Y = sum over rounds of TruncatedMean(A, gamma), which for one gamma is equation 11. Found by
  // bisection. Because rounds are not truncated but end with their window, it overestimates high acceptance,
  // without bound from a mean of (gamma + 2) / 2.
  kEquation11,
  // The same from a table of that mean at 64 steps of A, with straight lines in between: equation 12.
  kEquation12,
};

// Equation 12: the mean of a geometric variable from 1 on that is truncated at window + 1,
//
//   ((g + 1) A^(g+2) - (g + 2) A^(g+1) + 1) / (A^(g+2) - A^(g+1) - A + 1),  g = window.
//
// The paper prints g A^(g+2); its equation 11 leads to (g + 1) A^(g+2), which is also what the distribution
// of equation 10 has. `acceptance` is in [0, 1].
double TruncatedMean(double acceptance, uint32_t window);

// Single-token acceptance, estimated by maximum likelihood over the last rounds, at most 0.98.
//
// For a tree, it is the probability that some candidate is right at a level the walk reaches.
class AcceptanceEstimate {
 public:
  struct Options {
    AcceptanceEquation equation = AcceptanceEquation::kEquation2;
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
    uint32_t depth;
    uint32_t accepted;
    bool rejected;
  };
  static constexpr size_t kTableSteps = 64;
  using Table = std::array<double, kTableSteps + 1>;

  // The expected sum of Y over the rounds at acceptance A.
  double ExpectedSum(double acceptance) const;
  double Bisect(double sum) const;
  double Interpolate(double sum) const;
  const Table& TableOf(uint32_t depth) const;

  Options options_;
  mutable std::map<uint32_t, Table> tables_;  // TruncatedMean by window, of kEquation12.
  std::deque<Round> rounds_;
};

// The mean of the last few values of a quantity that jumps, such as the exposed time of a draft.
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
