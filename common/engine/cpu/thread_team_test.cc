#include "common/engine/cpu/thread_team.h"

#include <numeric>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace tandem {
namespace {

TEST(ThreadTeam, RunsEveryPartOnce) {
  for (int num_threads : {1, 2, 3, 7}) {
    const auto team = ThreadTeam::Create(num_threads).value();
    EXPECT_EQ(team->num_threads(), num_threads);
    const std::thread::id caller = std::this_thread::get_id();
    for (int run = 0; run < 50; ++run) {
      std::vector<int> calls(static_cast<size_t>(num_threads));
      std::thread::id first;
      team->Run([&](int thread) {
        ++calls[static_cast<size_t>(thread)];
        if (thread == 0) first = std::this_thread::get_id();
      });
      EXPECT_EQ(calls, std::vector<int>(static_cast<size_t>(num_threads), 1));
      EXPECT_EQ(first, caller);
    }
  }
}

TEST(ThreadTeam, ABarrierShowsWhatTheOthersWrote) {
  constexpr int kThreads = 3;
  const auto team = ThreadTeam::Create(kThreads).value();
  std::vector<int> values(kThreads);
  std::vector<int> wrong(kThreads);
  team->Run([&](int thread) {
    for (int round = 1; round <= 300; ++round) {
      values[static_cast<size_t>(thread)] = round;
      team->Barrier();
      wrong[static_cast<size_t>(thread)] +=
          std::accumulate(values.begin(), values.end(), 0) != kThreads * round;
      team->Barrier();
    }
  });
  EXPECT_EQ(wrong, std::vector<int>(kThreads));
}

TEST(ThreadTeam, EndsWithoutEverHavingRun) {
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(ThreadTeam::Create(4).ok());
}

TEST(ThreadTeam, RefusesSizesOutOfRange) {
  for (int num_threads : {-1, 0, 1025}) {
    EXPECT_EQ(ThreadTeam::Create(num_threads).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(ShareOf, CoversEverythingInEqualParts) {
  for (uint32_t count : {0u, 1u, 5u, 12u, 4'000'000'000u}) {
    for (int num_threads : {1, 2, 3, 7}) {
      uint32_t next = 0;
      for (int thread = 0; thread < num_threads; ++thread) {
        const Share share = ShareOf(count, thread, num_threads);
        EXPECT_EQ(share.begin, next);
        EXPECT_LE(share.end - share.begin, count / static_cast<uint32_t>(num_threads) + 1);
        next = share.end;
      }
      EXPECT_EQ(next, count);
    }
  }
}

}  // namespace
}  // namespace tandem
