#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace tandem::router {

// Chooses the verifier for a request among those of a model. Verifiers come and go: one that is not listed
// any more gets no requests, and its index may be reused. The order is prefix affinity bounded by load
// (OrderVerifiers), among the verifiers that pass three checks:
//
//   serving?      what its health service says; one that drains or cannot be reached is left out
//   not ejected?  consecutive failures eject it for a while, each time longer (outlier ejection); only a
//                 share of all may be ejected, so that faulty requests cannot take the whole model away
//   not full?     at most max_in_flight requests of this router at once (circuit breaker)
//
// If no verifier is serving and not ejected, all that are not full are tried: the router's view may be out of
// date, and a refused request would be lost for certain. Protocol logic: time is passed in. Not thread-safe.
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

  // The verifiers that may take the request, best first, as indices into the endpoints; those in `tried` come
  // last. Verifiers for which `suits` is false are left out; without the function, all suit. Empty: all are
  // full.
  std::vector<size_t> Order(absl::Span<const uint32_t> prompt, uint64_t salt, absl::Span<const size_t> tried,
                            absl::Time now, const std::function<bool(size_t)>& suits = nullptr) const;

  // A request begins or ends at this verifier.
  void OnBegin(size_t verifier) { ++states_[verifier].in_flight; }
  void OnEnd(size_t verifier) { --states_[verifier].in_flight; }
  // The verifier answered as it should, or was lost.
  void OnSuccess(size_t verifier, absl::Time now);
  void OnFailure(size_t verifier, absl::Time now);
  // Replaces the verifier at this index, which may be one past the last. The new one is listed, and not
  // serving until its health service says so. No request may run on the index.
  void Replace(size_t verifier, std::string endpoint);
  // Overrides the options' limit of concurrent requests, until Replace.
  void SetMaxInFlight(size_t verifier, uint32_t most) { states_[verifier].max_in_flight = most; }
  void SetListed(size_t verifier, bool listed) { states_[verifier].listed = listed; }
  bool listed(size_t verifier) const { return states_[verifier].listed; }
  size_t num_listed() const;

  // As the health service says; false without an answer.
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
