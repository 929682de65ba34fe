#include "bench/rounds/paced_loop.h"

#include "bench/rounds/paced_bench.h"
#include "common/testing/fake_engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::bench {
namespace {

using ::testing::HasSubstr;

const std::string kModels = std::string(TANDEM_SOURCE_DIR) + "/deploy/demo-models";

class PacedLoopTest : public ::testing::Test {
 protected:
  PacedLoop::Report Run(PacedLoop::Options options, const std::vector<PacedLoop::Request>& requests) {
    options.target_pace = {.first_row = absl::Milliseconds(10), .further_row = absl::Microseconds(200)};
    options.draft_pace = {.first_row = absl::Milliseconds(1), .further_row = absl::ZeroDuration()};
    FakeEngine target{{}};
    FakeEngine drafter{{}};
    const auto tokenizer = Tokenizer::Load(kModels + "/tandem-target-15m");
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    auto loop = PacedLoop::Make(options, &target, &drafter, *tokenizer);
    EXPECT_TRUE(loop.ok()) << loop.status();
    auto report = (*loop)->Run(requests);
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? *std::move(report) : PacedLoop::Report{};
  }

  static std::vector<PacedLoop::Request> Requests(size_t count, bool drafted) {
    std::vector<PacedLoop::Request> requests;
    for (size_t i = 0; i < count; ++i) {
      requests.push_back({.prompt = {1, 2, static_cast<TokenId>(3 + i)},
                          .sampling = {.temperature = i % 2 == 0 ? 0.0f : 0.8f, .seed = i},
                          .max_tokens = 60,
                          .drafted = drafted});
    }
    return requests;
  }
};

TEST_F(PacedLoopTest, PlainDecodingTakesAPassForEachToken) {
  const PacedLoop::Report report = Run({}, Requests(1, false));
  EXPECT_EQ(report.tokens, 60u);
  // The prompt's rows come in the pass of the first token: two of them beside the root.
  EXPECT_EQ(report.time, absl::Milliseconds(600) + absl::Microseconds(400));
  EXPECT_EQ(report.verifier_busy, report.time);
  EXPECT_EQ(report.drafter_busy, absl::ZeroDuration());
}

TEST_F(PacedLoopTest, DraftsMakeItFasterAndChangeNothing) {
  for (const uint32_t concurrency : {1u, 3u}) {
    const PacedLoop::Report plain = Run({.concurrency = concurrency}, Requests(4, false));
    const PacedLoop::Report drafted = Run({.concurrency = concurrency}, Requests(4, true));
    EXPECT_EQ(drafted.outputs, plain.outputs);
    EXPECT_LT(drafted.time, 0.7 * plain.time);
    EXPECT_GT(drafted.hits, 0u);
    // Simulated time is the same in every run.
    EXPECT_EQ(Run({.concurrency = concurrency}, Requests(4, true)).time, drafted.time);
  }
}

// Law 2 for whatever is drafted ahead, in every shape.
TEST_F(PacedLoopTest, OutputsDoNotDependOnWhatIsDraftedAhead) {
  const PacedLoop::Report plain = Run({}, Requests(4, false));
  for (const TreeShape shape : {TreeShape::kBestFirst, TreeShape::kChain, TreeShape::kEagle2}) {
    for (const uint32_t ahead_nodes : {0u, 5u, 200u}) {
      for (const char* policy : {"goodput", "fixed", "specdec++"}) {
        const PacedLoop::Report drafted =
            Run({.limits = {.ahead_nodes = ahead_nodes, .ahead_branching = 3, .shape = shape},
                 .window_policy = policy,
                 .concurrency = 2},
                Requests(4, true));
        EXPECT_EQ(drafted.outputs, plain.outputs) << policy << " " << ahead_nodes;
      }
    }
  }
}

// A chain ends with the first token that it has not guessed, and only what stands beside it goes on from
// there.
TEST(PacedBenchTest, ChainsFindTheirNextRootAmongWhatIsDraftedAhead) {
  PacedOptions options{
      .target = kModels + "/tandem-target-15m",
      .drafters = {kModels + "/tandem-draft-general-1m"},
      .prompts = {"story=" + std::string(TANDEM_SOURCE_DIR) + "/bench/serve/prompts/story.txt"},
      .num_prompts = 2,
      .warm_up = 0,
      .max_tokens = 48,
      .shapes = {"chain"}};
  options.limits.ahead_nodes = 0;
  const auto before = MeasurePaced(options);
  ASSERT_TRUE(before.ok()) << before.status();
  options.limits.ahead_nodes = 112;
  const auto after = MeasurePaced(options);
  ASSERT_TRUE(after.ok()) << after.status();
  const auto hit_share = [](const PacedLoop::Report& report) {
    return static_cast<double>(report.hits) / static_cast<double>(report.drafted);
  };
  EXPECT_GT(hit_share((*after)[0].report), hit_share((*before)[0].report) + 0.2);
  EXPECT_GT((*after)[0].speedup, 1.1 * (*before)[0].speedup);
  EXPECT_THAT(PacedTable(*after), HasSubstr("| tandem-draft-general-1m | story | 0 | 1 | chain | goodput |"));
}

TEST(PacedBenchTest, SaysWhatIsWrong) {
  const PacedOptions good{
      .target = kModels + "/tandem-target-15m",
      .drafters = {kModels + "/tandem-draft-general-1m"},
      .prompts = {"story=" + std::string(TANDEM_SOURCE_DIR) + "/bench/serve/prompts/story.txt"}};
  const auto error_of = [&](auto change) {
    PacedOptions options = good;
    change(options);
    return MeasurePaced(options).status().ToString();
  };
  EXPECT_THAT(error_of([](auto& o) { o.policies = {"fixed:0"}; }), HasSubstr("--policy fixed:0"));
  EXPECT_THAT(error_of([](auto& o) { o.policies = {"best"}; }), HasSubstr("\"best\" is not known"));
  EXPECT_THAT(error_of([](auto& o) { o.shapes = {"star"}; }), HasSubstr("\"star\" is not known"));
  EXPECT_THAT(error_of([](auto& o) { o.target_pace = "fast"; }), HasSubstr("fast"));
  EXPECT_THAT(error_of([](auto& o) { o.prompts = {"/no/such/file"}; }), HasSubstr("NAME=FILE"));
}

}  // namespace
}  // namespace tandem::bench
