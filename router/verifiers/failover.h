#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace tandem::router {

// Where and when a request goes on that a verifier has failed. Each verifier is tried once; once there is
// output, which it would be a waste to lose, they are tried again after a growing pause, some times. Attempts
// that bring tokens count for nothing:
//
//   untried verifiers ---------> at once, those that failed lately last
//   none, but output ----------> after 50 ms, 100 ms, ... as often as kFurtherAttempts
//   none, or all that in vain -> given up; what the request then does, wait or end, is its own
//
// Protocol logic: no clock, not thread-safe.
class Failover {
 public:
  // How often verifiers are tried again, and the pause before the first time; each is twice as long as the
  // one before.
  static constexpr size_t kFurtherAttempts = 6;
  static constexpr absl::Duration kFirstPause = absl::Milliseconds(50);

  // The current attempt has brought tokens.
  void OnProgress();
  // The current attempt, at the verifier of this index, failed; another one may go on.
  void OnFailed(size_t verifier, size_t num_verifiers);
  // After OnFailed: how long until the next attempt; nothing: it is given up.
  std::optional<absl::Duration> NextAttempt(size_t num_verifiers, bool has_output) const;
  // No verifier has a place for it: how long until it asks again; nothing: it is given up. Only what has
  // output asks again.
  std::optional<absl::Duration> NextAsking(size_t num_verifiers, bool has_output);

  // Until when it may wait for a verifier that serves, which is `longest` from the first wait since its last
  // token on; nothing: not any longer.
  std::optional<absl::Time> WaitUntil(absl::Time now, absl::Duration longest);
  // When it first waited since its last token; only after WaitUntil gave a time.
  absl::Time wait_began() const { return *wait_began_; }
  // One serves that it waited for: all of them may be others by now.
  void OnVerifierServes();

  // Verifiers of the attempts that failed: all but the one that failed longest ago, so that further attempts
  // go round.
  absl::Span<const size_t> tried() const { return tried_; }

 private:
  size_t in_vain_ = 0;     // Attempts that brought no token, since one did.
  bool progress_ = false;  // The current one has brought some.
  std::vector<size_t> tried_;
  std::optional<absl::Time> wait_began_;
};

}  // namespace tandem::router
