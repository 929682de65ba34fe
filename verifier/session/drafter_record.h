#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/speculation/draft_payoff.h"
#include "common/speculation/draft_times.h"
#include "common/speculation/level_acceptance.h"
#include "common/speculation/score_calibration.h"
#include "verifier/session/session_types.h"

namespace tandem {

// What was learned about one draft model of one drafter, shared by all its sessions: calibration of its
// scores, acceptance rate, draft time, and whether drafting with it pays at all.
struct DrafterRecord {
  ScoreCalibration calibration;
  LevelAcceptance acceptance{{.history = 256.0}};
  DraftTimes times;
  DraftPayoff payoff;
  // Whether drafting far ahead pays as well: if drafter and verifier share cores, it may cost more than
  // misses do. Both ways commit several tokens per round, so it takes many steps to tell which is better.
  DraftPayoff ahead_payoff{{.probe_steps = 32,
                            .settling_steps = 4,
                            .aftermath_steps = 8,
                            .history = 512.0,
                            .kept_for_probe = 0.8,
                            .unknown_plain = 0.0,
                            .first_steps = 64}};
  // The yield of the current step, over sessions whose policy uses the payoff.
  DraftPayoff::StepYield yield;
  DraftPayoff::StepYield ahead_yield;
};

// Records by pool or link, and by draft model; the drafters of a pool run the same models. Requests can name
// any draft model, so the number of records is bounded: beyond kMostRecords, a new one replaces the least
// recently used record without sessions; if all have sessions, models share a record. Records never move.
class DrafterRecords {
 public:
  static constexpr size_t kMostRecords = 256;

  // `is_held`: whether a session has the record.
  template <class IsHeld>
  DrafterRecord* Of(const DrafterBinding& binding, const IsHeld& is_held) {
    const Key key(binding.pool != 0, binding.pool != 0 ? binding.pool : binding.link, binding.draft_model);
    if (const auto found = records_.find(key); found != records_.end()) {
      found->second.asked_for = ++num_asked_for_;
      return found->second.record.get();
    }
    if (records_.size() >= kMostRecords && !DropOne(is_held)) return &rest_;
    Entry entry{.record = std::make_unique<DrafterRecord>(), .asked_for = ++num_asked_for_};
    return records_.emplace(key, std::move(entry)).first->second.record.get();
  }

 private:
  using Key = std::tuple<bool, uint64_t, std::string>;
  struct Entry {
    std::unique_ptr<DrafterRecord> record;
    uint64_t asked_for = 0;
  };

  template <class IsHeld>
  bool DropOne(const IsHeld& is_held) {
    auto longest = records_.end();
    for (auto at = records_.begin(); at != records_.end(); ++at) {
      if (longest != records_.end() && at->second.asked_for > longest->second.asked_for) continue;
      if (!is_held(at->second.record.get())) longest = at;
    }
    if (longest == records_.end()) return false;
    records_.erase(longest);
    return true;
  }

  absl::flat_hash_map<Key, Entry> records_;
  uint64_t num_asked_for_ = 0;
  DrafterRecord rest_;
};

}  // namespace tandem
