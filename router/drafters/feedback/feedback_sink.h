#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/tracing/span.h"
#include "tandem/v1/types.pb.h"

namespace tandem::router {

// What the chooser of the drafter computed from the prompt. Feedback returns it with the scores and does not
// look inside.
class PromptFeatures {
 public:
  virtual ~PromptFeatures() = default;
};

// A request that was sampled for scoring. Lives until its scores have arrived.
struct FeedbackRequest {
  std::string tenant;
  std::string model;
  std::string drafter;                             // That drafted for it; empty: none.
  std::shared_ptr<const PromptFeatures> features;  // May be none.
  std::vector<uint32_t> tokens;                    // Prompt and output.
  uint32_t prompt_length = 0;
  v1::SamplingParameters sampling;
  uint64_t vocabulary_fingerprint = 0;
  uint64_t cache_salt = 0;
  std::shared_ptr<Span> trace;  // Of the scoring, and ended with it. May be none.
};

// A drafter's score: how much of the output would have been accepted from it.
struct DrafterScore {
  std::string drafter;
  double acceptance = 0.0;     // Share of the output's tokens that were its first guess.
  uint32_t output_tokens = 0;  // What that was measured on: the sample's weight.
  // Per token, and the number of tokens; 0 for a source without a model.
  double prompt_negative_log_likelihood = 0.0;
  uint32_t prompt_tokens = 0;
};

// Learns from scores, and returns what it expected before. Thread-safe: called from any thread, for several
// requests at a time.
class FeedbackSink {
 public:
  virtual ~FeedbackSink() = default;

  // The acceptance that it expects of a drafter for this prompt, before it learns this request's scores;
  // nullopt if it has no prediction.
  virtual std::optional<double> PredictAcceptance(const FeedbackRequest&,
                                                  absl::string_view /*drafter*/) const {
    return std::nullopt;
  }

  // The throughput with a drafter of this acceptance, as the choice rates it, in any unit; without a drafter
  // if `drafter` is empty. By default the tokens of a round with a chain of kDefaultDepth, ignoring the cost
  // of drafting: (1 - A^(g+1)) / (1 - A).
  virtual double Throughput(const FeedbackRequest&, absl::string_view drafter, double acceptance) const {
    return drafter.empty() ? 1.0 : TokensPerRound(acceptance);
  }

  // Throughput with the request's own drafter, from verification, in the same unit; nullopt if unknown.
  virtual std::optional<double> RealisedThroughput(const FeedbackRequest&) const { return std::nullopt; }

  // Reports whether a drafter that was asked to score the request has answered. Not called for a drafter that
  // was busy.
  virtual void OnScoreAnswered(const FeedbackRequest&, absl::string_view /*drafter*/, bool /*answered*/) {}

  // One drafter's score. All scores of a request come one after the other.
  virtual void OnScored(const FeedbackRequest& request, const DrafterScore& score) = 0;

  static constexpr int kDefaultDepth = 8;
  static double TokensPerRound(double acceptance) {
    if (acceptance >= 1.0) return kDefaultDepth + 1;
    return (1.0 - std::pow(acceptance, kDefaultDepth + 1)) / (1.0 - acceptance);
  }
};

}  // namespace tandem::router
