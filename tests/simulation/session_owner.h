#pragma once

#include "absl/status/status.h"
#include "tests/simulation/event_queue.h"
#include "verifier/session/session.h"

namespace tandem::simulation {

// Submits sessions to a verifier, and receives their events.
class SessionOwner {
 public:
  virtual ~SessionOwner() = default;

  virtual SessionId session() const = 0;
  // `clock` is the verifier's, and so is the deadline in the result.
  virtual SessionRequest MakeSessionRequest(const MachineClock& clock) = 0;
  virtual void OnStarted() = 0;
  virtual void OnTokens(const CommittedTokens& tokens) = 0;
  // The terminal status.
  virtual void OnFinished(const MachineClock& clock, const absl::Status& status,
                          const SessionSummary& summary) = 0;
  // The verifier would not take it.
  virtual void OnRejected(const absl::Status& status) = 0;
};

}  // namespace tandem::simulation
