#include "bench/engine_bench.h"

#include "absl/strings/str_cat.h"
#include "bench/engine_report.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;

EngineBenchOptions SmallBench() {
  EngineBenchOptions options;
  options.model.folder = absl::StrCat(TANDEM_SOURCE_DIR, "/common/model/testdata/tiny-llama");
  options.rows = {1, 5};
  options.contexts = {20};
  options.prefill = 24;
  options.repetitions = 4;
  return options;
}

std::string ErrorOf(const EngineBenchOptions& options) {
  return std::string(RunEngineBench(options).status().message());
}

TEST(EngineBenchTest, MeasuresTreesAndPrompts) {
  const EngineBenchOptions options = SmallBench();
  const auto result = RunEngineBench(options);
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->runs.size(), 2u);
  EXPECT_EQ(result->runs[0].context, 20u);
  ASSERT_EQ(result->runs[0].passes.size(), 2u);
  EXPECT_EQ(result->runs[0].passes[1].rows, 5u);
  EXPECT_EQ(result->runs[1].context, 0u);
  EXPECT_EQ(result->runs[1].passes[0].rows, 24u);
  for (const EngineBenchRun& run : result->runs) {
    for (const PassResult& pass : run.passes) {
      EXPECT_EQ(pass.repetitions, 4);
      EXPECT_GT(pass.floor_seconds, 0);
      EXPECT_GE(pass.seconds.median, pass.seconds.fastest);
    }
  }
  const auto json = nlohmann::json::parse(EngineBenchJson(options, *result));
  EXPECT_EQ(json["runs"][0]["passes"][1]["rows"], 5);
  EXPECT_EQ(json["runs"][1]["kind"], "prefill");
  EXPECT_THAT(EngineBenchTable(options, *result), HasSubstr("binary tree below a context of 20"));
}

TEST(EngineBenchTest, MeasuresDraftHeads) {
  const std::string models = absl::StrCat(TANDEM_SOURCE_DIR, "/deploy/demo-models/");
  EngineBenchOptions options = SmallBench();
  options.model = {.folder = absl::StrCat(models, "tandem-eagle3-15m"),
                   .head_target = absl::StrCat(models, "tandem-target-15m")};
  const auto result = RunEngineBench(options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->runs[0].passes[1].rows, 5u);
  EXPECT_GT(result->runs[1].passes[0].floor_seconds, 0);

  const auto head = LoadModel(options.model);
  ASSERT_TRUE(head.ok()) << head.status();
  const auto runner = EngineRunner::Create(*head, {.most_rows = 2, .most_context = 20});
  ASSERT_TRUE(runner.ok()) << runner.status();
  EXPECT_THAT((*runner)->Greedy({1}, 2).status().message(), HasSubstr("follows a target"));
  options.model.folder = absl::StrCat(models, "tandem-medusa-15m");
  EXPECT_THAT(ErrorOf(options), HasSubstr("no rows in trees"));
}

TEST(EngineBenchTest, LateContextsGetThreeRepetitions) {
  EngineBenchOptions options = SmallBench();
  options.prefill = 0;
  options.most_seconds = 0.0;
  const auto result = RunEngineBench(options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->runs[0].passes[0].repetitions, 3);
}

TEST(EngineBenchTest, ArgumentsThatMakeNoSenseAreErrors) {
  EngineBenchOptions options = SmallBench();
  options.model.shape = "llama-68m";
  EXPECT_EQ(ErrorOf(options), "expected either a model folder or --shape");
  options.model = {};
  EXPECT_EQ(ErrorOf(options), "expected either a model folder or --shape");
  options = SmallBench();
  options.rows.clear();
  options.prefill = 0;
  EXPECT_THAT(ErrorOf(options), HasSubstr("--rows"));
  options = SmallBench();
  options.threads.clear();
  EXPECT_THAT(ErrorOf(options), HasSubstr("--threads"));
  options = SmallBench();
  options.contexts = {1 << 20};
  EXPECT_THAT(ErrorOf(options), HasSubstr("the model's context"));
  options = SmallBench();
  options.contexts = {0};
  EXPECT_THAT(ErrorOf(options), HasSubstr("a context of 0 tokens"));
}

TEST(EngineBenchTest, FewerBitsAreFewerBytesOfWork) {
  EngineBenchOptions options = SmallBench();
  uint64_t last = UINT64_MAX;
  for (WeightDtype dtype : {WeightDtype::kBf16, WeightDtype::kInt8, WeightDtype::kInt4}) {
    options.weight_dtype = dtype;
    const auto result = RunEngineBench(options);
    ASSERT_TRUE(result.ok()) << result.status();
    const uint64_t bytes = result->runs.front().passes.front().work.weight_bytes;
    EXPECT_LT(bytes, last);
    last = bytes;
  }
}

TEST(EngineRunnerTest, TreeRowsSeeTheirPathOnly) {
  const auto model = LoadModel(SmallBench().model);
  ASSERT_TRUE(model.ok()) << model.status();
  EngineRunner::Options options = {.most_rows = 7, .most_context = 20};
  const auto logits = [&](RowTree tree, uint32_t num_rows, uint32_t row) {
    options.tree = tree;
    const auto runner = EngineRunner::Create(*model, options);
    EXPECT_TRUE((*runner)->TreeStep(num_rows).ok());
    const auto span = (*runner)->logits(row);
    return std::vector<float>(span.begin(), span.end());
  };
  // Row 1 is row 0's child in both; row 2 follows row 0 in one and row 1 in the other.
  EXPECT_EQ(logits(RowTree::kBinary, 7, 1), logits(RowTree::kChain, 2, 1));
  EXPECT_NE(logits(RowTree::kBinary, 3, 2), logits(RowTree::kChain, 3, 2));
  EXPECT_NE(logits(RowTree::kBinary, 2, 1), logits(RowTree::kSiblings, 2, 1));
}

TEST(SpreadTest, QuartilesAndMedian) {
  const TimeSpread spread = SpreadOf({5, 1, 4, 2, 3});
  EXPECT_EQ(spread.fastest, 1);
  EXPECT_EQ(spread.lower_quartile, 2);
  EXPECT_EQ(spread.median, 3);
  EXPECT_EQ(spread.upper_quartile, 4);
  EXPECT_EQ(SpreadOf({7}).upper_quartile, 7);
}

}  // namespace
}  // namespace tandem
