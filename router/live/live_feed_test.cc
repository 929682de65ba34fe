#include "router/live/live_feed.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/live/tenant_tally.h"

namespace tandem::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Batch = LiveFeed::Watcher::Batch;

// Only a test that fails waits as long.
constexpr absl::Duration kPatience = absl::Seconds(30);

std::vector<std::string> Said(const Batch& batch) {
  std::vector<std::string> said;
  for (const auto& event : batch.events) said.push_back(absl::StrCat(event->type, " ", event->json));
  return said;
}

TEST(LiveFeedTest, NothingIsWantedWhileNobodyWatches) {
  LiveFeed feed({}, "a");
  LiveFeed everything({.all_requests = true}, "a");
  EXPECT_FALSE(feed.Wanted(true));
  EXPECT_FALSE(everything.Wanted(false));
  {
    auto watcher = feed.Watch();
    auto other = everything.Watch();
    EXPECT_TRUE(feed.Wanted(true));
    EXPECT_FALSE(feed.Wanted(false)) << "it has not asked for it";
    EXPECT_TRUE(everything.Wanted(false));
  }
  EXPECT_FALSE(feed.Wanted(true));
  EXPECT_FALSE(everything.Wanted(true));
}

TEST(LiveFeedTest, EveryWatcherIsToldEverythingInOrder) {
  LiveFeed feed({}, "a");
  auto first = feed.Watch().value();
  feed.Publish("start", "1");
  feed.Publish("round", "2");
  auto late = feed.Watch().value();
  EXPECT_THAT(Said(first->Next(absl::ZeroDuration())), ElementsAre("start 1", "round 2"));
  feed.Publish("end", "3");
  EXPECT_THAT(Said(first->Next(absl::ZeroDuration())), ElementsAre("end 3"));
  const Batch all = late->Next(absl::ZeroDuration());
  EXPECT_THAT(Said(all), ElementsAre("start 1", "round 2", "end 3"));
  EXPECT_EQ(all.events[2]->id, 3u);
  EXPECT_EQ(all.missed, 0u);
  EXPECT_THAT(Said(late->Next(absl::ZeroDuration())), IsEmpty());
}

TEST(LiveFeedTest, WhoeverComesBackGoesOnAfterWhatItSaw) {
  LiveFeed feed({}, "a");
  for (int i = 1; i <= 4; ++i) feed.Publish("round", absl::StrCat(i));
  EXPECT_THAT(Said(feed.Watch(3).value()->Next(absl::ZeroDuration())), ElementsAre("round 4"));
  EXPECT_THAT(Said(feed.Watch(4).value()->Next(absl::ZeroDuration())), IsEmpty());
  // Events that never were are those of somebody else.
  EXPECT_EQ(feed.Watch(5).value()->Next(absl::ZeroDuration()).events.size(), 4u);
}

TEST(LiveFeedTest, ASlowWatcherLosesTheOldestAndIsToldHowMany) {
  LiveFeed feed({.max_events = 3}, "a");
  auto slow = feed.Watch().value();
  feed.Publish("round", "1");
  EXPECT_EQ(slow->Next(absl::ZeroDuration()).events.size(), 1u);
  for (int i = 2; i <= 8; ++i) feed.Publish("round", absl::StrCat(i));
  const Batch batch = slow->Next(absl::ZeroDuration());
  EXPECT_EQ(batch.missed, 4u);
  EXPECT_THAT(Said(batch), ElementsAre("round 6", "round 7", "round 8"));
  EXPECT_EQ(slow->Next(absl::ZeroDuration()).missed, 0u) << "told once";
  // Who comes new has missed nothing.
  EXPECT_EQ(feed.Watch().value()->Next(absl::ZeroDuration()).missed, 0u);
  EXPECT_EQ(feed.Watch(2).value()->Next(absl::ZeroDuration()).missed, 3u);
}

TEST(LiveFeedTest, BytesAreBounded) {
  LiveFeed feed({.max_bytes = 10000}, "a");
  auto watcher = feed.Watch().value();
  for (int i = 0; i < 10; ++i) feed.Publish("round", std::string(3000, 'x'));
  const Batch batch = watcher->Next(absl::ZeroDuration());
  EXPECT_EQ(batch.events.size(), 3u);
  EXPECT_EQ(batch.missed, 7u);
  // One that is larger than everything together is dropped, and so is all that was before it.
  feed.Publish("round", std::string(20000, 'x'));
  EXPECT_EQ(watcher->Next(absl::ZeroDuration()).missed, 1u);
  feed.Publish("round", "small");
  EXPECT_THAT(Said(watcher->Next(absl::ZeroDuration())), ElementsAre("round small"));
}

TEST(LiveFeedTest, ABatchIsBounded) {
  LiveFeed feed({}, "a");
  auto watcher = feed.Watch().value();
  const size_t count = 2 * LiveFeed::Watcher::kMaxBatch + 1;
  for (size_t i = 0; i < count; ++i) feed.Publish("round", "");
  feed.Close();
  size_t told = 0;
  while (true) {
    const Batch batch = watcher->Next(absl::ZeroDuration());
    EXPECT_LE(batch.events.size(), LiveFeed::Watcher::kMaxBatch);
    told += batch.events.size();
    if (batch.closed) break;
  }
  EXPECT_EQ(told, count) << "the end comes after everything";
}

TEST(LiveFeedTest, OnlySoManyWatch) {
  LiveFeed feed({.max_watchers = 2}, "a");
  auto first = feed.Watch().value();
  auto second = feed.Watch().value();
  const auto third = feed.Watch();
  EXPECT_EQ(third.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(third.status().message()), HasSubstr("(the limit is 2)"));
  first.reset();
  EXPECT_TRUE(feed.Watch().ok());
}

TEST(LiveFeedTest, AWatcherThatWaitsIsWokenByEventsAndByTheEnd) {
  LiveFeed feed({}, "a");
  auto watcher = feed.Watch().value();
  Batch event;
  Batch end;
  std::thread thread([&] {
    event = watcher->Next(kPatience);
    end = watcher->Next(kPatience);
  });
  const absl::Time begin = absl::Now();
  feed.Publish("round", "1");
  // Whichever of the two calls it finds.
  feed.Close();
  thread.join();
  EXPECT_LT(absl::Now() - begin, kPatience);
  EXPECT_THAT(Said(event), ElementsAre("round 1"));
  EXPECT_TRUE(end.closed);
  EXPECT_EQ(feed.Watch().status().code(), absl::StatusCode::kUnavailable);
}

TEST(LiveFeedTest, ThreadsMayPublishWhileOthersWatch) {
  LiveFeed feed({.max_events = 1 << 20}, "a");
  constexpr size_t kEach = 1000;
  std::vector<std::thread> threads;
  std::vector<size_t> told(3);
  std::vector<std::unique_ptr<LiveFeed::Watcher>> watchers;
  for (size_t i = 0; i < told.size(); ++i) watchers.push_back(feed.Watch().value());
  for (size_t i = 0; i < told.size(); ++i) {
    threads.emplace_back([&, i] {
      uint64_t last = 0;
      while (told[i] < 2 * kEach) {
        const Batch batch = watchers[i]->Next(kPatience);
        if (batch.events.empty()) break;
        for (const auto& event : batch.events) EXPECT_EQ(event->id, ++last);
        told[i] += batch.events.size();
      }
    });
  }
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      for (size_t j = 0; j < kEach; ++j) feed.Publish("round", "");
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(told, ElementsAre(2 * kEach, 2 * kEach, 2 * kEach));
}

TEST(TenantTallyTest, CountsWhatBecameOfRequests) {
  TenantTallies tallies;
  const uint64_t before = tallies.version();
  v1::SpeculationStats stats;
  stats.set_drafter("code");
  stats.set_drafted_rounds(4);
  stats.set_draft_tokens(12);
  stats.set_accepted_tokens(6);
  v1::SourceStats& drafter = *stats.add_by_source();
  drafter.set_source(v1::DRAFT_SOURCE_DRAFTER);
  drafter.set_draft_tokens(10);
  drafter.set_accepted_tokens(5);
  v1::SourceStats& local = *stats.add_by_source();
  local.set_source(v1::DRAFT_SOURCE_LOCAL);
  local.set_draft_tokens(2);
  local.set_accepted_tokens(1);
  for (int i = 0; i < 3; ++i) tallies.OnBegun("acme");
  tallies.OnEnded("acme", absl::OkStatus(), 10, stats);
  tallies.OnEnded("acme", absl::CancelledError(), 2, {});
  const TenantTally acme = tallies.All().at("acme");
  EXPECT_EQ(acme.running, 1u);
  EXPECT_EQ(acme.finished, 1u);
  EXPECT_EQ(acme.failed, 1u);
  EXPECT_EQ(acme.tokens, 12u);
  EXPECT_EQ(acme.drafted_rounds, 4u);
  EXPECT_THAT(acme.draft_tokens, testing::ElementsAre(10, 2, 0, 0));
  EXPECT_THAT(acme.accepted_tokens, testing::ElementsAre(5, 1, 0, 0));
  EXPECT_EQ(acme.drafter, "code") << "of one that failed nobody knows";
  EXPECT_NE(tallies.version(), before);
}

TEST(TenantTallyTest, NamesAreBounded) {
  TenantTallies tallies;
  for (size_t i = 0; i < TenantTallies::kMaxTenants + 5; ++i) {
    tallies.OnBegun(absl::StrCat("tenant-", i));
    tallies.OnEnded(absl::StrCat("tenant-", i), absl::OkStatus(), 1, {});
  }
  const std::map<std::string, TenantTally> all = tallies.All();
  EXPECT_EQ(all.size(), TenantTallies::kMaxTenants + 1);
  EXPECT_EQ(all.at(TenantTallies::kOthers).finished, 5u);
  EXPECT_EQ(all.at(TenantTallies::kOthers).running, 0u);
}

}  // namespace
}  // namespace tandem::router
