#include "common/speculation/rules/block_verification.h"

#include <gtest/gtest.h>

#include <cmath>

#include "common/speculation/testing/verification_test_world.h"

namespace tandem {
namespace {

using testing_world::Draft;
using testing_world::Generator;
using testing_world::kNumSamples;
using testing_world::kNumTokens;
using testing_world::Random;
using testing_world::TargetProbs;
using testing_world::World;

// Accepted drafts of a chain after `text`, on average: of every chain that can be drawn, its probability
// times how many of its drafts are accepted. Token by token the probability of the first i is the product of
// min(1, p/q); with blocks it is w_i.
double ExpectedAccepted(const World& world, const TokenIds& text, size_t length, bool block,
                        double drawn = 1.0, double joint = 1.0) {
  if (length == 0) return 0.0;
  const DraftDistribution draft = Draft(world.seed + 1, world.num_missing, text);
  const RemainingDraft left(&draft);
  const std::vector<double> target = TargetProbs(world, text);
  double sum = 0.0;
  for (size_t i = 0; i < left.size(); ++i) {
    const double ratio = target[static_cast<size_t>(left.token(i))] / left.probability(i);
    const double after = block ? std::min(1.0, joint * ratio) : joint * std::min(1.0, ratio);
    const double here = drawn * left.probability(i);
    TokenIds longer = text;
    longer.push_back(left.token(i));
    sum += here * after + ExpectedAccepted(world, longer, length - 1, block, here, after);
  }
  return sum;
}

TEST(BlockVerificationTest, AcceptsAsManyAsPromisedAndNoFewerThanTokenByToken) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    const World world{.seed = seed, .num_missing = seed % 2 == 0 ? 0 : 1};
    const double by_token = ExpectedAccepted(world, {}, 3, /*block=*/false);
    const double by_block = ExpectedAccepted(world, {}, 3, /*block=*/true);
    EXPECT_GE(by_block, by_token - 1e-12);
    for (const bool block : {false, true}) {
      // One round each.
      Generator generator(world, block ? VerificationRuleKind::kBlock : VerificationRuleKind::kRejection,
                          {1, 1, 1});
      Random random(seed + 50);
      for (int i = 0; i < kNumSamples / 10; ++i) generator.Generate(static_cast<uint64_t>(i), 1, &random);
      // At most three are accepted: their standard deviation is at most 1.5.
      EXPECT_NEAR(generator.MeanAccepted(), block ? by_block : by_token,
                  5.0 * 1.5 / std::sqrt(kNumSamples / 10.0))
          << "seed " << seed << ", block " << block;
    }
  }
}

TEST(BlockVerificationTest, BlocksGainSomewhere) {
  double gain = 0.0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const World world{.seed = seed, .num_missing = 0};
    const double by_token = ExpectedAccepted(world, {}, 4, /*block=*/false);
    const double by_block = ExpectedAccepted(world, {}, 4, /*block=*/true);
    EXPECT_GE(by_block, by_token - 1e-12) << "seed " << seed;
    gain += (by_block - by_token) / by_token / 20.0;
  }
  EXPECT_GT(gain, 0.01);
}

// The acceptance probabilities of one chain by hand: q is uniform over two tokens, p after nothing is
// {0.25, 0.75}, after the first draft {0.9, 0.1}.
TEST(BlockVerificationTest, AChainByHand) {
  const DraftDistribution draft{.tokens = {0, 1}, .probabilities = {0.5f, 0.5f}};
  const ChainedDraft chain[] = {{.token = 0, .distribution = &draft}, {.token = 0, .distribution = &draft}};
  const auto target = [](size_t i) {
    return i == 0 ? std::vector<double>{0.25, 0.75} : std::vector<double>{0.9, 0.1};
  };
  const auto verify = [&](double first, double second) {
    return VerifyBlock(chain, target, [=](size_t i) { return i == 1 ? first : second; });
  };
  // w_1 = 0.5; w_2 = 0.5 * 0.9 / 0.5 = 0.9. s after one draft is 0: 0.5 * 0.9 - 0.5 < 0, so h_1 = 0.
  EXPECT_EQ(verify(0.0, 0.899).num_accepted, 2u);
  EXPECT_FALSE(verify(0.0, 0.899).residual.has_value());
  const BlockVerdict none = verify(0.0, 0.901);
  EXPECT_EQ(none.num_accepted, 0u);
  ASSERT_TRUE(none.residual.has_value());
  EXPECT_DOUBLE_EQ(none.residual->Probability(1), 1.0);
  // Token by token the first draft would have to pass 0.5 and could not be made good.
}

TEST(BlockVerificationTest, AnAcceptedBeginningIsResampledFromWhatTheWholeLeaves) {
  // w_1 = min(1, 0.8 / 0.5) = 1; after it p is {0.25, 0.75}, so that s = 0.25 and h_1 = 1; w_2 = 0.5.
  const DraftDistribution draft{.tokens = {0, 1}, .probabilities = {0.5f, 0.5f}};
  const ChainedDraft chain[] = {{.token = 0, .distribution = &draft}, {.token = 0, .distribution = &draft}};
  const BlockVerdict verdict = VerifyBlock(
      chain,
      [](size_t i) {
        return i == 0 ? std::vector<double>{0.8, 0.2} : std::vector<double>{0.25, 0.75};
      },
      [](size_t i) { return i == 1 ? 0.999 : 0.501; });
  EXPECT_EQ(verdict.num_accepted, 1u);
  ASSERT_TRUE(verdict.residual.has_value());
  EXPECT_DOUBLE_EQ(verdict.residual->Probability(1), 1.0);
}

// A token that the target never chooses ends the block, and nothing behind it is looked at.
TEST(BlockVerificationTest, AnImpossibleDraftEndsTheBlock) {
  const DraftDistribution draft{.tokens = {0, 1}, .probabilities = {0.5f, 0.5f}};
  const ChainedDraft chain[] = {{.token = 0, .distribution = &draft}, {.token = 1, .distribution = &draft}};
  std::vector<size_t> asked;
  const BlockVerdict verdict = VerifyBlock(
      chain,
      [&](size_t i) {
        asked.push_back(i);
        return std::vector<double>{0.0, 1.0};
      },
      [](size_t) { return 0.0; });
  EXPECT_EQ(verdict.num_accepted, 0u);
  EXPECT_EQ(asked, std::vector<size_t>{0});
}

}  // namespace
}  // namespace tandem
