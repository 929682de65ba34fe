// Which experts a row takes, with which weights.

#include "common/engine/cpu/expert_chooser.h"

#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "common/engine/cpu/testing/kernels_test_data.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;

std::vector<ExpertChoice> ChoicesFor(const ExpertsDescription& experts, const std::vector<float>& logits,
                                     const std::vector<float>& bias = {}) {
  ExpertChooser chooser(experts, PortableKernels());
  std::vector<ExpertChoice> choices(static_cast<size_t>(experts.num_chosen));
  chooser.Choose(logits.data(), bias, absl::MakeSpan(choices));
  return choices;
}

std::vector<uint32_t> ExpertsOf(const std::vector<ExpertChoice>& choices) {
  std::vector<uint32_t> experts;
  for (const ExpertChoice& choice : choices) experts.push_back(choice.expert);
  return experts;
}

float Sigmoid(float x) {
  return 1.0f / (1.0f + std::exp(-x));
}

TEST(ExpertChooser, GroupsAreChosenByTheirGreatest) {
  ExpertsDescription experts = {.num_experts = 6,
                                .num_chosen = 2,
                                .scores_add_up_to_one = false,
                                .num_groups = 3,
                                .num_chosen_groups = 1,
                                .scale = 2.5f};
  const std::vector<float> logits = {1.0f, 0.9f, 1.5f, -1.0f, 1.2f, 1.4f};
  const std::vector<ExpertChoice> choices = ChoicesFor(experts, logits);
  EXPECT_THAT(ExpertsOf(choices), ElementsAre(2, 3));
  // The softmax is over all experts.
  double total = 0;
  for (const float logit : logits) total += std::exp(logit);
  EXPECT_NEAR(choices[0].weight, 2.5 * std::exp(1.5) / total, 1e-6);
  EXPECT_NEAR(choices[1].weight, 2.5 * std::exp(-1.0) / total, 1e-6);
  experts.num_chosen_groups = 2;
  EXPECT_THAT(ExpertsOf(ChoicesFor(experts, logits)), ElementsAre(2, 5));
  // By sums of two, other ones are the best.
  experts.score = ExpertScore::kSigmoid;
  experts.group_places = 2;
  EXPECT_THAT(ExpertsOf(ChoicesFor(experts, logits)), ElementsAre(4, 5));
  experts.num_chosen_groups = 1;
  EXPECT_THAT(ExpertsOf(ChoicesFor(experts, {3, 2, 9, -9, 1, 1})), ElementsAre(0, 1));
  experts.num_chosen_groups = 3;
  EXPECT_THAT(ExpertsOf(ChoicesFor(experts, logits)), ElementsAre(2, 5));
}

TEST(ExpertChooser, OfEqualGroupsAndExpertsTheFirstAreTaken) {
  const ExpertsDescription experts = {
      .num_experts = 8, .num_chosen = 3, .num_groups = 4, .num_chosen_groups = 2, .group_places = 2};
  EXPECT_THAT(ExpertsOf(ChoicesFor(experts, std::vector<float>(8, 0.5f))), ElementsAre(0, 1, 2));
}

TEST(ExpertChooser, SelectionBiasesDecideAndDoNotWeigh) {
  ExpertsDescription experts = {.num_experts = 4,
                                .num_chosen = 2,
                                .score = ExpertScore::kSigmoid,
                                .scores_add_up_to_one = false,
                                .selection_bias = true,
                                .scale = 3.0f};
  const std::vector<float> logits = {2.0f, 1.0f, -1.0f, 0.5f}, bias = {-1.0f, 0.0f, 0.7f, 0.1f};
  std::vector<ExpertChoice> choices = ChoicesFor(experts, logits, bias);
  EXPECT_THAT(ExpertsOf(choices), ElementsAre(1, 2));
  EXPECT_NEAR(choices[0].weight, 3 * Sigmoid(1.0f), 1e-6);
  EXPECT_NEAR(choices[1].weight, 3 * Sigmoid(-1.0f), 1e-6);
  experts.scores_add_up_to_one = true;
  choices = ChoicesFor(experts, logits, bias);
  EXPECT_NEAR(choices[0].weight, 3 * Sigmoid(1.0f) / (Sigmoid(1.0f) + Sigmoid(-1.0f)), 1e-6);
  EXPECT_NEAR(choices[0].weight + choices[1].weight, 3.0f, 1e-5);
  experts.selection_bias = false;
  EXPECT_THAT(ExpertsOf(ChoicesFor(experts, logits)), ElementsAre(0, 1));
  // Scores of nothing are nothing, not divided by it.
  choices = ChoicesFor(experts, std::vector<float>(4, -1000.0f));
  EXPECT_LT(choices[0].weight, 1e-15f);
}

// Whatever a router of a spoilt file says, a row takes as many experts as it should, each once.
TEST(ExpertChooser, RoutersOfNoNumbersChooseDifferentExperts) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const ExpertScore score : {ExpertScore::kSoftmax, ExpertScore::kSigmoid}) {
    const ExpertsDescription experts = {.num_experts = 8,
                                        .num_chosen = 4,
                                        .score = score,
                                        .num_groups = 4,
                                        .num_chosen_groups = 2,
                                        .group_places = score == ExpertScore::kSigmoid ? 2 : 1};
    for (const std::vector<float>& logits :
         {std::vector<float>(8, nan), {nan, 1, nan, nan, 2, 3, 1, 1}, {1, 1, 1, 1, 1, 1, 1, nan}}) {
      const std::vector<uint32_t> chosen = ExpertsOf(ChoicesFor(experts, logits));
      EXPECT_EQ(std::set<uint32_t>(chosen.begin(), chosen.end()).size(), 4u);
      for (const uint32_t expert : chosen) EXPECT_LT(expert, 8u);
    }
  }
}

TEST(ExpertChooser, IsTheSameOnEveryInstructionSet) {
  const ExpertsDescription experts = {.num_experts = 64,
                                      .num_chosen = 6,
                                      .score = ExpertScore::kSigmoid,
                                      .num_groups = 8,
                                      .num_chosen_groups = 3,
                                      .group_places = 2,
                                      .scale = 2.5f};
  const std::vector<float> logits = Random(64, 1);
  const std::vector<ExpertChoice> expected = ChoicesFor(experts, logits);
  for (const KernelTable* const kernels : AllKernels()) {
    ExpertChooser chooser(experts, *kernels);
    std::vector<ExpertChoice> choices(6);
    chooser.Choose(logits.data(), {}, absl::MakeSpan(choices));
    for (size_t i = 0; i < choices.size(); ++i) {
      EXPECT_EQ(choices[i].expert, expected[i].expert) << kernels->name;
      EXPECT_EQ(choices[i].weight, expected[i].weight) << kernels->name;
    }
  }
}

}  // namespace
}  // namespace tandem
