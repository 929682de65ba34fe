#include "common/engine/engine_turns.h"

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace tandem {
namespace {

// Counts who is in a turn at the same time.
struct TurnWatch {
  std::atomic<int> inside{0};
  std::atomic<int> most{0};
  std::atomic<int> steps{0};

  void Enter() {
    const int now = ++inside;
    int before = most.load();
    while (now > before && !most.compare_exchange_weak(before, now)) {
    }
    ++steps;
  }
};

class WatchedEngine final : public Engine {
 public:
  WatchedEngine(TurnWatch* watch, bool overlaps, absl::Status start = absl::OkStatus())
      : watch_(watch), overlaps_(overlaps), start_(std::move(start)) {}
  const ModelConfig& config() const override { return config_; }
  uint32_t num_blocks() const override { return 7; }
  uint32_t max_rows() const override { return 3; }
  bool overlaps() const override { return overlaps_; }
  absl::Status Step(absl::Span<const StepRow>) override {
    watch_->Enter();
    std::this_thread::yield();
    --watch_->inside;
    return absl::OkStatus();
  }
  absl::Status Start(absl::Span<const StepRow> rows) override {
    if (!overlaps_ || !start_.ok()) return start_.ok() ? Engine::Start(rows) : start_;
    watch_->Enter();
    return absl::OkStatus();
  }
  absl::Status Finish() override {
    if (!overlaps_) return Engine::Finish();
    std::this_thread::yield();
    --watch_->inside;
    return absl::OkStatus();
  }
  absl::Status CopyKv(absl::Span<const KvCopy>) override { return absl::OkStatus(); }

 private:
  TurnWatch* const watch_;
  const bool overlaps_;
  const absl::Status start_;
  const ModelConfig config_;
};

TEST(EngineTurnsTest, OneComputesAtATime) {
  for (const bool overlaps : {false, true}) {
    TurnWatch watch;
    const auto turns = std::make_shared<EngineTurns>();
    std::vector<std::unique_ptr<Engine>> engines;
    for (int i = 0; i < 4; ++i)
      engines.push_back(TakeTurns(std::make_unique<WatchedEngine>(&watch, overlaps), turns));
    std::vector<std::thread> threads;
    for (const auto& engine : engines) {
      threads.emplace_back([&engine] {
        for (int step = 0; step < 25; ++step) {
          if (step % 2 == 0) {
            EXPECT_TRUE(engine->Step({}).ok());
          } else {
            EXPECT_TRUE(engine->Start({}).ok());
            EXPECT_TRUE(engine->Finish().ok());
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(watch.most, 1);
    EXPECT_EQ(watch.steps, 4 * 25);
  }
}

TEST(EngineTurnsTest, AFailedStartKeepsNoTurn) {
  TurnWatch watch;
  const auto turns = std::make_shared<EngineTurns>();
  const auto failing =
      TakeTurns(std::make_unique<WatchedEngine>(&watch, true, absl::InvalidArgumentError("rows")), turns);
  const auto other = TakeTurns(std::make_unique<WatchedEngine>(&watch, true), turns);
  EXPECT_TRUE(absl::IsInvalidArgument(failing->Start({})));
  EXPECT_TRUE(other->Step({}).ok());
  EXPECT_EQ(other->num_blocks(), 7u);
  EXPECT_EQ(other->max_rows(), 3u);
}

}  // namespace
}  // namespace tandem
