#include "common/speculation/target_sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "common/base/philox.h"
#include "common/speculation/simd_clones.h"
#include "common/speculation/token_blocks.h"
#include "common/speculation/token_gaps.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(NaturalLogTest, AgreesWithTheCLibrary) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 100000; ++i) {
    const double near_one = 1.0 + std::ldexp(static_cast<double>(random()) - 9.2e18, -70);
    const double any = std::ldexp(1.0 + std::ldexp(static_cast<double>(random() >> 12), -52),
                                  static_cast<int>(random() % 2000) - 1000);
    for (double x : {near_one, any}) {
      EXPECT_NEAR(NaturalLog(x), std::log(x), 1e-12 * std::abs(std::log(x))) << x;
    }
  }
  EXPECT_EQ(NaturalLog(1.0), 0.0);
}

TEST(GumbelTest, FollowsItsFormula) {
  for (uint32_t bits : {0u, 1u, 0x5e2d58d8u, 0x80000000u, 0xfffffffeu, 0xffffffffu}) {
    const double u = (bits + 0.5) / 4294967296.0;
    const double expected = -std::log(-std::log(u));
    EXPECT_NEAR(GumbelFromBits(bits), expected, 1e-7 * std::abs(expected) + 1e-15) << bits;
    EXPECT_LT(GumbelFromBits(bits), kMaxGumbel);
  }
}

TEST(GumbelTest, IsKeyedBySeedPositionAndToken) {
  constexpr uint64_t kSeed = 0x0123456789abcdef;
  const PhiloxCounter words = Philox4x32({25, 7, 0, 0}, {0x89abcdef, 0x01234567});
  for (int lane = 0; lane < 4; ++lane) {
    EXPECT_EQ(GumbelNoise(kSeed, 7, 100 + lane), GumbelFromBits(words[lane]));
  }
}

// Bits that were written down once: a machine or compiler on which they differ breaks law 2.
TEST(GumbelTest, HasTheSameBitsEverywhere) {
  EXPECT_EQ(GumbelNoise(42, 0, 0), 0x1.6dcddap-1f);
  EXPECT_EQ(GumbelNoise(42, 1000, 4095), 0x1.546dd2p-3f);
  EXPECT_EQ(TokenWeight(0.0f), uint64_t{1} << 40);
  EXPECT_EQ(TokenWeight(1.0f), 404487723188u);
  EXPECT_EQ(TokenWeight(0.6931472f), 549755812841u);
}

TEST(TokenWeightTest, IsTheExponentialInFixedPoint) {
  for (float gap = 0.0f; gap < 40.0f; gap += 0.0137f) {
    const double expected = std::exp(-static_cast<double>(gap)) * 0x1p40;
    EXPECT_NEAR(static_cast<double>(TokenWeight(gap)), expected, 0.5001 + 1e-12 * expected) << gap;
  }
  EXPECT_EQ(TokenWeight(100.0f), 0u);
  EXPECT_EQ(TokenWeight(kInfinity), 0u);
}

// With AVX-512, where the machine has it, and without.
class NoiseKeyTest : public testing::TestWithParam<bool> {
 protected:
  NoiseKeyTest() { AllowAvx512(GetParam()); }
  ~NoiseKeyTest() override { AllowAvx512(true); }
};

TEST_P(NoiseKeyTest, FindsTheBitsOfTheNoise) {
  std::mt19937 random(2);
  for (int round = 0; round < 500; ++round) {
    const uint64_t seed = uint64_t{random()} << 32 | random();
    const uint32_t position = random();
    const TokenId first = static_cast<TokenId>(random() % 2000) * kTokenBlock;
    const uint32_t least = round % 10 == 0 ? 0 : static_cast<uint32_t>(random()) | 0xf0000000u;
    uint32_t bits[kTokenBlock] = {};
    const uint64_t mask = NoiseKey(seed, position).FindBits(first, least, bits);
    uint64_t expected_mask = 0;
    for (int i = 0; i < kTokenBlock; ++i) {
      const float noise = GumbelNoise(seed, position, first + i);
      if (mask != 0) {
        ASSERT_EQ(GumbelFromBits(bits[i]), noise);
      }
      // The noise rises with the bits, but several bits share one value.
      if (noise > GumbelFromBits(least)) {
        EXPECT_TRUE(mask >> i & 1);
      }
      if (noise < GumbelFromBits(least)) {
        EXPECT_FALSE(mask >> i & 1);
      }
      if (mask != 0) expected_mask |= static_cast<uint64_t>(bits[i] >= least ? 1 : 0) << i;
    }
    EXPECT_EQ(mask, expected_mask);
  }
}

INSTANTIATE_TEST_SUITE_P(All, NoiseKeyTest, testing::Bool());

TEST(LeastBitsTest, MissNoNoiseAndLetLittleElsePass) {
  std::mt19937 random(3);
  for (float noise = -3.9f; noise < 30.0f; noise += 0.0137f) {
    const uint32_t least = LeastBitsOf(noise);
    if (least > 0) {
      EXPECT_LT(GumbelFromBits(least - 1), noise);
    }
    // All bits of such noise make a share of 1 - exp(-exp(-noise)).
    const double share = -std::expm1(-std::exp(-double{noise}));
    const double passing = (4294967296.0 - least) / 4294967296.0;
    EXPECT_LE(passing, std::min(1.0, 1.8 * share + 0x1p-32)) << noise;
  }
}

// Law 2 by the book: sort, cut, take the argmax of all kept.
TokenId PlainChoice(const SamplingParameters& sampling, const std::vector<float>& logits, uint32_t position) {
  const auto clean = [](float logit) {
    return std::isnan(logit) ? -kInfinity : std::min(logit, std::numeric_limits<float>::max());
  };
  std::vector<float> gaps(logits.size());
  const float best = clean(
      *std::max_element(logits.begin(), logits.end(), [&](float a, float b) { return clean(a) < clean(b); }));
  if (best == -kInfinity) return 0;
  for (size_t v = 0; v < logits.size(); ++v) {
    gaps[v] = best - clean(logits[v]);
    if (sampling.temperature > 0) gaps[v] /= sampling.temperature;
  }
  std::vector<TokenId> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) { return gaps[a] < gaps[b]; });
  if (sampling.temperature == 0) return order[0];
  if (sampling.top_k > 0 && sampling.top_k < order.size()) order.resize(sampling.top_k);
  if (sampling.top_p < 1) {
    double total = 0;
    for (TokenId v : order) total += std::exp(-double{gaps[v]});
    double sum = 0;
    size_t kept = 0;
    while (kept < order.size() && sum < sampling.top_p * total) sum += std::exp(-double{gaps[order[kept++]]});
    order.resize(kept);
  }
  TokenId winner = order[0];
  double winning_score = -std::numeric_limits<double>::infinity();
  for (TokenId v : order) {
    if (sampling.min_p > 0 && std::exp(-double{gaps[v]}) < sampling.min_p) continue;
    const double score = double{GumbelNoise(sampling.seed, position, v)} - double{gaps[v]};
    if (score > winning_score || (score == winning_score && v < winner)) {
      winner = v;
      winning_score = score;
    }
  }
  return winner;
}

TEST(TargetSamplerTest, ChoosesLikeThePlainDefinition) {
  std::mt19937 random(3);
  const auto uniform = [&] { return std::uniform_real_distribution<float>(0.0f, 1.0f)(random); };
  const size_t sizes[] = {1, 2, 8, 63, 64, 65, 200, 1000};
  for (int round = 0; round < 10000; ++round) {
    const size_t vocab_size = sizes[random() % std::size(sizes)];
    const float spread = std::exp(6.0f * uniform() - 3.0f);
    const bool ties = random() % 4 == 0;
    std::normal_distribution<float> normal(0.0f, spread);
    std::vector<float> logits(vocab_size);
    for (float& logit : logits) {
      logit = ties ? std::round(normal(random)) : normal(random);
      if (random() % 100 == 0) logit = random() % 2 == 0 ? -kInfinity : kNan;
    }
    if (random() % 500 == 0) logits[random() % vocab_size] = kInfinity;
    SamplingParameters sampling = {.temperature = random() % 10 == 0 ? 0.0f : 2.0f * uniform() + 1e-3f};
    if (random() % 2 == 0) sampling.top_k = random() % (vocab_size + 2);
    if (random() % 2 == 0) sampling.top_p = 1.0f - uniform() * 0.999f;
    if (random() % 3 == 0) sampling.min_p = uniform() * uniform();
    sampling.seed = uint64_t{random()} << 32 | random();
    const uint32_t position = random() % 100000;
    const TokenId expected = PlainChoice(sampling, logits, position);
    TargetSampler sampler(sampling, static_cast<int32_t>(vocab_size), {});
    ASSERT_EQ(sampler.Choose(absl::MakeSpan(logits), position).token, expected)
        << "round " << round << " vocab " << vocab_size << " temperature " << sampling.temperature
        << " top_k " << sampling.top_k << " top_p " << sampling.top_p << " min_p " << sampling.min_p;
  }
}

// The paths that only a wide vocabulary takes: skipped blocks, candidates by block minima, full histograms.
TEST(TargetSamplerTest, ChoosesLikeThePlainDefinitionFromAWideVocabulary) {
  std::mt19937 random(4);
  std::vector<float> logits(151936);
  for (float spread : {0.0f, 0.001f, 1.0f, 3.0f}) {
    std::normal_distribution<float> normal(0.0f, spread > 0 ? spread : 1.0f);
    for (uint32_t top_k : {0u, 1u, 40u, 3000u, 100000u}) {
      for (float top_p : {0.1f, 0.9f, 1.0f}) {
        for (float& logit : logits) logit = spread > 0 ? normal(random) : 1.5f;
        const SamplingParameters sampling = {.temperature = 0.7f,
                                             .top_k = top_k,
                                             .top_p = top_p,
                                             .min_p = top_k == 40 ? 0.05f : 0.0f,
                                             .seed = random()};
        const TokenId expected = PlainChoice(sampling, logits, 17);
        TargetSampler sampler(sampling, static_cast<int32_t>(logits.size()), {});
        EXPECT_EQ(sampler.Choose(absl::MakeSpan(logits), 17).token, expected)
            << spread << " " << top_k << " " << top_p;
      }
    }
  }
}

// What the cut by probability keeps, weight by weight; where the rest is summed up roughly at first, and
// where not.
TEST(TargetSamplerTest, KeepsTheShortestBeginningWithTheShare) {
  std::mt19937 random(5);
  for (const size_t size : {size_t{40007}, size_t{151936}}) {
    std::vector<float> logits(size);
    for (const float spread : {0.01f, 1.0f, 2.5f, 6.0f}) {
      std::normal_distribution<float> normal(0.0f, spread);
      for (float& logit : logits) logit = normal(random);
      for (int i = 0; i < 30; ++i) logits[random() % size] = i % 2 == 0 ? kNan : 4.5f * spread;
      const float temperature = size % 2 == 0 ? 0.8f : 1.0f;
      const PeakLogit peak = FindPeak(logits);
      std::vector<uint64_t> order(size);
      uint64_t total = 0;
      for (size_t v = 0; v < size; ++v) {
        const float gap = GapOf({peak.logit, temperature}, logits[v]);
        order[v] = uint64_t{std::bit_cast<uint32_t>(gap)} << 32 | v;
        total += TokenWeight(gap);
      }
      std::sort(order.begin(), order.end());
      for (const float top_p : {0.05f, 0.5f, 0.9f, 0.95f, 0.99f, 0.9999f}) {
        const auto target =
            static_cast<uint64_t>(std::ceil(static_cast<double>(top_p) * static_cast<double>(total)));
        std::vector<double> expected(size);
        uint64_t sum = 0;
        for (size_t i = 0; sum < target; ++i) {
          const uint64_t weight = TokenWeight(std::bit_cast<float>(static_cast<uint32_t>(order[i] >> 32)));
          expected[order[i] & 0xffffffffu] = static_cast<double>(weight);
          sum += weight;
        }
        for (const bool with_avx512 : {true, false}) {
          AllowAvx512(with_avx512);
          std::vector<float> scratch = logits;
          const TargetSampler sampler({.temperature = temperature, .top_p = top_p},
                                      static_cast<int32_t>(size), {});
          EXPECT_TRUE(sampler.Weights(absl::MakeSpan(scratch), 0) == expected)
              << size << " " << spread << " " << top_p << " " << with_avx512;
        }
        AllowAvx512(true);
      }
    }
  }
}

// Chooses at positions [0, count) from the same logits and returns how often each token came.
std::vector<int> Draw(const SamplingParameters& sampling, const std::vector<float>& logits, uint32_t count) {
  TargetSampler sampler(sampling, static_cast<int32_t>(logits.size()), {});
  std::vector<int> draws(logits.size());
  for (uint32_t position = 0; position < count; ++position) {
    std::vector<float> scratch = logits;
    ++draws[sampler.Choose(absl::MakeSpan(scratch), position).token];
  }
  return draws;
}

TEST(TargetSamplerTest, DrawsFromTheSoftmax) {
  constexpr int kDraws = 200000;
  const std::vector<float> logits = {0.0f, 1.0f, -1.0f, 2.0f, 0.5f, -2.0f, 1.5f, -4.0f};
  for (uint64_t seed : {1ull, 0xfeedfacecafebeefull}) {
    for (float temperature : {0.8f, 1.0f, 1.7f}) {
      double total = 0;
      for (float logit : logits) total += std::exp(logit / temperature);
      const std::vector<int> draws = Draw({.temperature = temperature, .seed = seed}, logits, kDraws);
      double variation = 0;
      double chi_square = 0;
      for (size_t v = 0; v < logits.size(); ++v) {
        const double expected = kDraws * std::exp(logits[v] / temperature) / total;
        variation += std::abs(draws[v] - expected) / kDraws / 2;
        chi_square += (draws[v] - expected) * (draws[v] - expected) / expected;
      }
      EXPECT_LT(variation, 0.004);
      // Seven degrees of freedom: above 24.3 once in a thousand, below 0.6 as rarely.
      EXPECT_LT(chi_square, 24.3);
      EXPECT_GT(chi_square, 0.5);
    }
  }
}

TEST(TargetSamplerTest, KeepsOnlyWhatTheCutsLeave) {
  // Probabilities 0.4, 0.3, 0.2, 0.1.
  const std::vector<float> logits = {std::log(0.4f), std::log(0.3f), std::log(0.2f), std::log(0.1f)};
  const auto kept = [&](const SamplingParameters& sampling) {
    std::vector<TokenId> tokens;
    const std::vector<int> draws = Draw(sampling, logits, 500);
    for (size_t v = 0; v < draws.size(); ++v) {
      if (draws[v] > 0) tokens.push_back(static_cast<TokenId>(v));
    }
    return tokens;
  };
  EXPECT_THAT(kept({}), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(kept({.top_k = 1}), ElementsAre(0));
  EXPECT_THAT(kept({.top_k = 3}), ElementsAre(0, 1, 2));
  EXPECT_THAT(kept({.top_k = 9}), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(kept({.top_p = 0.01f}), ElementsAre(0));
  EXPECT_THAT(kept({.top_p = 0.65f}), ElementsAre(0, 1));
  EXPECT_THAT(kept({.top_p = 0.75f}), ElementsAre(0, 1, 2));
  // What top-k left is renormalised: 0.4 is 0.571 of 0.7.
  EXPECT_THAT(kept({.top_k = 2, .top_p = 0.55f}), ElementsAre(0));
  EXPECT_THAT(kept({.top_k = 2, .top_p = 0.6f}), ElementsAre(0, 1));
  EXPECT_THAT(kept({.min_p = 0.4f}), ElementsAre(0, 1, 2));
  EXPECT_THAT(kept({.min_p = 0.6f}), ElementsAre(0, 1));
  EXPECT_THAT(kept({.min_p = 1.0f}), ElementsAre(0));
  // The order is: temperature, then top-p. At temperature 0.5 the shares are 0.533, 0.3, 0.133, 0.033.
  EXPECT_THAT(kept({.temperature = 0.5f, .top_p = 0.5f}), ElementsAre(0));
}

TEST(TargetSamplerTest, PrefersLowerIdsAmongEquals) {
  const std::vector<float> logits = {1.0f, 2.0f, 2.0f, 2.0f};
  EXPECT_THAT(Draw({.temperature = 0}, logits, 10), ElementsAre(0, 10, 0, 0));
  EXPECT_THAT(Draw({.top_k = 1}, logits, 10), ElementsAre(0, 10, 0, 0));
  EXPECT_EQ(Draw({.top_k = 2}, logits, 100)[3], 0);
  EXPECT_EQ(Draw({.top_p = 0.2f}, logits, 100)[2], 0);
  const std::vector<float> zeros = {-1.0f, -0.0f, 0.0f};
  EXPECT_THAT(Draw({.temperature = 0}, zeros, 1), ElementsAre(0, 1, 0));
  EXPECT_GT(Draw({.top_k = 2}, zeros, 100)[2], 30);
}

TEST(TargetSamplerTest, SurvivesLogitsThatAreNotNumbers) {
  for (float temperature : {0.0f, 1e-38f, 1.0f, 100.0f}) {
    const SamplingParameters sampling = {.temperature = temperature};
    EXPECT_THAT(Draw(sampling, {kNan, -kInfinity, kNan}, 20), ElementsAre(20, 0, 0));
    EXPECT_THAT(Draw(sampling, {kNan, -5.0f, -kInfinity}, 20), ElementsAre(0, 20, 0));
    EXPECT_THAT(Draw(sampling, {0.0f, kInfinity, kNan}, 20), ElementsAre(0, 20, 0));
    EXPECT_THAT(Draw(sampling, {-3e38f, 3e38f, -kNan}, 20), ElementsAre(0, 20, 0));
  }
}

TEST(TargetSamplerTest, IsRepeatableAndDependsOnSeedAndPosition) {
  const std::vector<float> logits(1000, 0.0f);
  const auto sequence = [&](uint64_t seed) {
    TargetSampler sampler({.seed = seed}, 1000, {});
    std::vector<TokenId> tokens;
    for (uint32_t position = 0; position < 50; ++position) {
      std::vector<float> scratch = logits;
      tokens.push_back(sampler.Choose(absl::MakeSpan(scratch), position).token);
    }
    return tokens;
  };
  const std::vector<TokenId> first = sequence(7);
  EXPECT_EQ(first, sequence(7));
  EXPECT_NE(first, sequence(8));
  EXPECT_NE(first, sequence(7ull | 1ull << 40));
  std::vector<TokenId> distinct = first;
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  EXPECT_GT(distinct.size(), 40u);
}

// The log probabilities of all tokens by id, times the constant that makes the largest logit `top`.
std::map<TokenId, float> Logits(TargetSampler& sampler, std::vector<float> logits, float top) {
  const TokenChoice choice = sampler.Choose(absl::MakeSpan(logits), 0, static_cast<int>(logits.size()));
  std::map<TokenId, float> result;
  const float shift = top - choice.top_logprobs[0].logprob;
  for (const TokenLogprob& entry : choice.top_logprobs) result[entry.token] = entry.logprob + shift;
  return result;
}

TEST(TargetSamplerTest, AppliesPenaltiesAndBiasInOrder) {
  SamplingParameters sampling = {
      .repetition_penalty = 2.0f, .presence_penalty = 0.5f, .frequency_penalty = 0.25f};
  sampling.logit_bias = {{3, 1.0f}, {4, -100.0f}, {2, 0.125f}};
  TargetSampler sampler(sampling, 6, {0, 1, 1});
  const std::vector<float> logits = {4.0f, -1.0f, 3.0f, 0.5f, 9.0f, 8.0f};
  std::map<TokenId, float> seen = Logits(sampler, logits, 8.0f);
  EXPECT_THAT(seen, SizeIs(5));      // Token 4 is banned.
  EXPECT_NEAR(seen[0], 2.0f, 1e-5);  // In the prompt: only the repetition penalty.
  EXPECT_NEAR(seen[1], -2.0f, 1e-5);
  EXPECT_NEAR(seen[2], 3.125f, 1e-5);
  EXPECT_NEAR(seen[3], 1.5f, 1e-5);
  sampler.Append(2);
  sampler.Append(2);
  sampler.Append(1);
  seen = Logits(sampler, logits, 8.0f);
  EXPECT_NEAR(seen[0], 2.0f, 1e-5);
  EXPECT_NEAR(seen[1], -2.0f - 0.5f - 0.25f, 1e-5);
  EXPECT_NEAR(seen[2], 1.5f - 0.5f - 0.5f + 0.125f, 1e-5);
  EXPECT_NEAR(seen[3], 1.5f, 1e-5);
}

TEST(TargetSamplerTest, PresencePenaltyAloneIgnoresThePrompt) {
  TargetSampler sampler({.temperature = 0, .presence_penalty = 1.0f}, 2, {0, 0});
  std::vector<float> logits = {1.0f, 0.5f};
  EXPECT_EQ(sampler.Choose(absl::MakeSpan(logits), 2).token, 0);
  TargetSampler copy = sampler;
  sampler.Append(0);
  logits = {1.0f, 0.5f};
  EXPECT_EQ(sampler.Choose(absl::MakeSpan(logits), 3).token, 1);
  logits = {1.0f, 0.5f};
  EXPECT_EQ(copy.Choose(absl::MakeSpan(logits), 3).token, 0) << "copies share no history";
}

// What an engine that chooses is told.
TEST(TargetSamplerTest, CountsWhatPenaltiesLookAt) {
  const auto sorted = [](std::vector<TokenCount> counts) {
    std::sort(counts.begin(), counts.end(), [](const auto& a, const auto& b) { return a.token < b.token; });
    return counts;
  };
  const TokenIds prompt = {4, 4, 7};
  const TokenIds path = {2, 7, 2, 9};
  for (const bool repetition : {false, true}) {
    SamplingParameters sampling = {.repetition_penalty = repetition ? 1.1f : 1.0f, .frequency_penalty = 0.5f};
    TargetSampler sampler(sampling, 10, prompt);
    for (const TokenId token : {2, 3, 2}) sampler.Append(token);
    std::vector<TokenCount> expected = {{2, 2}, {3, 1}};
    if (repetition) expected.insert(expected.end(), {{4, 0}, {7, 0}});
    EXPECT_EQ(sorted(sampler.Counts()), expected);
    EXPECT_EQ(sorted(sampler.CountsAfter(path)), (std::vector<TokenCount>{{2, 4}, {7, 1}, {9, 1}}));
    for (const TokenId token : path) sampler.Append(token);
    for (const TokenCount& entry : sampler.CountsAfter({})) ADD_FAILURE() << entry.token;
    for (const TokenCount& entry : {TokenCount{2, 4}, TokenCount{7, 1}, TokenCount{9, 1}}) {
      EXPECT_THAT(sampler.Counts(), testing::Contains(entry));
    }
  }
  TargetSampler plain({.temperature = 0.5f}, 10, prompt);
  plain.Append(3);
  EXPECT_THAT(plain.Counts(), SizeIs(0));
  EXPECT_THAT(plain.CountsAfter(path), SizeIs(0));
}

TEST(TargetSamplerTest, LogprobsAreTheLogSoftmaxAtTemperatureOne) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> logits(500);
  for (float& logit : logits) logit = normal(random);
  logits[77] = logits[33] = *std::max_element(logits.begin(), logits.end()) + 1.0f;
  logits[5] = kNan;
  double total = 0;
  for (float logit : logits) total += std::isnan(logit) ? 0.0 : std::exp(double{logit});
  // What is asked for is neither bounded by top-k nor changed by the temperature.
  TargetSampler sampler({.temperature = 0.3f, .top_k = 2, .seed = 3}, 500, {});
  std::vector<float> scratch = logits;
  const TokenChoice choice = sampler.Choose(absl::MakeSpan(scratch), 9, 20);
  EXPECT_NEAR(choice.logprob, logits[choice.token] - std::log(total), 1e-5);
  ASSERT_THAT(choice.top_logprobs, SizeIs(20));
  EXPECT_EQ(choice.top_logprobs[0].token, 33);
  EXPECT_EQ(choice.top_logprobs[1].token, 77);
  std::vector<float> sorted = logits;
  sorted[5] = -kInfinity;
  std::sort(sorted.rbegin(), sorted.rend());
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(logits[choice.top_logprobs[i].token], sorted[i]);
    EXPECT_NEAR(choice.top_logprobs[i].logprob, sorted[i] - std::log(total), 1e-5);
  }
  scratch = logits;
  const TokenChoice same = sampler.Choose(absl::MakeSpan(scratch), 9, 0);
  EXPECT_EQ(same.token, choice.token);
  EXPECT_EQ(same.logprob, choice.logprob);
  EXPECT_THAT(same.top_logprobs, SizeIs(0));
}

TEST(TargetSamplerTest, LogprobsLeaveOutTokensWithoutAChance) {
  TargetSampler sampler({}, 4, {});
  std::vector<float> logits = {kNan, 1.0f, -kInfinity, 1.0f};
  const TokenChoice choice = sampler.Choose(absl::MakeSpan(logits), 0, 20);
  ASSERT_THAT(choice.top_logprobs, SizeIs(2));
  EXPECT_EQ(choice.top_logprobs[0].token, 1);
  EXPECT_NEAR(choice.top_logprobs[1].logprob, -std::log(2.0f), 1e-6);
  logits.assign(4, -kInfinity);
  EXPECT_EQ(sampler.Choose(absl::MakeSpan(logits), 0, 20).logprob, -kInfinity);
}

TEST(GuessTest, TheFirstGuessOnTheTargetsOwnLogitsIsTheTargetsChoice) {
  constexpr int32_t kVocab = 500;
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  for (uint32_t position = 0; position < 200; ++position) {
    std::vector<float> logits(kVocab);
    for (float& logit : logits) logit = normal(random);
    SamplingParameters sampling{.temperature = position % 4 == 0 ? 0.0f : 0.8f, .seed = 99};
    if (position % 3 == 0) sampling.top_k = 40;
    if (position % 5 == 0) sampling.repetition_penalty = 1.5f;
    TargetSampler sampler(sampling, kVocab, {1, 2, 3});
    sampler.Append(7);
    std::vector<float> copy = logits;
    const TokenProbabilities guesses = sampler.Guess(absl::MakeSpan(copy), position, 4);
    ASSERT_EQ(guesses.size(), 4u);
    EXPECT_EQ(guesses[0].token, sampler.Choose(absl::MakeSpan(logits), position).token) << position;
    float sum = 0.0f;
    for (size_t i = 0; i < guesses.size(); ++i) {
      EXPECT_GT(guesses[i].probability, 0.0f);
      if (i > 0) {
        EXPECT_LE(guesses[i].probability, guesses[i - 1].probability);
      }
      sum += guesses[i].probability;
    }
    EXPECT_LE(sum, 1.0001f);
  }
}

// With the shared noise, a drafter that is a little off still guesses most choices; its own most likely token
// would guess far fewer.
TEST(GuessTest, SharedNoiseGuessesWhatTheLikeliestTokenCannot) {
  constexpr int32_t kVocab = 200;
  std::mt19937 random(6);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  const SamplingParameters sampling{.temperature = 1.0f, .seed = 3};
  int shared = 0;
  int likeliest = 0;
  for (uint32_t position = 0; position < 1000; ++position) {
    std::vector<float> target(kVocab);
    for (float& logit : target) logit = 2.0f * normal(random);
    std::vector<float> draft = target;
    for (float& logit : draft) logit += 0.3f * normal(random);
    const auto best = std::max_element(draft.begin(), draft.end()) - draft.begin();
    TargetSampler sampler(sampling, kVocab, {});
    const TokenId guess = sampler.Guess(absl::MakeSpan(draft), position, 1).at(0).token;
    const TokenId choice = sampler.Choose(absl::MakeSpan(target), position).token;
    shared += guess == choice ? 1 : 0;
    likeliest += best == choice ? 1 : 0;
  }
  EXPECT_GT(shared, 700);
  EXPECT_LT(likeliest, 300);
}

TEST(GuessTest, NothingFromLogitsWithoutAChance) {
  std::vector<float> logits(10, -std::numeric_limits<float>::infinity());
  const TargetSampler sampler({.temperature = 0.8f}, 10, {});
  EXPECT_TRUE(sampler.Guess(absl::MakeSpan(logits), 0, 3).empty());
}

}  // namespace
}  // namespace tandem
