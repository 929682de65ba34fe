#include "bench/serve/load_generator.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace tandem::bench {
namespace {

// Holds requests until as many are there as a test expects at once, then ends all of them from a thread of
// its own. A load that never has so many under way would hang, and the test's time limit would end it.
class GatheringBackend final : public GenerateBackend {
 public:
  explicit GatheringBackend(size_t at_once) : at_once_(at_once) {}
  ~GatheringBackend() override {
    for (std::thread& thread : threads_) thread.join();
  }

  void Start(const v1::GenerateRequest& request, std::function<void(RequestRecord)> done) override {
    starts.push_back(absl::Now());
    held_.emplace_back(request.text(), std::move(done));
    most = std::max(most, held_.size());
    if (held_.size() < at_once_) return;
    threads_.emplace_back([held = std::exchange(held_, {})] {
      for (const auto& [text, end] : held) {
        RequestRecord record;
        record.text = text;
        end(std::move(record));
      }
    });
  }

  std::vector<absl::Time> starts;
  size_t most = 0;

 private:
  const size_t at_once_;
  std::vector<std::pair<std::string, std::function<void(RequestRecord)>>> held_;
  std::vector<std::thread> threads_;
};

std::vector<v1::GenerateRequest> Requests(size_t count) {
  std::vector<v1::GenerateRequest> requests(count);
  for (size_t i = 0; i < count; ++i) requests[i].set_text(absl::StrCat("request ", i));
  return requests;
}

TEST(LoadGeneratorTest, AClosedLoopKeepsSoManyUnderWayAndNoMore) {
  GatheringBackend backend(3);
  const LoadResult result = RunLoad(backend, Requests(9), {.concurrency = 3}, {});
  EXPECT_EQ(backend.most, 3u);
  ASSERT_EQ(result.records.size(), 9u);
  for (size_t i = 0; i < 9; ++i) EXPECT_EQ(result.records[i].text, absl::StrCat("request ", i));
  EXPECT_GT(result.seconds, 0.0);
}

TEST(LoadGeneratorTest, AnOpenLoopDoesNotWaitForEnds) {
  // All must have arrived before the first ends.
  GatheringBackend backend(5);
  const std::vector<absl::Duration> arrivals = PoissonArrivals(2000.0, 5, 3);
  const absl::Time start = absl::Now();
  const LoadResult result = RunLoad(backend, Requests(5), {.requests_per_second = 2000.0}, arrivals);
  EXPECT_EQ(backend.most, 5u);
  EXPECT_EQ(result.records.size(), 5u);
  for (size_t i = 0; i < 5; ++i) EXPECT_GE(backend.starts[i] - start, arrivals[i]);
}

TEST(LoadGeneratorTest, NothingToSendIsNothingToWaitFor) {
  GatheringBackend backend(1);
  EXPECT_TRUE(RunLoad(backend, {}, {}, {}).records.empty());
}

}  // namespace
}  // namespace tandem::bench
