#include "router/admission/worker_pool.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace tandem::router {
namespace {

// One thread, held up until everything is posted: the order in which tenants' tasks are done is what counts.
class WorkerPoolTest : public ::testing::Test {
 protected:
  WorkerPoolTest() {
    pool_->Post([this] { posted_.WaitForNotification(); });
  }
  void Post(const std::string& tenant, uint32_t weight, size_t bytes, int count) {
    for (int i = 0; i < count; ++i) {
      pool_->Post({.tenant = tenant, .weight = weight, .bytes = bytes},
                  [this, tenant] { done_.push_back(tenant); });
    }
  }
  // Whose tasks were done, in order.
  std::vector<std::string> Finish() {
    posted_.Notify();
    pool_.reset();
    return done_;
  }
  static size_t NumBefore(const std::vector<std::string>& done, const std::string& tenant, size_t nth) {
    size_t others = 0;
    for (const std::string& name : done) {
      if (name != tenant) {
        ++others;
      } else if (nth-- == 0) {
        return others;
      }
    }
    return others;
  }

  absl::Notification posted_;
  std::vector<std::string> done_;  // Of the one thread, until it is joined.
  std::unique_ptr<WorkerPool> pool_ = std::make_unique<WorkerPool>(1);
};

TEST_F(WorkerPoolTest, AFloodWaitsForItself) {
  Post("flood", 1, 1 << 20, 120);
  Post("other", 1, 100, 1);
  const std::vector<std::string> done = Finish();
  ASSERT_EQ(done.size(), 121u) << "what is queued is done before the end";
  EXPECT_LE(NumBefore(done, "other", 0), 1u);
}

TEST_F(WorkerPoolTest, LongTasksCountForMore) {
  Post("flood", 1, 1 << 20, 120);
  Post("other", 1, 100, 120);
  const std::vector<std::string> done = Finish();
  // One of a mebibyte for each seventeen short ones.
  EXPECT_LE(NumBefore(done, "other", 119), 8u);
}

TEST_F(WorkerPoolTest, SharesFollowWeights) {
  Post("light", 1, 100, 120);
  Post("heavy", 3, 100, 120);
  const std::vector<std::string> done = Finish();
  const size_t light = NumBefore(done, "heavy", 119);
  EXPECT_GE(light, 38u);
  EXPECT_LE(light, 42u);
}

TEST_F(WorkerPoolTest, TheRoutersOwnWorkIsDoneInOrder) {
  std::vector<int> order;
  for (int i = 0; i < 50; ++i) pool_->Post([&order, i] { order.push_back(i); });
  Finish();
  ASSERT_EQ(order.size(), 50u);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(order[i], i);
}

}  // namespace
}  // namespace tandem::router
