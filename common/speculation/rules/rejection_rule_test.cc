#include "common/speculation/rules/rejection_rule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>

#include "common/speculation/gumbel.h"
#include "common/speculation/testing/verification_test_world.h"

namespace tandem {
namespace {

using testing_world::Fit;
using testing_world::FitOfThreeTokens;
using testing_world::Generator;
using testing_world::kNumSamples;
using testing_world::kNumTokens;
using testing_world::Random;
using testing_world::TargetProbs;
using testing_world::World;

constexpr double kAlmostOne = 1.0 - 1e-15;

// With how much probability `children` come to accept the last of them, given that none before was: the rule
// is asked where it changes its mind.
double AcceptanceOfLast(const std::vector<DrawnChild>& children, const DraftDistribution& draft,
                        const std::vector<double>& target_probs) {
  const size_t last = children.size() - 1;
  const auto accepts = [&](double uniform) {
    Residual target(target_probs);
    const auto accepted = TestChildren(
        children, RemainingDraft(&draft), [&](size_t i) { return i == last ? uniform : kAlmostOne; }, target);
    // One before it is accepted for certain: the last one never comes into play.
    return accepted.has_value() && *accepted == last;
  };
  if (accepts(kAlmostOne)) return 1.0;
  double low = 0.0;
  double high = 1.0;
  if (!accepts(low)) return 0.0;
  for (int i = 0; i < 60; ++i) {
    const double middle = 0.5 * (low + high);
    (accepts(middle) ? low : high) = middle;
  }
  return low;
}

// Adds what comes of `children` and, up to `num_children`, of all that can be drawn after them.
void AddOutcomes(const std::vector<DrawnChild>& children, double path_prob, size_t num_children,
                 const DraftDistribution& draft, const std::vector<double>& target_probs,
                 std::vector<double>* outcome) {
  RemainingDraft left(&draft);
  for (const DrawnChild& child : children) left.Remove(child.token);
  if (children.size() == num_children || left.empty()) {
    Residual target(target_probs);
    const auto none = TestChildren(
        children, RemainingDraft(&draft), [](size_t) { return kAlmostOne; }, target);
    if (none.has_value()) return;  // Cannot come to this, but for rounding.
    for (TokenId v = 0; v < kNumTokens; ++v) {
      (*outcome)[static_cast<size_t>(v)] += path_prob * target.Probability(v);
    }
    return;
  }
  for (size_t i = 0; i < left.size(); ++i) {
    if (left.probability(i) == 0.0) continue;
    std::vector<DrawnChild> more = children;
    more.push_back({.token = left.token(i), .node = static_cast<uint32_t>(children.size())});
    const double drawn = path_prob * left.probability(i);
    const double accepted = AcceptanceOfLast(more, draft, target_probs);
    (*outcome)[static_cast<size_t>(left.token(i))] += drawn * accepted;
    if (accepted < 1.0) {
      AddOutcomes(more, drawn * (1.0 - accepted), num_children, draft, target_probs, outcome);
    }
  }
}

// Everything that can be drawn, accepted and resampled, added up.
TEST(RejectionRuleTest, EnumeratedOutcomesAreTheTargets) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    World world{.seed = seed, .sampling = {.temperature = 0.7f, .top_k = seed % 3 == 0 ? 3u : 0u}};
    const std::vector<double> target_probs = TargetProbs(world, {});
    for (int num_missing = 0; num_missing < kNumTokens; ++num_missing) {
      const DraftDistribution draft = testing_world::Draft(seed + 1000, num_missing, {});
      for (size_t num_children = 1; num_children <= 4; ++num_children) {
        std::vector<double> outcome(kNumTokens);
        AddOutcomes({}, 1.0, num_children, draft, target_probs, &outcome);
        for (size_t v = 0; v < kNumTokens; ++v) {
          EXPECT_NEAR(outcome[v], target_probs[v], 1e-9)
              << "seed " << seed << ", " << num_missing << " missing, " << num_children << " children";
        }
      }
    }
  }
}

TEST(RejectionRuleTest, AMoreCertainChildIsAlwaysAccepted) {
  const DraftDistribution draft{.tokens = {1, 2}, .probabilities = {0.25f, 0.75f}};
  Residual target({0.0, 0.5, 0.5});
  const DrawnChild children[] = {{.token = 1, .node = 0}};
  EXPECT_EQ(TestChildren(
                children, RemainingDraft(&draft), [](size_t) { return kAlmostOne; }, target),
            0u);
}

// p - q by hand: {0.5, 0.1, 0.4} - {0.25, 0.75, 0} leaves {0.25, 0, 0.4}; then q without token 1 is all on 0.
TEST(RejectionRuleTest, ResidualsByHand) {
  const DraftDistribution draft{.tokens = {0, 1}, .probabilities = {0.25f, 0.75f}};
  Residual target({0.5, 0.1, 0.4});
  const DrawnChild children[] = {{.token = 1, .node = 0}, {.token = 0, .node = 1}};
  std::vector<size_t> asked;
  EXPECT_FALSE(TestChildren(
                   children, RemainingDraft(&draft),
                   [&](size_t i) {
                     asked.push_back(i);
                     return i == 0 ? 0.2 : 0.5;
                   },
                   target)
                   .has_value());
  EXPECT_EQ(asked, (std::vector<size_t>{0, 1}));
  EXPECT_NEAR(target.Probability(0), 0.0, 1e-12);
  EXPECT_NEAR(target.Probability(1), 0.0, 1e-12);
  EXPECT_NEAR(target.Probability(2), 1.0, 1e-12);
  EXPECT_EQ(target.Draw(0.0), 2);
  EXPECT_EQ(target.Draw(kAlmostOne), 2);
}

// A draft distribution that is the target's leaves nothing to resample from; no rounding may make of that a
// token that neither has.
TEST(RejectionRuleTest, AResidualOfNothingStaysAsItWas) {
  const DraftDistribution draft{.tokens = {0, 2}, .probabilities = {0.5f, 0.5f}};
  Residual target({1.0, 0.0, 1.0});
  target.Subtract(RemainingDraft(&draft));
  EXPECT_DOUBLE_EQ(target.Probability(0), 0.5);
  EXPECT_DOUBLE_EQ(target.Probability(1), 0.0);
}

// Temperature 0: a child is accepted if and only if it is the target's best token.
TEST(RejectionRuleTest, TemperatureZeroIsGreedy) {
  World world{.sampling = {.temperature = 0.0f}};
  Random random(5);
  Generator generator(world, VerificationRuleKind::kRejection, {2, 2});
  Generator block(world, VerificationRuleKind::kBlock, {1, 1, 1});
  TokenIds expected;
  for (int i = 0; i < 6; ++i) {
    const std::vector<float> logits = testing_world::Logits(world.seed, expected);
    expected.push_back(static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
  }
  for (uint64_t seed = 0; seed < 200; ++seed) {
    EXPECT_EQ(generator.Generate(seed, 6, &random), expected);
    EXPECT_EQ(block.Generate(seed, 6, &random), expected);
  }
  EXPECT_GT(generator.MeanAccepted(), 0.3);
  EXPECT_LT(generator.MeanAccepted(), 1.9);
}

struct Case {
  const char* name;
  World world;
  VerificationRuleKind rule;
  std::vector<size_t> children;
  double skip = 0.0;
};

class RuleStatisticsTest : public ::testing::TestWithParam<Case> {};

// The first three tokens over kNumSamples requests, which take several rounds.
TEST_P(RuleStatisticsTest, OutputsHaveTheTargetsDistribution) {
  const Case& test = GetParam();
  Generator generator(test.world, test.rule, test.children, test.skip);
  const Fit fit = FitOfThreeTokens(test.world, &generator);
  EXPECT_TRUE(fit.IsGood()) << "chi-square " << fit.chi_square << " with " << fit.degrees << " degrees";
  EXPECT_LT(fit.total_variation, 6.0 / std::sqrt(static_cast<double>(kNumSamples)));
  RecordProperty("chi_square", std::to_string(fit.chi_square));
  RecordProperty("total_variation", std::to_string(fit.total_variation));
  // Where nothing is ever accepted, nothing is shown.
  EXPECT_GT(generator.MeanAccepted(), 0.3);
}

constexpr auto kRejection = VerificationRuleKind::kRejection;
constexpr auto kBlock = VerificationRuleKind::kBlock;
const SamplingParameters kTopK = {.temperature = 0.8f, .top_k = 3};
const SamplingParameters kPenalties = {
    .temperature = 1.0f, .presence_penalty = 0.5f, .logit_bias = {{2, 0.3f}}};

INSTANTIATE_TEST_SUITE_P(
    All, RuleStatisticsTest,
    ::testing::Values(Case{"Seeded", {.seed = 3}, VerificationRuleKind::kSeeded, {2, 2}},
                      Case{"Chain", {.seed = 3, .num_missing = 0}, kRejection, {1, 1}},
                      Case{"ChainOfSparseDrafts", {.seed = 4, .num_missing = 2}, kRejection, {1, 1, 1}},
                      Case{"ChainOfCutTarget", {.seed = 5, .sampling = kTopK}, kRejection, {1, 1}},
                      Case{"Tree", {.seed = 6, .num_missing = 0}, kRejection, {2, 2}},
                      Case{"WideTreeOfSparseDrafts", {.seed = 7, .num_missing = 1}, kRejection, {3, 2}},
                      Case{"TreeOfCutTarget", {.seed = 8, .sampling = kTopK}, kRejection, {3, 1}},
                      // What is verified is a matter of chance, but not of the token drawn.
                      Case{"TreeWithNodesLeftOut", {.seed = 9, .num_missing = 0}, kRejection, {3, 2}, 0.25},
                      Case{"Block", {.seed = 10, .num_missing = 0}, kBlock, {1, 1, 1}},
                      Case{"BlockOfSparseDrafts", {.seed = 11, .num_missing = 2}, kBlock, {1, 1}},
                      Case{"BlockOfCutTarget", {.seed = 12, .sampling = kTopK}, kBlock, {1, 1, 1}},
                      Case{"BlockWithNodesLeftOut", {.seed = 13, .num_missing = 0}, kBlock, {1, 1, 1}, 0.2}),
    [](const auto& suite) { return std::string(suite.param.name); });

// Why q is to be trusted: a drafter that draws from one distribution and names another bends the output.
TEST(RejectionRuleTest, ADrafterThatLiesBiasesTheOutput) {
  for (const auto rule : {kRejection, kBlock}) {
    const World world{.seed = 3, .num_missing = 0, .lies = true};
    Generator generator(world, rule, {1, 1});
    const Fit fit = FitOfThreeTokens(world, &generator, kNumSamples / 10);
    EXPECT_FALSE(fit.IsGood());
    EXPECT_GT(fit.total_variation, 0.02);
    // The seeded rule does not care.
    Generator seeded(world, VerificationRuleKind::kSeeded, {1, 1});
    EXPECT_TRUE(FitOfThreeTokens(world, &seeded, kNumSamples / 10).IsGood());
  }
}

// Penalties look at the tokens above, accepted drafts included.
TEST(RejectionRuleTest, PenaltiesFollowTheWalk) {
  const World world{.seed = 21, .sampling = kPenalties, .num_missing = 0};
  const auto after = [&](TokenId first) {
    SamplingParameters sampling = kPenalties;
    TargetSampler sampler(sampling, kNumTokens, {});
    sampler.Append(first);
    std::vector<float> logits = testing_world::Logits(world.seed, {first});
    std::vector<double> weights = sampler.Weights(absl::MakeSpan(logits), 0);
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (double& weight : weights) weight /= total;
    return weights;
  };
  for (const auto rule : {kRejection, kBlock}) {
    Generator generator(world, rule, rule == kBlock ? std::vector<size_t>{1, 1} : std::vector<size_t>{2, 2});
    Random random(77);
    std::vector<std::vector<uint64_t>> counts(kNumTokens, std::vector<uint64_t>(kNumTokens));
    for (int i = 0; i < kNumSamples / 5; ++i) {
      const TokenIds text = generator.Generate(static_cast<uint64_t>(i), 2, &random);
      ++counts[static_cast<size_t>(text[0])][static_cast<size_t>(text[1])];
    }
    for (TokenId first = 0; first < kNumTokens; ++first) {
      const Fit fit = testing_world::Compare(counts[static_cast<size_t>(first)], after(first));
      EXPECT_TRUE(fit.IsGood()) << "after " << first << ": " << fit.chi_square;
    }
  }
}

TEST(RejectionRuleTest, TheSameDraftsAndSeedGiveTheSameTokens) {
  const World world{.seed = 3};
  for (const auto rule : {kRejection, kBlock}) {
    std::vector<TokenIds> texts[2];
    for (auto& text : texts) {
      Generator generator(world, rule, {1, 1, 1});
      Random random(11);
      for (uint64_t seed = 0; seed < 300; ++seed) text.push_back(generator.Generate(seed, 20, &random));
    }
    EXPECT_EQ(texts[0], texts[1]);
  }
}

TEST(VerificationNoiseTest, StreamsAreUniformAndApart) {
  const VerificationNoise noise(42);
  std::vector<uint64_t> counts(20);
  double correlation = 0.0;
  constexpr uint32_t kCount = 100'000;
  for (uint32_t position = 0; position < kCount; ++position) {
    const double child = noise.OfChild(position, 0);
    ++counts[static_cast<size_t>(child * 20.0)];
    EXPECT_NE(child, noise.OfResidual(position));
    EXPECT_NE(child, noise.OfBlock(position, 0));
    // Its words are no noise of any token: those have counters that end in zeros.
    correlation += (child - 0.5) * (noise.OfResidual(position) - 0.5);
  }
  EXPECT_TRUE(testing_world::Compare(counts, std::vector<double>(20, 0.05)).IsGood());
  EXPECT_LT(std::abs(correlation / kCount * 12.0), 6.0 / std::sqrt(kCount));
}

TEST(VerificationRuleTest, Names) {
  for (const std::string& name : VerificationRuleNames()) {
    const auto kind = ParseVerificationRule(name);
    ASSERT_TRUE(kind.ok());
    EXPECT_EQ(VerificationRuleName(*kind), name);
  }
  EXPECT_EQ(ParseVerificationRule("greedy").status().message(),
            "verification rule \"greedy\", expected one of seeded, rejection, block");
}

}  // namespace
}  // namespace tandem
