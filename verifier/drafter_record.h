#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/speculation/draft_payoff.h"
#include "common/speculation/draft_times.h"
#include "common/speculation/level_acceptance.h"
#include "common/speculation/score_calibration.h"
#include "verifier/session.h"

namespace tandem {

// What serving has taught about one draft model of one drafter, shared by all its sessions: what its scores
// are worth, how often it is right, how long it takes, and whether drafting with it pays at all.
struct DrafterRecord {
  ScoreCalibration calibration;
  LevelAcceptance acceptance{{.history = 256.0}};
  DraftTimes times;
  DraftPayoff payoff;
  // Of the step that is being concluded, over the sessions whose policy heeds the payoff.
  DraftPayoff::StepYield yield;
};

// By link and draft model. Requests name draft models, so their number is bounded: beyond kMostRecords, the
// rest share one record. Records never move.
class DrafterRecords {
 public:
  static constexpr size_t kMostRecords = 256;

  DrafterRecord* Of(const DrafterBinding& binding) {
    const Key key(binding.link, binding.draft_model);
    if (const auto found = records_.find(key); found != records_.end()) return found->second.get();
    if (records_.size() >= kMostRecords) return &rest_;
    return records_.emplace(key, std::make_unique<DrafterRecord>()).first->second.get();
  }

 private:
  using Key = std::pair<LinkId, std::string>;
  absl::flat_hash_map<Key, std::unique_ptr<DrafterRecord>> records_;
  DrafterRecord rest_;
};

}  // namespace tandem
