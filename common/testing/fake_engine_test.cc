#include "common/testing/fake_engine.h"

#include <numeric>

#include "common/speculation/target_sampler.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

constexpr size_t kVocab = 64;

// Computes `tokens` at the slots named, one row a step; the logits of the last.
std::vector<float> Compute(FakeEngine& engine, const TokenIds& tokens, const std::vector<SlotId>& slots) {
  std::vector<float> logits(kVocab);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const StepRow row{.token = tokens[i],
                      .context = {.tail = absl::MakeConstSpan(slots).first(i + 1)},
                      .logits = i + 1 == tokens.size() ? logits.data() : nullptr};
    EXPECT_TRUE(engine.Step({row}).ok());
  }
  return logits;
}

TEST(FakeEngineTest, LogitsDependOnTheContextAndNotOnWhereItLies) {
  FakeEngine engine({});
  const TokenIds tokens = {5, 9, 5, 2};
  EXPECT_EQ(Compute(engine, tokens, {0, 1, 2, 3}), engine.ReferenceLogits(tokens));
  EXPECT_EQ(Compute(engine, tokens, {77, 1, 300, 16}), engine.ReferenceLogits(tokens));
  EXPECT_NE(engine.ReferenceLogits({5, 9, 5, 2}), engine.ReferenceLogits({9, 5, 5, 2}));
}

TEST(FakeEngineTest, OneStepMayComputeAPromptAndATree) {
  FakeEngine engine({});
  const std::vector<BlockId> blocks = {3, 1};
  TokenIds tokens(18);
  std::iota(tokens.begin(), tokens.end(), 0);
  std::vector<float> logits(kVocab);
  std::vector<StepRow> rows;
  const std::vector<SlotId> tail = {100, 90};
  // The deepest row first: order within a step must not matter.
  rows.push_back({.token = 41,
                  .context = {.blocks = blocks, .num_committed = 18, .tail = tail},
                  .logits = logits.data()});
  rows.push_back(
      {.token = 40,
       .context = {.blocks = blocks, .num_committed = 18, .tail = absl::MakeConstSpan(tail).first(1)}});
  for (uint32_t i = 0; i < 18; ++i) {
    rows.push_back({.token = tokens[i], .context = {.blocks = blocks, .num_committed = i + 1}});
  }
  ASSERT_TRUE(engine.Step(rows).ok());
  tokens.push_back(40);
  tokens.push_back(41);
  EXPECT_EQ(logits, engine.ReferenceLogits(tokens));
}

TEST(FakeEngineTest, KeysComputedUnderAnotherPrefixChangeTheLogits) {
  FakeEngine engine({});
  Compute(engine, {1, 2, 3}, {0, 1, 2});
  Compute(engine, {4}, {0});  // Slots 1 and 2 still hold what followed token 1.
  std::vector<float> logits(kVocab);
  const std::vector<SlotId> tail = {0, 1, 2, 5};
  ASSERT_TRUE(engine.Step({StepRow{.token = 6, .context = {.tail = tail}, .logits = logits.data()}}).ok());
  EXPECT_NE(logits, engine.ReferenceLogits({4, 2, 3, 6}));
}

TEST(FakeEngineTest, CopiesMoveKeysAndValues) {
  FakeEngine engine({});
  Compute(engine, {1, 2, 3}, {0, 1, 2});
  ASSERT_TRUE(engine.CopyKv({{.from = 1, .to = 40}, {.from = 2, .to = 41}}).ok());
  std::vector<float> logits(kVocab);
  const std::vector<SlotId> tail = {0, 40, 41, 5};
  ASSERT_TRUE(engine.Step({StepRow{.token = 6, .context = {.tail = tail}, .logits = logits.data()}}).ok());
  EXPECT_EQ(logits, engine.ReferenceLogits({1, 2, 3, 6}));
  EXPECT_FALSE(engine.CopyKv({{.from = 0, .to = 256 * kBlockTokens}}).ok());
}

TEST(FakeEngineTest, RefusesWhatARealEngineWouldGetWrong) {
  FakeEngine engine({});
  const std::vector<SlotId> tail = {0, 1};
  const absl::Status unwritten = engine.Step({StepRow{.token = 1, .context = {.tail = tail}}});
  EXPECT_EQ(unwritten.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unwritten.message()), HasSubstr("never written"));
  const StepRow first{.token = 1, .context = {.tail = absl::MakeConstSpan(tail).first(1)}};
  EXPECT_FALSE(engine.Step({first, first}).ok());
  EXPECT_FALSE(engine.Step({StepRow{.token = 64, .context = first.context}}).ok());
  EXPECT_FALSE(engine.Step({StepRow{.token = -1, .context = first.context}}).ok());
  EXPECT_FALSE(engine.Step({StepRow{.token = 1}}).ok());
  EXPECT_FALSE(engine.Step({StepRow{.token = 1, .context = {.num_committed = 1}}}).ok());
  engine.FailNextStep(absl::UnavailableError("gone"));
  EXPECT_EQ(engine.Step({first}).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(engine.Step({first}).ok());
  EXPECT_EQ(engine.num_steps(), 1u);
}

TEST(FakeEngineTest, ChoosesAsTheTargetSamplerDoes) {
  FakeEngine engine({.chooses = true});
  ASSERT_TRUE(engine.chooses());
  const SamplingParameters sampling = {.temperature = 0.9f, .repetition_penalty = 3.0f, .seed = 5};
  const TokenIds tokens = {7, 9, 7, 20};
  const std::vector<SlotId> tail = {0, 1, 2, 3};
  // Of the prompt 7 and 9, of the output 7; 20 is a node's.
  TargetSampler sampler(sampling, kVocab, {7, 9});
  sampler.Append(7);
  const std::vector<TokenCount> counts = sampler.Counts();
  const std::vector<TokenCount> own_counts = sampler.CountsAfter({20});
  TokenId chosen = -1;
  const SeededChoice choice = {
      .sampling = &sampling, .position = 4, .counts = counts, .own_counts = own_counts, .token = &chosen};
  for (uint32_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(engine
                    .Step({StepRow{.token = tokens[i],
                                   .context = {.tail = absl::MakeConstSpan(tail).first(i + 1)},
                                   .choice = i == 3 ? &choice : nullptr}})
                    .ok());
  }
  sampler.Append(20);
  std::vector<float> logits = engine.ReferenceLogits(tokens);
  EXPECT_EQ(chosen, sampler.Choose(absl::MakeSpan(logits), 4).token);
  EXPECT_EQ(engine.num_choices(), 1u);
  EXPECT_EQ(engine.num_logits(), 0u);
  const StepRow row{.token = 20, .context = {.tail = tail}, .choice = &choice};
  EXPECT_FALSE(FakeEngine({}).Step({row}).ok());
}

TEST(FakeEngineTest, AgreesAsOftenAsAsked) {
  const FakeEngine target({.seed = 1});
  for (double agreement : {0.0, 0.7, 1.0}) {
    const FakeEngine draft({.seed = 2, .agreement = agreement, .agree_with_seed = 1});
    int agreed = 0;
    constexpr int kContexts = 2000;
    for (int i = 0; i < kContexts; ++i) {
      const TokenIds context = {i % 64, i / 64};
      if (draft.ReferenceChoice(context) == target.ReferenceChoice(context)) ++agreed;
    }
    EXPECT_NEAR(agreed / double{kContexts}, agreement, agreement == 0.7 ? 0.04 : 0.0);
  }
}

}  // namespace
}  // namespace tandem
