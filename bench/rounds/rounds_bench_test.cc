#include "bench/rounds/rounds_bench.h"

#include <fstream>

#include "absl/strings/str_cat.h"
#include "bench/rounds/draft_loop.h"
#include "common/testing/fake_engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kSource = TANDEM_SOURCE_DIR;

TEST(RoundsBenchTest, ADrafterThatKnowsTheTargetIsAlwaysRight) {
  auto tokenizer = Tokenizer::Load(kSource + "/deploy/demo-models/tandem-target-15m");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  FakeEngine target{{}};
  FakeEngine drafter{{}};
  auto loop = DraftLoop::Make({.limits = {.max_depth = 4,
                                          .nodes_per_level = 1,
                                          .max_nodes = 4,
                                          .branching = 1,
                                          .lookahead = 0,
                                          .shape = TreeShape::kChain}},
                              &target, &drafter, *tokenizer);
  ASSERT_TRUE(loop.ok()) << loop.status();
  for (const float temperature : {0.0f, 0.8f}) {
    const auto output = (*loop)->Generate({1, 2, 3}, {.temperature = temperature, .seed = 3}, 50);
    ASSERT_TRUE(output.ok()) << output.status();
    EXPECT_EQ(output->tokens.size(), 50u);
    // Four right guesses and the bonus token in every round but the first, which ends the prompt.
    EXPECT_EQ(output->rounds, 11u);
    EXPECT_EQ(output->drafted_rounds, 10u);
  }
}

TEST(RoundsBenchTest, OneThatDoesNotKnowTheNoiseIsRightLessOften) {
  const auto tokenizer = Tokenizer::Load(kSource + "/deploy/demo-models/tandem-target-15m");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  double rounds[2] = {};
  for (const bool seeded : {false, true}) {
    FakeEngine target{{}};
    FakeEngine drafter{{}};
    auto loop = DraftLoop::Make(
        {.limits = {.max_depth = 4, .nodes_per_level = 4, .max_nodes = 8, .lookahead = 0}, .seeded = seeded},
        &target, &drafter, *tokenizer);
    ASSERT_TRUE(loop.ok()) << loop.status();
    const auto output = (*loop)->Generate({1, 2, 3}, {.temperature = 1.0f, .seed = 3}, 100);
    ASSERT_TRUE(output.ok()) << output.status();
    rounds[seeded ? 1 : 0] = output->rounds;
  }
  EXPECT_LT(rounds[1], rounds[0]);
}

TEST(RoundsBenchTest, RefusesDifferentVocabularies) {
  FakeEngine target{{}};
  FakeEngine drafter{{.vocab_size = 65}};
  EXPECT_EQ(DraftLoop::Make({}, &target, &drafter, nullptr).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(RoundsBenchTest, MeasuresTheDemoModels) {
  RoundsOptions options{.target = kSource + "/deploy/demo-models/tandem-target-15m",
                        .drafters = {kSource + "/deploy/demo-models/tandem-draft-general-1m",
                                     kSource + "/deploy/demo-models/tandem-eagle3-15m",
                                     kSource + "/deploy/demo-models/tandem-medusa-15m"},
                        .prompts = kSource + "/tests/golden/tandem-target-15m.json",
                        .nodes = {1, 8},
                        .num_seeds = 1,
                        .max_tokens = 12};
  const auto rows = MeasureRounds(options);
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->size(), 15u);
  for (const RoundsRow& row : *rows) {
    ASSERT_EQ(row.tokens_per_round.size(), 2u);
    EXPECT_GT(row.tokens_per_round[0], 1.0);
    EXPECT_GT(row.tokens_per_round[1], row.tokens_per_round[0]);
  }
  EXPECT_THAT(RoundsTable(options, *rows), HasSubstr("| tandem-draft-general-1m | 0.8 | unseeded |"));
}

TEST(RoundsBenchTest, SaysWhatIsWrongWithPrompts) {
  const std::string file = absl::StrCat(::testing::TempDir(), "/prompts.json");
  const auto load = [&](const char* text) {
    std::ofstream(file) << text;
    return LoadPromptIds(file);
  };
  EXPECT_THAT(*load(R"({"cases": [{"prompt_ids": [1, 2]}, {"prompt_ids": [3]}]})"),
              ElementsAre(ElementsAre(1, 2), ElementsAre(3)));
  for (const char* text :
       {"", "[]", "{}", R"({"cases": []})", R"({"cases": [1]})", R"({"cases": [{"prompt_ids": []}]})",
        R"({"cases": [{"prompt_ids": [-1]}]})", R"({"cases": [{"prompt_ids": ["a"]}]})",
        R"({"cases": [{"prompt_ids": [2147483648]}]})"}) {
    EXPECT_EQ(load(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_THAT(LoadPromptIds("/no/such/file").status().ToString(), HasSubstr("/no/such/file"));
}

}  // namespace
}  // namespace tandem::bench
