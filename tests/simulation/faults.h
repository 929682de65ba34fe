#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "tests/simulation/random.h"

namespace tandem::simulation {

enum class FaultKind {
  kVerifierKilled,   // As by SIGKILL; a new process comes after `lasts`.
  kVerifierLost,     // The same, with its machine: nobody is told.
  kVerifierStopped,  // As by SIGSTOP, for `lasts`.
  kRouterKilled,
  kRouterStopped,
  kDrafterRestarted,
  kDrafterStopped,
  kDraftLinkBroken,   // Between verifier `a` and drafter `b`.
  kConnectionBroken,  // Between router `a` and verifier `b`.
  kClientsCutOff,     // Clients' connections to router `a` break.
  kPartition,         // One way, between router `a` and verifier `b`.
  kClientPartition,   // One way, between clients and router `a`.
  kStoreAway,         // Of router `a`: out of reach.
  kStoreAnswersLost,  // The store does what router `a` asks, which is not told: a partition one way.
  kWatchLost,         // Of router `a`: it is not told of changes.
  kVerifierClock,     // Jumps by `lasts`.
  kRouterClock,
  kStoreClock,
  kVerifierReplaced,  // By a process with other weights at its address, at once; `lasts` later comes the
                      // former.
};
inline constexpr FaultKind kLastFaultKind = FaultKind::kVerifierReplaced;

absl::string_view NameOf(FaultKind kind);

struct Fault {
  FaultKind kind = FaultKind::kVerifierKilled;
  absl::Time when;
  absl::Duration lasts;
  uint32_t a = 0;  // Which one it is of: taken modulo how many there are.
  uint32_t b = 0;
  bool back = false;  // A partition of the way back.

  std::string ToString() const;
};

// Draws the faults of a run, in order of time. All are over `window` after its beginning. Many come soon
// after a moment in `busy`.
std::vector<Fault> DrawFaultPlan(Random random, absl::Duration window, absl::Span<const absl::Time> busy);

// The number of faults of each kind, and how many of them hit something that they could break.
struct FaultCoverage {
  struct Count {
    uint64_t made = 0;
    uint64_t met = 0;
  };
  std::map<FaultKind, Count> counts;

  void Add(const FaultCoverage& other);
  // Kinds that met nothing, by name.
  std::vector<std::string> Missing() const;
  std::string ToString() const;
};

}  // namespace tandem::simulation
