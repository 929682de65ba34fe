#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace tandem::router {

// Decides where and when to retry a request whose verifier has failed. Each verifier is tried once. If the
// request has output, which would be lost, verifiers are tried again, with back-off, a few times. An attempt
// that brings tokens resets the count:
//
//   untried verifiers ---------> at once, those that failed lately last
//   none, but output ----------> after 50 ms, 100 ms, ..., at most kFurtherAttempts times
//   otherwise -----------------> no retry; the caller lets the request wait for a verifier, or ends it
//
// Protocol logic: no clock, not thread-safe.
class Failover {
 public:
  // How often verifiers are tried again, and the pause before the first time. Each pause is twice as long as
  // the one before.
  static constexpr size_t kFurtherAttempts = 6;
  static constexpr absl::Duration kFirstPause = absl::Milliseconds(50);

  // The current attempt brought tokens.
  void OnProgress();
  // The current attempt, on the verifier of this index, failed. Another verifier may continue.
  void OnFailed(size_t verifier, size_t num_verifiers);
  // After OnFailed: the pause before the next attempt. nullopt: there is none.
  std::optional<absl::Duration> NextAttempt(size_t num_verifiers, bool has_output) const;
  // No verifier has a place for the request: the pause before it asks again. nullopt: it does not. Only a
  // request with output asks again.
  std::optional<absl::Duration> NextAsking(size_t num_verifiers, bool has_output);

  // Until when the request may wait for a verifier that serves: `longest` after the first wait since its last
  // token. nullopt: it may not wait any longer.
  std::optional<absl::Time> WaitUntil(absl::Time now, absl::Duration longest);
  // When the request first waited since its last token. Only after WaitUntil has returned a time.
  absl::Time wait_began() const { return *wait_began_; }
  // The wait is over, because a verifier serves. The verifiers may be different ones by now, so all may be
  // tried again.
  void OnVerifierServes();

  // Verifiers of failed attempts. In further attempts, all but the one that failed longest ago, so that they
  // take turns.
  absl::Span<const size_t> tried() const { return tried_; }

 private:
  size_t in_vain_ = 0;     // Attempts that brought no token, since one did.
  bool progress_ = false;  // The current one has brought some.
  std::vector<size_t> tried_;
  std::optional<absl::Time> wait_began_;
};

}  // namespace tandem::router
