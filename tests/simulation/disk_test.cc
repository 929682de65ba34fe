// What the router remembers, on a disk that loses its power at any write, is full, or fails to sync: what was
// acknowledged is there when it starts again, a change that was not is there whole or not at all, and what
// could not be stored says so and changes nothing.
//
//   TANDEM_DISK_SEEDS   how many seeds to run (default 80)
//   TANDEM_DISK_FIRST   the first of them (default 1)
//   TANDEM_DISK_SEED    run only this one

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/environment_number.h"
#include "common/base/log.h"
#include "router/state/sqlite_store.h"
#include "tests/simulation/faulty_disk.h"
#include "tests/simulation/random.h"
#include "tests/simulation/seeds.h"

namespace tandem::simulation {
namespace {

constexpr uint64_t kDiskSeeds = 80;
constexpr char kPath[] = "/state.db";
constexpr int kSteps = 120;

struct DiskCounts {
  uint64_t acknowledged = 0;
  uint64_t refused = 0;
  uint64_t power_cuts = 0;
  uint64_t kept_unacknowledged = 0;  // Changes that were there after a cut though nobody had been told so.
  uint64_t lost_unacknowledged = 0;
  uint64_t torn = 0;
  uint64_t lost = 0;
  uint64_t full = 0;
  uint64_t failed_syncs = 0;
};

class DiskRun {
 public:
  using State = std::map<std::string, std::string>;

  explicit DiskRun(uint64_t seed) : random_(seed), disk_(random_.Fork()) {}

  void Run(DiskCounts* counts) {
    counts_ = counts;
    Open();
    for (int step = 0; step < kSteps && !::testing::Test::HasFailure(); ++step) {
      MakeFault();
      Change();
      if (!disk_.has_power()) {
        Restart();
      } else if (random_.Chance(0.1)) {
        Expect(acknowledged_, "while it runs");
      } else if (random_.Chance(0.03)) {
        // An end in good order.
        store_.reset();
        if (!disk_.has_power()) disk_.Restart();
        Open();
      }
    }
    store_.reset();
    counts->torn += disk_.num_torn();
    counts->lost += disk_.num_lost();
    counts->full += disk_.num_full();
    counts->failed_syncs += disk_.num_failed_syncs();
  }

 private:
  void MakeFault() {
    disk_.SetCapacity(UINT64_MAX);
    if (random_.Chance(0.1)) disk_.LosePowerAt(random_.Between(1, 12));
    if (random_.Chance(0.1)) disk_.SetCapacity(disk_.used() + random_.Between(0, 6000));
    if (random_.Chance(0.05)) disk_.FailSyncs(random_.Between(1, 2));
  }

  void Open() {
    // The power may go again while it starts.
    for (int attempt = 0; attempt < 5; ++attempt) {
      auto opened = router::SqliteStore::Open(
          kPath, {.poll_interval = absl::Hours(1), .copy_interval = absl::InfiniteDuration()});
      if (opened.ok()) {
        store_ = *std::move(opened);
        return;
      }
      ASSERT_FALSE(disk_.has_power()) << opened.status();
      disk_.Restart();
    }
    FAIL() << "the store does not open";
  }

  void Restart() {
    ++counts_->power_cuts;
    store_.reset();
    disk_.Restart();
    disk_.SetCapacity(UINT64_MAX);
    if (random_.Chance(0.2)) disk_.LosePowerAt(random_.Between(1, 8));
    Open();
    if (store_ == nullptr) return;
    auto listing = store_->List("");
    if (!listing.ok() && !disk_.has_power()) {
      store_.reset();
      disk_.Restart();
      Open();
      if (store_ == nullptr) return;
      listing = store_->List("");
    }
    ASSERT_TRUE(listing.ok()) << listing.status();
    const State found = StateOf(*listing);
    const bool is_unsure = std::find(unsure_.begin(), unsure_.end(), found) != unsure_.end();
    if (is_unsure && found != acknowledged_) {
      ++counts_->kept_unacknowledged;
      acknowledged_ = found;
    } else {
      counts_->lost_unacknowledged += !unsure_.empty();
      EXPECT_EQ(found, acknowledged_) << "after the power was gone";
    }
    EXPECT_GE(listing->version, version_) << "the store's version went back";
    unsure_.clear();
  }

  static State StateOf(const router::RoutingStore::Listing& listing) {
    State state;
    for (const router::StoredEntry& entry : listing.entries) state[entry.key] = entry.value;
    return state;
  }

  void Expect(const State& expected, const char* when) {
    const auto listing = store_->List("");
    if (!disk_.has_power()) return;
    ASSERT_TRUE(listing.ok()) << listing.status();
    EXPECT_EQ(StateOf(*listing), expected) << when;
  }

  void Change() {
    if (store_ == nullptr) return;
    State next = acknowledged_;
    std::vector<router::StoreChange> changes;
    const uint32_t count = random_.Between(1, 3);
    const uint32_t first = random_.Between(0, 9);
    for (uint32_t i = 0; i < count; ++i) {
      router::StoreChange change{.key = absl::StrCat("key/", (first + i) % 10)};
      if (random_.Chance(0.8)) {
        change.value = std::string(random_.Between(0, random_.Chance(0.1) ? 9000 : 300),
                                   static_cast<char>('a' + random_.Between(0, 25)));
        next[change.key] = *change.value;
      } else {
        next.erase(change.key);
      }
      changes.push_back(std::move(change));
    }
    if (random_.Chance(0.1)) {
      // By somebody who has read what is out of date.
      std::vector<router::StoreChange> outdated = changes;
      outdated.back().expected_version = version_ + 1'000'000;
      const absl::Status refused = store_->Update(outdated).status();
      EXPECT_TRUE(absl::IsAborted(refused) || absl::IsUnavailable(refused)) << refused;
      if (!disk_.has_power()) return;
    }
    const absl::StatusOr<uint64_t> updated = store_->Update(changes);
    if (updated.ok()) {
      ++counts_->acknowledged;
      EXPECT_GT(*updated, version_);
      version_ = *updated;
      acknowledged_ = std::move(next);
      unsure_.clear();
      return;
    }
    ++counts_->refused;
    EXPECT_TRUE(absl::IsUnavailable(updated.status())) << updated.status();
    // It was not acknowledged; should the power go before the next one is, it may be there all the same.
    unsure_.push_back(std::move(next));
    if (disk_.has_power()) Expect(acknowledged_, "after a change that could not be stored");
  }

  Random random_;
  FaultyDisk disk_;
  std::unique_ptr<router::SqliteStore> store_;
  State acknowledged_;
  std::vector<State> unsure_;  // What changes that were not acknowledged since the last one would have made.
  uint64_t version_ = 0;
  DiskCounts* counts_ = nullptr;
};

TEST(DiskTest, WhatWasAcknowledgedIsThere) {
  SetLogLevel(LogLevel::kError);
  const uint64_t count = NumberFromEnvironment("TANDEM_DISK_SEEDS", kDiskSeeds);
  const Seeds seeds("TANDEM_DISK", count);
  DiskCounts total;
  for (uint64_t seed = seeds.begin; seed < seeds.end; ++seed) {
    SCOPED_TRACE(absl::StrCat("TANDEM_DISK_SEED=", seed));
    DiskRun(seed).Run(&total);
    if (HasFailure()) break;
  }
  std::cout << total.acknowledged << " changes acknowledged, " << total.refused << " refused; "
            << total.power_cuts << " power cuts, after which " << total.kept_unacknowledged
            << " changes were there that nobody was told of and " << total.lost_unacknowledged
            << " were not; of writes " << total.torn << " torn, " << total.lost << " lost, " << total.full
            << " without room; " << total.failed_syncs << " failed syncs\n";
  if (seeds.is_single) return;
  EXPECT_GT(total.power_cuts, count);
  EXPECT_GT(total.kept_unacknowledged, 0u);
  EXPECT_GT(total.lost_unacknowledged, 0u);
  EXPECT_GT(total.torn, 0u);
  EXPECT_GT(total.lost, 0u);
  EXPECT_GT(total.full, 0u);
  EXPECT_GT(total.failed_syncs, 0u);
}

}  // namespace
}  // namespace tandem::simulation
