#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"

namespace tandem {

// Notices drafters whose guesses hardly ever match the target: a head that is read in another way than it was
// trained, or a draft model of another target. Outputs stay right, so nothing else shows it.
//
// A drafted round agrees if the target accepts a candidate of the drafter's. Random guesses agree once in
// thousands of rounds, drafters that suit their target in most, and in a fifth at least on the hardest text.
// A window of rounds with fewer than kLeastAgreeing that agree is called random.
//
// Thread rule: one thread makes all calls.
class DrafterAgreement {
 public:
  static constexpr uint32_t kWindow = 100;
  static constexpr uint32_t kLeastAgreeing = 5;
  // Requests can name any drafter. Further ones are not watched.
  static constexpr size_t kMaxDrafters = 256;

  enum class Change { kNone, kBecameRandom, kRecovered };

  // A round in which candidates of `drafter` were verified.
  Change RecordRound(const std::string& drafter, bool agrees);

  // Drafters whose last whole window was random, in alphabetical order.
  std::vector<std::string> random_drafters() const;

 private:
  struct Record {
    uint32_t rounds = 0;  // In the window that has begun.
    uint32_t agreeing = 0;
    bool is_random = false;
  };

  absl::btree_map<std::string, Record> records_;
};

}  // namespace tandem
