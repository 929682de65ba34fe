#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace tandem::router {

// Which of a model's verifiers a request goes to. Those behind a name come and go: one that is not listed any
// more gets no requests at all, and its index may be given to another. Prefix affinity bounded by load
// (OrderVerifiers), among those that are fit to take it:
//
//   serving?   what its health service says; one that drains or cannot be reached is left out
//   not ejected?   after some failures in a row it is left out for a while, each time longer (outlier
//              ejection), but never more than a share of all, so that a fault of the requests
//              does not take the whole model away
//   not full?  at most so many requests of this router at once (circuit breaker)
//
// When none is serving and not ejected, all that are not full are tried after all: what is known may be out
// of date, and a refused request would be lost for certain. Protocol logic: not thread-safe, time is passed
// in.
class VerifierChoice {
 public:
  struct Options {
    uint32_t max_in_flight = 1024;
    uint32_t failures_to_ejection = 3;
    absl::Duration first_ejection = absl::Seconds(2);
    absl::Duration longest_ejection = absl::Minutes(2);
    double max_ejected_share = 0.5;
  };
  VerifierChoice(const Options& options, std::vector<std::string> endpoints);

  // Fit verifiers, best first, as indices into the endpoints; those in `tried` come last. Those that are not
  // `suits` are left out, as if they were not there; without a function all do. Empty: all are full.
  std::vector<size_t> Order(absl::Span<const uint32_t> prompt, uint64_t salt, absl::Span<const size_t> tried,
                            absl::Time now, const std::function<bool(size_t)>& suits = nullptr) const;

  // A request begins and ends there.
  void OnBegin(size_t verifier) { ++states_[verifier].in_flight; }
  void OnEnd(size_t verifier) { --states_[verifier].in_flight; }
  // It answered as it should, or was lost.
  void OnSuccess(size_t verifier, absl::Time now);
  void OnFailure(size_t verifier, absl::Time now);
  // Makes `verifier`, which may be the next after the last, this one: listed, and not serving until its
  // health service has said so. No request is on it.
  void Replace(size_t verifier, std::string endpoint);
  // Requests at once, in place of the options'. Until it is replaced.
  void SetMaxInFlight(size_t verifier, uint32_t most) { states_[verifier].max_in_flight = most; }
  void SetListed(size_t verifier, bool listed) { states_[verifier].listed = listed; }
  bool listed(size_t verifier) const { return states_[verifier].listed; }
  size_t num_listed() const;

  // As its health service says, or the lack of an answer.
  void SetServing(size_t verifier, bool serving) { states_[verifier].serving = serving; }

  size_t size() const { return states_.size(); }
  const std::string& endpoint(size_t verifier) const { return states_[verifier].endpoint; }
  uint32_t in_flight(size_t verifier) const { return states_[verifier].in_flight; }
  uint32_t max_in_flight(size_t verifier) const { return states_[verifier].max_in_flight; }
  bool serving(size_t verifier) const { return states_[verifier].serving; }
  bool ejected(size_t verifier, absl::Time now) const { return now < states_[verifier].ejected_until; }

 private:
  struct State {
    std::string endpoint;
    bool listed = true;
    bool serving = true;
    uint32_t in_flight = 0;
    uint32_t max_in_flight = 0;
    uint32_t failures = 0;  // In a row.
    absl::Time ejected_until = absl::InfinitePast();
    absl::Duration next_ejection;
  };
  bool MayEject(absl::Time now) const;

  const Options options_;
  std::vector<State> states_;
};

}  // namespace tandem::router
