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

// Tokens per round of one drafter, over requests, with how sure that figure is. Rounds of one request
// are alike, so requests and not rounds count as independent: the mean is the ratio of two sums over
// requests, and its variance the usual one of such a ratio (cluster sampling). Plain logic.
class RatioEstimate {
 public:
  // A request's rounds and the tokens they committed.
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

// How far a figure that was looked at many times may be from what it estimates: with probability 1 - `error`
// no look, ever, finds it further away. `variance` is the figure's own; `scale`, of the same unit, says where
// the bound is to be tightest: when the standard error is about a twentieth of it.
//
// The bound of a normal mixture (Robbins 1970; for estimated variances Waudby-Smith and others 2021): with
// the information I = 1 / variance, sqrt((I + r) (log((I + r) / r) + 2 log(1 / error))) / I.
double SequentialMargin(double variance, double scale, double error);

// What a trial has shown.
struct CanaryVerdict {
  bool promote = false;  // Else the canary is to be rolled back.
  std::string reason;
};

// A trial so far: tokens per round of both, and the margin of their difference.
struct CanaryView {
  double own = 0.0;
  double canary = 0.0;
  double margin = 0.0;    // Infinite while there is too little.
  double requests = 0.0;  // Of the canary.
};

// Watches tenants' canaries: compares what the drafter on trial earns with what the tenant's own does, and
// says when it is too little, or when it has shown to be enough. Thread-safe.
//
// The test is a sequential one: it may be asked after every request, and is wrong once in canary.max_error
// trials at most. A trial that has gone on for long without a verdict begins anew, with half of the error
// that was left, so that a drafter that gets worse later is noticed.
class CanaryMonitor {
 public:
  // A finished request that the tenant's policy, CANARY, gave one of its two drafters: `drafter` indexes the
  // table's. A drafter earns one token per round, the target's own, and those of its draft tokens that were
  // accepted, over all rounds of the request: one that is away, refused or switched off earns nothing more,
  // and what the verifier guesses by itself is nobody's. What a verifier says is not trusted further than to
  // be a bad figure. Returns a verdict once, with confidence (SequentialMargin), tokens per round are below
  // canary.min_share of the tenant's drafter's, or above it where canary.promote is set, and both have
  // canary.min_rounds rounds and kMinRequests requests; and a bad one after canary.max_requests requests
  // without. A monitor that has given a verdict begins anew.
  std::optional<CanaryVerdict> OnFinished(const RoutingTable& table, const Tenant& tenant, size_t drafter,
                                          const v1::SpeculationStats& stats);
  // Nothing while the tenant has no trial.
  std::optional<CanaryView> View(const std::string& tenant) const;

  static constexpr double kMinRequests = 8;

 private:
  struct Trial {
    // Of the drafters' names: a trial of others begins anew.
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
