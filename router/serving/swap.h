#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "tandem/v1/types.pb.h"

namespace tandem::router {

// The outcome of moving generating requests to another drafter.
struct SwapResult {
  uint32_t swapped = 0;  // Are bound to it now.
  uint32_t refused = 0;  // Keep the old one, because the new one refused them or did not answer in time.
  uint32_t ended = 0;    // Ended before that was decided.
  std::string refusal;   // Why the first of the refused ones was.
};

// Moves generating requests to another drafter. Thread-safe.
class RunningSwap {
 public:
  virtual ~RunningSwap() = default;

  using Done = std::function<void(const absl::StatusOr<SwapResult>&)>;

  // Moves the requests of `tenant` that are bound to the drafter `from` (its configured name) to `to`. Calls
  // `done` once, from any thread, within some seconds: with the first error of a verifier that could not be
  // asked, or with the sums over all verifiers.
  virtual void SwapRunning(const std::string& tenant, const std::string& from, const v1::DrafterTarget& to,
                           Done done) = 0;
};

}  // namespace tandem::router
