#include "common/tracing/span_exporter.h"

#include <map>
#include <string>
#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Le;
using ::testing::Pair;

// Far beyond what a test takes.
constexpr absl::Duration kPatience = absl::Seconds(60);

// What a transport was given and does, shared with the test.
struct World {
  absl::Mutex mutex;
  std::vector<size_t> batches ABSL_GUARDED_BY(mutex);
  bool hangs ABSL_GUARDED_BY(mutex) = false;  // Until it is cancelled.
  bool cancelled ABSL_GUARDED_BY(mutex) = false;
  absl::StatusOr<size_t> answer ABSL_GUARDED_BY(mutex) = size_t{0};
  size_t exported ABSL_GUARDED_BY(mutex) = 0;
  std::map<std::string, size_t> dropped ABSL_GUARDED_BY(mutex);

  size_t total() ABSL_SHARED_LOCKS_REQUIRED(mutex) {
    size_t sum = exported;
    for (const auto& [reason, count] : dropped) sum += count;
    return sum;
  }
  bool WaitForBatches(size_t count) {
    const auto enough = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex) { return batches.size() >= count; };
    absl::MutexLock lock(&mutex);
    return mutex.AwaitWithTimeout(absl::Condition(&enough), kPatience);
  }
  bool WaitForTotal(size_t count) {
    const auto enough = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex) { return total() >= count; };
    absl::MutexLock lock(&mutex);
    return mutex.AwaitWithTimeout(absl::Condition(&enough), kPatience);
  }
};

class FakeTransport final : public SpanTransport {
 public:
  explicit FakeTransport(World* world) : world_(world) {}
  absl::StatusOr<size_t> Send(const std::vector<SpanRecord>& spans, absl::Time) override {
    absl::MutexLock lock(&world_->mutex);
    world_->batches.push_back(spans.size());
    const auto goes_on = [this]() ABSL_SHARED_LOCKS_REQUIRED(world_->mutex) {
      return !world_->hangs || world_->cancelled;
    };
    world_->mutex.Await(absl::Condition(&goes_on));
    if (world_->cancelled && world_->hangs) return absl::CancelledError("given up");
    return world_->answer;
  }
  void Cancel() override {
    absl::MutexLock lock(&world_->mutex);
    world_->cancelled = true;
  }

 private:
  World* const world_;
};

class SpanExporterTest : public ::testing::Test {
 protected:
  std::unique_ptr<SpanExporter> Make(const SpanExporter::Options& options) {
    return std::make_unique<SpanExporter>(
        options, std::make_unique<FakeTransport>(&world_),
        SpanExporter::Observer{.on_exported =
                                   [this](size_t count) {
                                     absl::MutexLock lock(&world_.mutex);
                                     world_.exported += count;
                                   },
                               .on_dropped =
                                   [this](absl::string_view reason, size_t count) {
                                     absl::MutexLock lock(&world_.mutex);
                                     world_.dropped[std::string(reason)] += count;
                                   }});
  }
  static void Offer(SpanExporter& exporter, int count) {
    for (int i = 0; i < count; ++i) exporter.Offer({.name = "span"});
  }

  World world_;
};

TEST_F(SpanExporterTest, AFullBatchGoesAtOnceAndTheRestAfterTheInterval) {
  const auto exporter = Make({.max_batch = 10, .interval = absl::InfiniteDuration()});
  Offer(*exporter, 10);
  EXPECT_TRUE(world_.WaitForBatches(1)) << "the interval would never have ended";
  const auto soon = Make({.max_batch = 1000, .interval = absl::Milliseconds(1)});
  Offer(*soon, 3);
  EXPECT_TRUE(world_.WaitForTotal(13));
  absl::MutexLock lock(&world_.mutex);
  EXPECT_THAT(world_.batches, Each(Le(10u)));
  EXPECT_EQ(world_.exported, 13u);
}

TEST_F(SpanExporterTest, BeyondTheQueueSpansAreDroppedAndNobodyWaits) {
  {
    absl::MutexLock lock(&world_.mutex);
    world_.hangs = true;
  }
  const auto exporter = Make({.max_queued = 5, .max_batch = 1, .flush_timeout = absl::Milliseconds(10)});
  Offer(*exporter, 1);
  ASSERT_TRUE(world_.WaitForBatches(1));
  Offer(*exporter, 100);  // Returns although nothing is taken.
  {
    absl::MutexLock lock(&world_.mutex);
    EXPECT_THAT(world_.dropped, ElementsAre(Pair("queue_full", 95)));
  }
  exporter->Shutdown();
  Offer(*exporter, 2);
  absl::MutexLock lock(&world_.mutex);
  EXPECT_THAT(world_.dropped, ElementsAre(Pair("cancelled", 1), Pair("queue_full", 95), Pair("shutdown", 7)));
  EXPECT_THAT(world_.batches, ElementsAre(1)) << "after the flush's time nothing more is sent";
}

TEST_F(SpanExporterTest, ShutdownSendsWhatIsLeft) {
  const auto exporter =
      Make({.max_batch = 4, .interval = absl::InfiniteDuration(), .flush_timeout = kPatience});
  Offer(*exporter, 3);
  exporter->Shutdown();
  exporter->Shutdown();
  absl::MutexLock lock(&world_.mutex);
  EXPECT_EQ(world_.exported, 3u);
  EXPECT_TRUE(world_.dropped.empty());
}

TEST_F(SpanExporterTest, WhatFailsOrIsRejectedIsCounted) {
  const auto exporter = Make({.max_batch = 1, .interval = absl::ZeroDuration()});
  {
    absl::MutexLock lock(&world_.mutex);
    world_.answer = absl::UnavailableError("nobody there");
  }
  Offer(*exporter, 2);
  ASSERT_TRUE(world_.WaitForTotal(2));
  {
    absl::MutexLock lock(&world_.mutex);
    world_.answer = size_t{77};  // More than there are: a receiver's nonsense.
  }
  Offer(*exporter, 1);
  ASSERT_TRUE(world_.WaitForTotal(3));
  {
    absl::MutexLock lock(&world_.mutex);
    world_.answer = size_t{0};
  }
  Offer(*exporter, 1);
  ASSERT_TRUE(world_.WaitForTotal(4));
  absl::MutexLock lock(&world_.mutex);
  EXPECT_THAT(world_.dropped, ElementsAre(Pair("rejected", 1), Pair("unavailable", 2)));
  EXPECT_EQ(world_.exported, 1u);
}

TEST_F(SpanExporterTest, AHangingReceiverDelaysTheEndByTheFlushTimeOnly) {
  {
    absl::MutexLock lock(&world_.mutex);
    world_.hangs = true;
  }
  const auto exporter =
      Make({.max_batch = 1, .send_timeout = kPatience, .flush_timeout = absl::Milliseconds(20)});
  Offer(*exporter, 3);
  ASSERT_TRUE(world_.WaitForBatches(1));
  const absl::Time start = absl::Now();
  exporter->Shutdown();
  EXPECT_LT(absl::Now() - start, kPatience / 2);
  absl::MutexLock lock(&world_.mutex);
  EXPECT_EQ(world_.total(), 3u);
}

}  // namespace
}  // namespace tandem
