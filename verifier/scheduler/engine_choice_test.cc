// Engines that choose: what rounds ask of them, and that nobody can tell the outputs apart.

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "common/base/node_index.h"
#include "verifier/session/round_choices.h"
#include "verifier/testing/scheduler_test_fixture.h"

namespace tandem {
namespace {

class EngineChoiceTest : public SchedulerTest {
 protected:
  static std::vector<SamplingParameters> ManySamplings() {
    std::vector<SamplingParameters> samplings = {
        {.temperature = 0.0f},
        {.temperature = 0.8f, .seed = 7},
        {.temperature = 0.8f, .top_k = 5, .top_p = 0.9f, .min_p = 0.02f, .seed = 8},
        {.temperature = 0.0f,
         .repetition_penalty = 1.4f,
         .presence_penalty = 0.5f,
         .frequency_penalty = 0.7f},
        {.temperature = 0.8f, .presence_penalty = 1.0f, .seed = 10},
        {.temperature = 0.8f, .repetition_penalty = 1.2f, .frequency_penalty = 1.0f, .seed = 9}};
    samplings.push_back({.temperature = 0.9f, .logit_bias = {{7, 3.0f}, {8, -100.0f}}, .seed = 11});
    return samplings;
  }
  static FakeEngine::Options Choosing() { return {.chooses = true}; }
  void Forget() {
    records_.clear();
    drafts_.clear();
    requests_.clear();
  }
};

TEST_F(EngineChoiceTest, ChangesNoOutputWithOrWithoutDrafts) {
  for (const SamplingParameters& sampling : ManySamplings()) {
    const Ask ask{.sampling = sampling, .drafted = true};
    for (const uint32_t num_drafts : {0u, 4u}) {
      for (uint32_t num_right = 0; num_right <= num_drafts; num_right += 2) {
        Make(FixedWindow(4), Choosing());
        Forget();
        if (num_drafts > 0) scheduler_->OnLinkUp(kLink);
        ASSERT_TRUE(Submit(1, ask).ok());
        RunToTheEnd([&] {
          AnswerOpens();
          Draft(ask, num_right, num_drafts - num_right);
        });
        ExpectReference(1, ask);
        const SessionSummary& summary = records_[1].summary;
        EXPECT_EQ(summary.draft_tokens > 0, num_drafts > 0);
        EXPECT_EQ(summary.accepted_tokens > 0, num_right > 0);
        EXPECT_EQ(model_->num_logits(), 0u);
        EXPECT_EQ(model_->num_choices(), summary.rounds + summary.draft_tokens);
      }
    }
  }
}

TEST_F(EngineChoiceTest, ChangesNoOutputBelowTreesOfALocalDrafter) {
  for (const SamplingParameters& sampling : ManySamplings()) {
    Make({.local_drafter = ParseSourceSpec("suffix:min=1").value()}, Choosing());
    Forget();
    const Ask ask{.sampling = sampling, .rules = {.max_tokens = 40}};
    ASSERT_TRUE(Submit(1, ask).ok());
    RunToTheEnd();
    ExpectReference(1, ask);
  }
}

TEST_F(EngineChoiceTest, RequestsForLogProbabilitiesHaveLogitsBesideOthersChoices) {
  Make(FixedWindow(3), Choosing());
  scheduler_->OnLinkUp(kLink);
  const std::vector<SamplingParameters> samplings = ManySamplings();
  std::map<SessionId, Ask> asks;
  for (SessionId id = 1; id <= samplings.size(); ++id) {
    asks[id] = {.sampling = samplings[id - 1],
                .drafted = true,
                .num_logprobs = id % 3 == 0 ? static_cast<int>(id) - 3 : -1};
    ASSERT_TRUE(Submit(id, asks[id]).ok());
  }
  RunToTheEnd([&] {
    AnswerOpens();
    for (const auto& [id, ask] : asks) DraftFor(id, ask, 2, 1);
  });
  uint32_t num_logits = 0;
  uint32_t num_choices = 0;
  for (const auto& [id, ask] : asks) {
    ExpectReference(id, ask);
    const SessionSummary& summary = records_[id].summary;
    (ask.num_logprobs < 0 ? num_choices : num_logits) += summary.rounds + summary.draft_tokens;
  }
  EXPECT_EQ(model_->num_logits(), num_logits);
  EXPECT_EQ(model_->num_choices(), num_choices);
}

// A rule that samples drafts needs the target's distribution; at temperature 0 it does not.
TEST_F(EngineChoiceTest, RulesThatSampleDraftsHaveLogits) {
  Scheduler::Options options = FixedWindow(3);
  options.verification_rule = VerificationRuleKind::kRejection;
  Make(options, Choosing());
  const Ask sampled{.sampling = {.temperature = 0.8f, .seed = 3}};
  ASSERT_TRUE(Submit(1, sampled).ok());
  RunToTheEnd();
  EXPECT_EQ(model_->num_choices(), 0u);
  EXPECT_EQ(model_->num_logits(), 20u);
  const Ask greedy;
  ASSERT_TRUE(Submit(2, greedy).ok());
  RunToTheEnd();
  ExpectReference(2, greedy);
  EXPECT_EQ(model_->num_choices(), 20u);
  EXPECT_EQ(model_->num_logits(), 20u);
}

// Every row's counts are those of a sampler that has seen the path to it.
TEST(RoundChoicesTest, CountThePathToEachNode) {
  std::mt19937_64 random(5);
  const auto below = [&](uint64_t limit) { return static_cast<uint32_t>(random() % limit); };
  RoundChoices choices;
  for (int trial = 0; trial < 200; ++trial) {
    SamplingParameters sampling;
    if (below(2) == 0) sampling.repetition_penalty = 1.5f;
    if (below(2) == 0) sampling.presence_penalty = 0.5f;
    TargetSampler sampler(sampling, kVocabSize, {1, 2, 2});
    for (uint32_t i = below(10); i > 0; --i) sampler.Append(static_cast<TokenId>(below(6)));
    std::vector<RoundNode> nodes;
    std::vector<TargetSampler> samplers = {sampler};
    for (uint32_t i = below(20); i > 0; --i) {
      const uint32_t above = below(nodes.size() + 1);
      nodes.push_back({.parent = above == 0 ? kRootNode : above - 1,
                       .token = static_cast<TokenId>(below(6)),
                       .depth = above == 0 ? 1 : nodes[above - 1].depth + 1});
      samplers.push_back(samplers[above]);
      samplers.back().Append(nodes.back().token);
    }
    std::vector<StepRow> rows(1 + nodes.size());
    choices.Plan({.sampling = &sampling, .sampler = &sampler, .position = 50, .nodes = nodes},
                 absl::MakeSpan(rows));
    ASSERT_EQ(choices.tokens().size(), rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      const SeededChoice& choice = *rows[i].choice;
      EXPECT_EQ(choice.sampling, &sampling);
      EXPECT_EQ(choice.position, 50 + (i == 0 ? 0 : nodes[i - 1].depth));
      EXPECT_EQ(choice.token, choices.tokens().data() + i);
      std::map<TokenId, uint32_t> counts;
      for (const TokenCount& entry : choice.counts) counts[entry.token] = entry.count;
      for (const TokenCount& entry : choice.own_counts) counts[entry.token] = entry.count;
      std::map<TokenId, uint32_t> expected;
      for (const TokenCount& entry : samplers[i].Counts()) expected[entry.token] = entry.count;
      ASSERT_EQ(counts, expected) << "trial " << trial << ", row " << i;
    }
  }
}

}  // namespace
}  // namespace tandem
