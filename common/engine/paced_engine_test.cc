#include "common/engine/paced_engine.h"

#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Takes a fixed time by the clock it moves.
class TimedEngine final : public Engine {
 public:
  TimedEngine(ManualClock* clock, absl::Duration step_time) : clock_(clock), step_time_(step_time) {}

  const ModelConfig& config() const override { return config_; }
  uint32_t num_blocks() const override { return 7; }
  uint32_t max_rows() const override { return 9; }
  bool chooses() const override { return true; }
  absl::Status Step(absl::Span<const StepRow> rows) override {
    clock_->Advance(step_time_);
    if (rows.empty()) return absl::InvalidArgumentError("no rows");
    steps.push_back(rows.size());
    return absl::OkStatus();
  }
  absl::Status CopyKv(absl::Span<const KvCopy> copies) override {
    copied += copies.size();
    return absl::OkStatus();
  }

  std::vector<size_t> steps;
  size_t copied = 0;

 private:
  ManualClock* const clock_;
  const absl::Duration step_time_;
  ModelConfig config_;
};

class PacedEngineTest : public ::testing::Test {
 protected:
  // Steps of one row that last 10 ms and of three that last 14, around an engine that takes `step_time`.
  PacedEngine Make(absl::Duration step_time) {
    auto inner = std::make_unique<TimedEngine>(&clock_, step_time);
    inner_ = inner.get();
    return PacedEngine(std::move(inner), {absl::Milliseconds(10), absl::Milliseconds(2)}, &clock_,
                       [this](absl::Time until) {
                         waits_.push_back(until - clock_.Now());
                         clock_.Advance(until - clock_.Now());
                       });
  }

  ManualClock clock_;
  TimedEngine* inner_ = nullptr;
  std::vector<absl::Duration> waits_;
};

TEST_F(PacedEngineTest, WaitsForWhatIsLeftOfTheStep) {
  PacedEngine engine = Make(absl::Milliseconds(3));
  const std::vector<StepRow> rows(3);
  ASSERT_TRUE(engine.Step(absl::MakeConstSpan(rows).first(1)).ok());
  ASSERT_TRUE(engine.Step(rows).ok());
  EXPECT_THAT(waits_, ElementsAre(absl::Milliseconds(7), absl::Milliseconds(11)));
  EXPECT_THAT(inner_->steps, ElementsAre(1, 3));
  EXPECT_EQ(clock_.Now() - absl::UnixEpoch(), absl::Milliseconds(24));
}

TEST_F(PacedEngineTest, AStepGoesOnBetweenItsStartAndItsFinish) {
  PacedEngine engine = Make(absl::Milliseconds(3));
  EXPECT_TRUE(engine.overlaps());
  const std::vector<StepRow> rows(1);
  ASSERT_TRUE(engine.Start(rows).ok());
  EXPECT_EQ(clock_.Now(), absl::UnixEpoch());
  clock_.Advance(absl::Milliseconds(4));
  ASSERT_TRUE(engine.Finish().ok());
  EXPECT_THAT(waits_, ElementsAre(absl::Milliseconds(3)));
  // One that the caller comes back to late.
  ASSERT_TRUE(engine.Start(rows).ok());
  clock_.Advance(absl::Milliseconds(9));
  ASSERT_TRUE(engine.Finish().ok());
  EXPECT_THAT(waits_, ElementsAre(absl::Milliseconds(3)));
  EXPECT_THAT(inner_->steps, ElementsAre(1, 1));
}

TEST_F(PacedEngineTest, DoesNotSlowDownWhatIsSlowAnyway) {
  PacedEngine engine = Make(absl::Milliseconds(10));
  const std::vector<StepRow> rows(2);
  ASSERT_TRUE(engine.Step(absl::MakeConstSpan(rows).first(1)).ok());
  EXPECT_THAT(waits_, IsEmpty());
  ASSERT_TRUE(engine.Step(rows).ok());
  EXPECT_THAT(waits_, ElementsAre(absl::Milliseconds(2)));
}

TEST_F(PacedEngineTest, HandsOnEverythingElse) {
  PacedEngine engine = Make(absl::ZeroDuration());
  EXPECT_EQ(engine.num_blocks(), 7u);
  EXPECT_EQ(engine.max_rows(), 9u);
  EXPECT_TRUE(engine.chooses());
  EXPECT_EQ(&engine.config(), &inner_->config());
  const std::vector<KvCopy> copies(4);
  EXPECT_TRUE(engine.CopyKv(copies).ok());
  EXPECT_EQ(inner_->copied, 4u);
  EXPECT_EQ(engine.Step({}), absl::InvalidArgumentError("no rows"));
  EXPECT_THAT(waits_, IsEmpty());
}

TEST(PaceTest, Parses) {
  const absl::StatusOr<Pace> simple = ParsePace("12");
  ASSERT_TRUE(simple.ok());
  EXPECT_EQ(simple->StepTime(1), absl::Milliseconds(12));
  EXPECT_EQ(simple->StepTime(100), absl::Milliseconds(12));
  const absl::StatusOr<Pace> growing = ParsePace("12+0.5");
  ASSERT_TRUE(growing.ok());
  EXPECT_EQ(growing->StepTime(1), absl::Milliseconds(12));
  EXPECT_EQ(growing->StepTime(9), absl::Milliseconds(16));
  EXPECT_EQ(growing->StepTime(0), absl::ZeroDuration());
  EXPECT_EQ(DescribePace(*simple), "at least 12 ms");
  EXPECT_EQ(DescribePace(*growing), "at least 12 ms, and 0.5 ms for each further row");
}

TEST(PaceTest, RefusesWhatIsNoPace) {
  for (const char* text : {"", "+", "1+", "+1", "1+2+3", "-1", "nan", "inf", "60001", "12ms", "1+-2"}) {
    const absl::StatusOr<Pace> pace = ParsePace(text);
    EXPECT_EQ(pace.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(pace.status().message(), HasSubstr("milliseconds")) << text;
  }
}

}  // namespace
}  // namespace tandem
