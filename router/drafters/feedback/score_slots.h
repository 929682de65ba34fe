#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "router/drafters/feedback/scorer.h"

namespace tandem::router {

// Decides when to ask a drafter for a score and how long it may take, so that a drafter that hangs, fails or
// is slow only affects its own scores:
//
//            Take                          Give back: answered
//   UNKNOWN ------> one score under way ------------------------> ANSWERS: `per_drafter` scores at a time,
//      one at a time, up to `timeout`         ^                   each up to `patience` times what scores of
//                                             |                   its length have taken
//                                     probe   |                             |
//                                             |       Give back: failed     |
//                             LEFT ALONE for a pause <----------------------'
//                             that doubles with each failure in a row, as does the patience with the probe
//
// A drafter is identified by name and endpoint; after a move it counts as a new one. Scores that were in
// flight when one of them failed count as one failure together. Plain logic: time is passed in. Not
// thread-safe.
class ScoreSlots {
 public:
  struct Options {
    uint32_t per_drafter = 8;                    // Scores under way at one drafter; at least 1.
    absl::Duration timeout = absl::Seconds(30);  // While a drafter's speed is unknown, and the longest.
    absl::Duration shortest_timeout = absl::Seconds(1);  // Whatever its speed.
    double patience = 8.0;                               // Of the time that is expected.
    absl::Duration first_pause = absl::Seconds(1);
    absl::Duration longest_pause = absl::Minutes(2);
  };
  explicit ScoreSlots(const Options& options) : options_(options) {}

  // The right to ask for one score. Give it back once.
  struct Slot {
    std::pair<std::string, std::string> drafter;  // Name and endpoint.
    uint32_t num_tokens = 0;
    absl::Time begun;
    absl::Duration timeout;  // From `begun` on.
  };
  // Why there is no slot.
  enum class Refusal { kNone, kBusy, kLeftAlone };
  struct Taken {
    std::optional<Slot> slot;
    Refusal refusal = Refusal::kNone;
  };
  // Takes a slot for a score over `num_tokens`, including the prompt.
  Taken Take(const FeedbackDrafter& drafter, uint32_t num_tokens, absl::Time now);

  enum class Change { kNone, kLeftAlone, kAnswersAgain };
  // Gives a slot back. Returns what changed for the drafter: the first of consecutive failures, or the answer
  // that ends them.
  Change GiveBack(const Slot& slot, bool answered, absl::Time now);

  // How many drafters have state here.
  size_t size() const { return drafters_.size(); }

 private:
  struct Drafter {
    uint32_t under_way = 0;
    double seconds_per_token = 0.0;  // 0: unknown.
    uint32_t failures = 0;           // In a row.
    absl::Time failed = absl::InfinitePast();
    absl::Time left_alone_until = absl::InfinitePast();
  };
  absl::Duration TimeoutOf(const Drafter& drafter, uint32_t num_tokens) const;

  const Options options_;
  std::map<std::pair<std::string, std::string>, Drafter> drafters_;
};

}  // namespace tandem::router
