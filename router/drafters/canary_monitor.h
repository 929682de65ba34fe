#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "router/config/config.h"
#include "tandem/v1/types.pb.h"

namespace tandem::router {

// Estimates a drafter's tokens per round, and the variance of that estimate. Rounds of one request are alike,
// so requests, not rounds, count as independent samples: the mean is the ratio of two sums over requests,
// with the usual variance of such a ratio (cluster sampling). Plain logic.
class RatioEstimate {
 public:
  // Adds a request's rounds and the tokens that they committed.
  void Add(double rounds, double tokens);
  double rounds() const { return sum_rounds_; }
  double requests() const { return requests_; }
  // Tokens per round; 0 without rounds.
  double mean() const;
  // Variance of the mean; infinite below two requests.
  double variance() const;

 private:
  double requests_ = 0.0;
  double sum_rounds_ = 0.0;
  double sum_tokens_ = 0.0;
  double sum_rounds_squared_ = 0.0;
  double sum_tokens_squared_ = 0.0;
  double sum_products_ = 0.0;
};

// The margin of an estimate that is looked at many times: with probability 1 - `error`, it is never further
// from the true value, at any look. `variance` is that of the estimate. `scale`, in the same unit, chooses
// where the bound is tightest: where the standard error is about a twentieth of it.
//
// The bound of a normal mixture (Robbins 1970; for estimated variances Waudby-Smith and others 2021): with
// the information I = 1 / variance, sqrt((I + r) (log((I + r) / r) + 2 log(1 / error))) / I.
double SequentialMargin(double variance, double scale, double error);

// The outcome of a trial.
struct CanaryVerdict {
  bool promote = false;  // Else the canary is to be rolled back.
  std::string reason;
};

// The state of a trial: tokens per round of both drafters, and the margin of their difference.
struct CanaryView {
  double own = 0.0;
  double canary = 0.0;
  double margin = 0.0;    // Infinite while there is too little.
  double requests = 0.0;  // Of the canary.
};

// Watches tenants' canaries: compares what the drafter on trial earns with what the tenant's own drafter
// earns, and returns a verdict when the difference is certain. Thread-safe.
//
// The test is sequential: it may be evaluated after every request, and the probability of a wrong verdict in
// a trial is at most canary.max_error. A long trial without a verdict starts again, with half of the
// remaining error, so that it notices a drafter that gets worse later.
class CanaryMonitor {
 public:
  // Counts a finished request whose drafter was chosen by the tenant's policy CANARY; `drafter` is an index
  // into the table's. Each round of the request counts one token, the target's own, and the accepted tokens
  // of the drafter. A drafter that is lost, refused or switched off earns only the target's token; tokens
  // that the verifier guessed itself count for no drafter. Wrong figures from a verifier make a wrong
  // estimate and do no other harm.
  //
  // Returns a verdict when tokens per round are certainly (SequentialMargin) below canary.min_share of those
  // of the tenant's drafter, or certainly above if canary.promote is set, and both drafters have
  // canary.min_rounds rounds and kMinRequests requests. After canary.max_requests requests without a verdict,
  // returns a rollback. After a verdict the trial starts again.
  std::optional<CanaryVerdict> OnFinished(const RoutingTable& table, const Tenant& tenant, size_t drafter,
                                          const v1::SpeculationStats& stats);
  // nullopt if the tenant has no trial.
  std::optional<CanaryView> View(const std::string& tenant) const;

  static constexpr double kMinRequests = 8;

 private:
  struct Trial {
    // The drafters' names. If they change, the trial starts again.
    std::string own_name;
    std::string canary_name;
    RatioEstimate own;
    RatioEstimate canary;
    double requests = 0.0;  // Of the canary, since the beginning.
    int turn = 1;           // How often it has begun.
    double margin = 0.0;
  };

  mutable absl::Mutex mutex_;
  std::map<std::string, Trial> trials_ ABSL_GUARDED_BY(mutex_);  // By tenant.
};

}  // namespace tandem::router
