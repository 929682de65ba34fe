#include "common/speculation/token_blocks.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "common/speculation/simd_clones.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

constexpr float kNoNumber = std::numeric_limits<float>::quiet_NaN();
constexpr float kUnbounded = std::numeric_limits<float>::infinity();
constexpr float kGreatest = std::numeric_limits<float>::max();

// With AVX-512, where the machine has it, and without.
class TokenBlocksTest : public testing::TestWithParam<bool> {
 protected:
  TokenBlocksTest() { AllowAvx512(GetParam()); }
  ~TokenBlocksTest() override { AllowAvx512(true); }

  // With some that are no numbers, or equal.
  std::vector<float> Logits(size_t size, float spread) {
    std::normal_distribution<float> normal(0.0f, spread);
    std::vector<float> logits(size);
    for (float& logit : logits) logit = random_() % 3 == 0 ? std::round(normal(random_)) : normal(random_);
    for (size_t i = 0; i < size / 20; ++i) {
      logits[random_() % size] = random_() % 2 == 0 ? kNoNumber : -kUnbounded;
    }
    return logits;
  }

  std::mt19937 random_{7};
};

TEST_P(TokenBlocksTest, PeaksAreTheGreatestNumbers) {
  for (const size_t size : {1u, 63u, 64u, 65u, 1000u}) {
    std::vector<float> logits = Logits(size, 3.0f);
    if (size > 200) std::fill_n(logits.begin() + 64, 64, kNoNumber);
    if (size > 200) logits[150] = kUnbounded;
    std::vector<float> peaks((size + kTokenBlock - 1) / kTokenBlock);
    FindBlockPeaks(logits, absl::MakeSpan(peaks));
    for (size_t block = 0; block < peaks.size(); ++block) {
      float expected = -kUnbounded;
      for (size_t i = block * kTokenBlock; i < std::min(size, (block + 1) * kTokenBlock); ++i) {
        if (logits[i] > expected) expected = logits[i];
      }
      EXPECT_EQ(peaks[block], std::min(expected, kGreatest)) << size << " " << block;
    }
  }
}

TEST_P(TokenBlocksTest, GapsEndAtTheCut) {
  for (int round = 0; round < 200; ++round) {
    const std::vector<float> logits = Logits(kTokenBlock, 2.0f);
    float block[kTokenBlock];
    std::copy(logits.begin(), logits.end(), block);
    const GapScale scale = {.best = 6.0f, .temperature = 0.5f + static_cast<float>(round % 7) / 7};
    const float cut = round % 10 == 0 ? kGreatest : GapOf(scale, logits[random_() % kTokenBlock]);
    if (std::isinf(cut)) continue;
    const int32_t last = static_cast<int32_t>(random_() % 67) - 1;
    float gaps[kTokenBlock];
    LoadGaps(scale, cut, last, block, gaps);
    for (int32_t i = 0; i < kTokenBlock; ++i) {
      const float gap = GapOf(scale, block[i]);
      const bool is_kept = gap < cut || (gap == cut && i <= last);
      EXPECT_EQ(gaps[i], is_kept ? gap : kUnbounded) << round << " " << i;
    }
  }
  EXPECT_EQ(GapOf({.best = 3.0f, .temperature = 0.5f}, kNoNumber), kUnbounded);
  EXPECT_EQ(GapOf({.best = 3.0f, .temperature = 0.5f}, -kUnbounded), kUnbounded);
  EXPECT_EQ(GapOf({.best = kGreatest, .temperature = 0.5f}, kUnbounded), 0.0f);
}

TEST_P(TokenBlocksTest, FindsGapsUpToABound) {
  for (int round = 0; round < 200; ++round) {
    float gaps[kTokenBlock];
    for (float& gap : gaps) gap = static_cast<float>(random_() % 9);
    for (int i = 0; i < 5; ++i) gaps[random_() % kTokenBlock] = random_() % 2 == 0 ? kUnbounded : kGreatest;
    for (const float bound : {-1.0f, 0.0f, 3.0f, 8.5f, kGreatest}) {
      const uint64_t found = FindUpTo(bound, gaps);
      for (int i = 0; i < kTokenBlock; ++i) EXPECT_EQ((found >> i & 1) != 0, gaps[i] <= bound) << bound;
    }
  }
}

TEST_P(TokenBlocksTest, NearTokensAreAllThatAreNearAndTheRestWeighsWhatIsSaid) {
  for (const size_t size : {10u, 64u, 700u, 20001u}) {
    for (const float temperature : {1e-38f, 0.3f, 1.0f, 3.0f}) {
      const std::vector<float> logits = Logits(size, 2.0f);
      std::vector<float> peaks((size + kTokenBlock - 1) / kTokenBlock);
      FindBlockPeaks(logits, absl::MakeSpan(peaks));
      const GapScale scale = {.best = *std::max_element(peaks.begin(), peaks.end()),
                              .temperature = temperature};
      for (const float bound : {0.0f, 1.0f, 5.3f, 28.0f}) {
        NearTokens near(size);
        CollectNearTokens(scale, logits, bound, near);
        uint64_t rest = 0;
        size_t place = 0;
        for (size_t v = 0; v < size; ++v) {
          const float gap = GapOf(scale, logits[v]);
          const bool is_near = place < near.count && near.tokens[place] == static_cast<TokenId>(v);
          if (is_near) {
            EXPECT_EQ(near.gaps[place++], gap);
          } else {
            rest += TokenWeight(gap);
          }
          if (gap < bound * (1 - kBoundError)) {
            EXPECT_TRUE(is_near) << v << " " << gap;
          }
          if (gap > bound * (1 + kBoundError)) {
            EXPECT_FALSE(is_near) << v << " " << gap;
          }
        }
        EXPECT_EQ(place, near.count);
        EXPECT_LE(near.least_rest, rest);
        EXPECT_GE(near.most_rest, rest);
        EXPECT_LE(static_cast<double>(near.most_rest - near.least_rest),
                  2.1 * kRestError * static_cast<double>(rest) + 2.0 * static_cast<double>(size) + 2);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, TokenBlocksTest, testing::Bool());

}  // namespace
}  // namespace tandem
