#include "verifier/scheduler/warm_up.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/token.h"
#include "common/engine/sequence_kv.h"
#include "common/testing/fake_engine.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

constexpr uint32_t kBlocks = 128;
constexpr double kBudget = 3.0;

// Seconds of a pass by its rows and the tokens that each attends to.
using Cost = std::function<double(uint32_t rows, uint32_t context)>;

// Each of its steps moves the clock by what it costs.
class TimedEngine final : public Engine {
 public:
  TimedEngine(const FakeEngine::Options& options, Cost cost, ManualClock* clock)
      : engine_(options), cost_(std::move(cost)), clock_(clock) {}

  const ModelConfig& config() const override { return engine_.config(); }
  uint32_t num_blocks() const override { return engine_.num_blocks(); }
  uint32_t max_rows() const override { return engine_.max_rows(); }
  bool chooses() const override { return engine_.chooses(); }
  absl::Status Step(absl::Span<const StepRow> rows) override {
    uint64_t context = 0;
    for (const StepRow& row : rows) context += row.context.length();
    const double seconds =
        cost_(static_cast<uint32_t>(rows.size()), static_cast<uint32_t>(context / rows.size()));
    longest_ = std::max(longest_, seconds);
    clock_->Advance(absl::Seconds(seconds));
    return engine_.Step(rows);
  }
  absl::Status CopyKv(absl::Span<const KvCopy> copies) override { return engine_.CopyKv(copies); }

  FakeEngine& fake() { return engine_; }
  double longest() const { return longest_; }

 private:
  FakeEngine engine_;
  const Cost cost_;
  ManualClock* const clock_;
  double longest_ = 0.0;
};

struct Parts {
  explicit Parts(
      Cost cost = [](uint32_t, uint32_t) { return 0.001; }, FakeEngine::Options options = {})
      : engine(((options.num_blocks = kBlocks), options), std::move(cost), &clock),
        warm_up(&engine, &pool, &clock, {.model = "m", .budget = absl::Seconds(kBudget)}) {}

  absl::Status PassAll() {
    while (!warm_up.done()) {
      const absl::Status status = warm_up.Pass(/*alone=*/true);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  ManualClock clock;
  BlockPool pool{{.num_blocks = kBlocks}};
  TimedEngine engine;
  WarmUp warm_up;
};

TEST(WarmUpTest, MeasuresAllAndGivesItsBlocksBack) {
  Parts parts;
  ASSERT_TRUE(parts.PassAll().ok());
  EXPECT_EQ(parts.warm_up.num_measured(), 11u);
  EXPECT_EQ(parts.pool.num_free(), kBlocks);
  EXPECT_NEAR(parts.warm_up.RoundTime().Seconds(1), 0.001, 1e-9);
}

TEST(WarmUpTest, MeasuresWhatRoundsAskFor) {
  for (const bool chooses : {false, true}) {
    Parts parts([](uint32_t, uint32_t) { return 0.001; }, {.chooses = chooses});
    ASSERT_TRUE(parts.PassAll().ok());
    EXPECT_EQ(parts.engine.fake().num_choices() > 0, chooses);
    EXPECT_EQ(parts.engine.fake().num_logits() > 0, !chooses);
  }
}

TEST(WarmUpTest, TakesEnginesAndPoolsOfAnySize) {
  for (const uint32_t max_rows : {1u, 3u, 512u}) {
    for (const uint32_t num_blocks : {1u, 2u, 16u, 70u}) {
      SCOPED_TRACE(absl::StrCat(max_rows, " rows, ", num_blocks, " blocks"));
      ManualClock clock;
      FakeEngine engine({.num_blocks = num_blocks, .max_rows = max_rows});
      BlockPool pool({.num_blocks = num_blocks});
      WarmUp warm_up(&engine, &pool, &clock, {});
      while (!warm_up.done()) ASSERT_TRUE(warm_up.Pass(/*alone=*/true).ok());
      EXPECT_EQ(pool.num_free(), num_blocks);
      EXPECT_GE(warm_up.RoundTime().Seconds(1), 0.0);
    }
  }
}

TEST(WarmUpTest, EndsWithTheFirstError) {
  Parts parts;
  ASSERT_TRUE(parts.warm_up.Pass(/*alone=*/true).ok());
  parts.engine.fake().FailNextStep(absl::DataLossError("broken"));
  EXPECT_TRUE(absl::IsDataLoss(parts.warm_up.Pass(/*alone=*/true)));
  EXPECT_TRUE(parts.warm_up.done());
  EXPECT_EQ(parts.pool.num_free(), kBlocks);
  EXPECT_GT(parts.warm_up.RoundTime().Seconds(1), 0.0);
}

// Who comes meanwhile finds all blocks free before the next pass, and the long context comes after them.
TEST(WarmUpTest, KeepsNothingBesideSessions) {
  Parts parts;
  while (parts.pool.num_free() == kBlocks && !parts.warm_up.done()) {
    ASSERT_TRUE(parts.warm_up.Pass(/*alone=*/true).ok());
  }
  ASSERT_LT(parts.pool.num_free(), kBlocks) << "no long context was begun";
  parts.warm_up.Release();
  EXPECT_EQ(parts.pool.num_free(), kBlocks);
  for (int pass = 0; pass < 200; ++pass) {
    ASSERT_TRUE(parts.warm_up.Pass(/*alone=*/false).ok());
    ASSERT_EQ(parts.pool.num_free(), kBlocks);
  }
  EXPECT_FALSE(parts.warm_up.done()) << "a long context is still to come";
  ASSERT_TRUE(parts.PassAll().ok());
  EXPECT_EQ(parts.warm_up.num_measured(), 11u);
}

// The last row's logits after `tokens`, computed with what the prefix cache has of them, which then has all.
std::vector<float> Continue(Parts& parts, const TokenIds& tokens, uint32_t* num_cached) {
  SequenceKv kv(&parts.pool, /*space=*/0);
  kv.Start(tokens);
  *num_cached = kv.num_cached();
  const auto length = static_cast<uint32_t>(tokens.size());
  EXPECT_TRUE(kv.Reserve(length).ok());
  std::vector<float> logits(static_cast<size_t>(parts.engine.config().vocab_size));
  std::vector<StepRow> rows;
  for (uint32_t position = kv.num_computed(); position < length; ++position) {
    rows.push_back({.token = tokens[position], .context = kv.CommittedRow(position)});
  }
  rows.back().logits = logits.data();
  EXPECT_TRUE(parts.engine.fake().Step(rows).ok());
  kv.MarkComputed(length);
  return logits;
}

// Whatever a prompt was, what is kept of it stays as it is.
TEST(WarmUpTest, LeavesThePrefixCacheAlone) {
  Parts parts;
  const TokenIds prompt(200, 0);
  uint32_t num_cached = 0;
  const std::vector<float> logits = Continue(parts, prompt, &num_cached);
  EXPECT_EQ(num_cached, 0u);
  EXPECT_EQ(logits, parts.engine.fake().ReferenceLogits(prompt));
  ASSERT_TRUE(parts.PassAll().ok());
  EXPECT_EQ(parts.warm_up.num_measured(), 11u);
  EXPECT_EQ(Continue(parts, prompt, &num_cached), logits);
  EXPECT_GE(num_cached, 160u);
}

struct Shape {
  std::string name;
  Cost cost;  // Of a model whose pass of one row takes a second.
};

// How passes grow with their rows: memory first and computing then, a part for each row, tiles of rows, and
// caches that help at first; each with a context that costs something.
std::vector<Shape> Shapes() {
  const auto with_context = [](std::function<double(double)> of_rows) -> Cost {
    return [of_rows = std::move(of_rows)](uint32_t rows, uint32_t context) {
      return of_rows(rows) / of_rows(1) * (1.0 + 1e-5 * context) + 2e-6 * rows * context;
    };
  };
  return {
      {"roofline at 6", with_context([](double rows) { return std::max(1.0, rows / 6); })},
      {"roofline at 24", with_context([](double rows) { return std::max(1.0, rows / 24); })},
      {"smooth roofline", with_context([](double rows) { return std::sqrt(1 + rows * rows / 100); })},
      {"few per row", with_context([](double rows) { return 1 + 0.02 * rows; })},
      {"many per row", with_context([](double rows) { return 1 + 0.25 * rows; })},
      {"all per row", with_context([](double rows) { return rows; })},
      {"tiles of 8", with_context([](double rows) { return 1 + 0.5 * std::ceil(rows / 8); })},
      {"tiles of 16", with_context([](double rows) { return std::ceil(rows / 16); })},
      {"concave", with_context([](double rows) { return std::pow(rows, 0.7); })},
      {"flat", with_context([](double) { return 1.0; })},
  };
}

constexpr double kRowSeconds[] = {0.0005, 0.005, 0.03, 0.08, 0.2, 0.5, 1.0, 2.0};

TEST(WarmUpTest, StaysInItsBudget) {
  for (const Shape& shape : Shapes()) {
    for (const double row_seconds : kRowSeconds) {
      SCOPED_TRACE(absl::StrCat(shape.name, ", a row in ", row_seconds, " s"));
      Parts parts([&](uint32_t rows, uint32_t context) { return row_seconds * shape.cost(rows, context); });
      ASSERT_TRUE(parts.PassAll().ok());
      EXPECT_LE(parts.clock.Now() - absl::UnixEpoch(), absl::Seconds(kBudget + 1e-6));
      EXPECT_EQ(parts.clock.Now() - absl::UnixEpoch(), parts.warm_up.spent());
      // What a request that comes waits for.
      EXPECT_LE(parts.engine.longest(), std::max(kBudget / 3, 4 * row_seconds * shape.cost(1, 1)) + 1e-6);
    }
  }
  Parts slower([](uint32_t rows, uint32_t) { return 10.0 * rows; });
  ASSERT_TRUE(slower.PassAll().ok());
  EXPECT_EQ(slower.clock.Now() - absl::UnixEpoch(), absl::Seconds(10)) << "one pass is needed";
}

// As the grid of all points has it, each measured without an end.
RoundTimeModel FullGrid(const Shape& shape, double row_seconds) {
  std::vector<RoundTimeModel::Point> grid;
  for (const uint32_t rows : {1, 2, 4, 8, 16, 32, 64}) {
    for (const uint32_t context : {1, 512}) {
      grid.push_back({.rows = rows, .seconds = row_seconds * shape.cost(rows, context), .context = context});
    }
  }
  return RoundTimeModel(grid);
}

// The farthest ratio of the two up to so many rows, in a short context.
double Farthest(const RoundTimeModel& a, const RoundTimeModel& b, uint32_t most_rows) {
  double farthest = 1.0;
  for (uint32_t rows = 1; rows <= most_rows; ++rows) {
    const double ratio = a.Seconds(rows, 1) / b.Seconds(rows, 1);
    farthest = std::max({farthest, ratio, 1.0 / ratio});
  }
  return farthest;
}

// How far the curve may be from that of the full grid, by the time of one row. From a second on it is a
// guess.
struct Bound {
  double row_seconds;
  double to_16_rows;
  double to_64_rows;
};
constexpr Bound kBounds[] = {
    {0.005, 1.01, 1.01}, {0.03, 1.01, 1.01}, {0.08, 1.01, 1.5},
    {0.2, 1.4, 2.0},     {0.5, 1.4, 4.1},    {2.0, 6.0, 9.0},
};

TEST(WarmUpTest, FewPointsAreNearTheFullCurve) {
  for (const Shape& shape : Shapes()) {
    for (const double row_seconds : kRowSeconds) {
      SCOPED_TRACE(absl::StrCat(shape.name, ", a row in ", row_seconds, " s"));
      Parts parts([&](uint32_t rows, uint32_t context) { return row_seconds * shape.cost(rows, context); });
      ASSERT_TRUE(parts.PassAll().ok());
      const RoundTimeModel few = parts.warm_up.RoundTime();
      const RoundTimeModel full = FullGrid(shape, row_seconds);
      const auto bound = std::find_if(std::begin(kBounds), std::end(kBounds),
                                      [&](const Bound& each) { return row_seconds <= each.row_seconds; });
      EXPECT_LE(Farthest(few, full, 16), bound->to_16_rows);
      EXPECT_LE(Farthest(few, full, 64), bound->to_64_rows);
      for (uint32_t rows = 1; rows < 80; ++rows) {
        for (const uint32_t context : {1, 300, 2000}) {
          ASSERT_LE(few.Seconds(rows, context), few.Seconds(rows + 1, context));
          ASSERT_LE(few.Seconds(rows, context), few.Seconds(rows, context + 100));
        }
      }
    }
  }
}

// Other programs take the cores now and then: times are up to three times as long, and never shorter.
TEST(WarmUpTest, DisturbedPassesAreMeasuredAgain) {
  const Shape shape = {"linear", [](uint32_t rows, uint32_t) { return (1 + 0.1 * rows) / 1.1; }};
  for (uint32_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Parts parts([&](uint32_t rows, uint32_t context) {
      const double disturbance = random() % 4 == 0 ? 1.0 + 2.0 * (random() % 1000) / 1000.0 : 1.0;
      return 0.02 * shape.cost(rows, context) * disturbance;
    });
    ASSERT_TRUE(parts.PassAll().ok());
    EXPECT_LE(Farthest(parts.warm_up.RoundTime(), FullGrid(shape, 0.02), 64), 1.5);
  }
}

// Where the time was too short for more than one row, steps in service tell what further rows cost.
TEST(WarmUpTest, StepsInServiceMendAGuess) {
  for (const double further : {0.03, 0.125, 0.5, 1.0}) {
    SCOPED_TRACE(further);
    const Cost cost = [further](uint32_t rows, uint32_t) { return 2.0 * (1 + further * (rows - 1)); };
    Parts parts(cost);
    ASSERT_TRUE(parts.PassAll().ok());
    EXPECT_EQ(parts.warm_up.num_measured(), 1u);
    RoundTimeModel model = parts.warm_up.RoundTime();
    // Plain steps, trees, and now and then a prompt.
    for (int i = 0; i < 300; ++i) {
      const uint32_t rows = i % 10 == 0 ? 128 : i % 2 == 0 ? 1 : 6;
      model.Observe(rows, cost(rows, 1), 1);
    }
    for (const uint32_t rows : {1u, 6u, 16u}) {
      EXPECT_NEAR(model.Seconds(rows, 1) / cost(rows, 1), 1.0, 0.3) << rows << " rows";
    }
  }
}

}  // namespace
}  // namespace tandem
