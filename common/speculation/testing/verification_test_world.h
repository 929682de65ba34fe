#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/environment_number.h"
#include "common/base/hash.h"
#include "common/base/node_index.h"
#include "common/speculation/rules/draft_distribution.h"
#include "common/speculation/rules/verification_rule.h"

// Shared by the tests of rules: a world of four tokens, small enough to enumerate, in which target and
// drafter have their own distributions after every text.
namespace tandem::testing_world {

inline constexpr int32_t kNumTokens = 4;
// How many requests a distribution is counted over. TANDEM_SAMPLES sets it; with a sanitizer it is 50,000 at
// most.
inline const int kNumSamples = [] {
  constexpr uint64_t kMax = 10'000'000;
  const uint64_t wanted = NumberFromEnvironment("TANDEM_SAMPLES", 300'000, 10'000, kMax);
#ifdef TANDEM_SANITIZED
  return static_cast<int>(std::min<uint64_t>(wanted, 50'000));
#else
  return static_cast<int>(wanted);
#endif
}();

// SplitMix64, seeded.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() { return HashCombine(state_ += 0x9e3779b97f4a7c15ull, 0); }
  double Uniform() { return UniformFromBits(Next()); }

 private:
  uint64_t state_;
};

struct World {
  uint64_t seed = 1;
  SamplingParameters sampling = {.temperature = 0.8f};
  // How many tokens the drafter leaves out.
  int num_missing = 1;
  // Whether the drafter reports another distribution than the one it draws from.
  bool lies = false;
};

// The logits of a text under the model with that seed.
inline std::vector<float> Logits(uint64_t model, const TokenIds& text) {
  Random random(ExtendPrefixHash(model, text));
  std::vector<float> logits(kNumTokens);
  for (float& logit : logits) logit = static_cast<float>(-1.5 * std::log(1.0 - random.Uniform()));
  return logits;
}

// The target's distribution by the book: softmax, top-k. [kNumTokens]
inline std::vector<double> TargetProbs(const World& world, const TokenIds& text) {
  const std::vector<float> logits = Logits(world.seed, text);
  std::vector<float> sorted = logits;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  const uint32_t kept = world.sampling.top_k > 0 ? world.sampling.top_k : kNumTokens;
  std::vector<double> probs(kNumTokens);
  double total = 0.0;
  for (size_t v = 0; v < kNumTokens; ++v) {
    if (logits[v] >= sorted[kept - 1]) probs[v] = std::exp(logits[v] / world.sampling.temperature);
    total += probs[v];
  }
  for (double& prob : probs) prob /= total;
  return probs;
}

inline DraftDistribution Draft(uint64_t model, int num_missing, const TokenIds& text) {
  const std::vector<float> logits = Logits(model, text);
  DraftDistribution draft;
  const auto missing = static_cast<TokenId>(ExtendPrefixHash(model, text) % kNumTokens);
  float total = 0.0f;
  for (TokenId v = 0; v < kNumTokens; ++v) {
    if ((v - missing + kNumTokens) % kNumTokens < num_missing) continue;
    draft.tokens.push_back(v);
    draft.probabilities.push_back(std::exp(logits[static_cast<size_t>(v)]));
    total += draft.probabilities.back();
  }
  for (float& probability : draft.probabilities) probability /= total;
  return draft;
}

// Texts of generated tokens under a rule, against trees drawn level by level.
class Generator {
 public:
  // `children[d]`: how many children a node at depth d has. `skip`: how often a node that has been drawn is
  // not verified, nor what lies below it.
  Generator(const World& world, VerificationRuleKind rule, std::vector<size_t> children, double skip = 0.0)
      : world_(world), rule_(MakeVerificationRule(rule)), children_(std::move(children)), skip_(skip) {}

  // The first `length` tokens of a request with that seed; rounds follow one another until they are there.
  TokenIds Generate(uint64_t seed, size_t length, Random* random) {
    TokenIds text;
    SamplingParameters sampling = world_.sampling;
    sampling.seed = seed;
    TargetSampler sampler(sampling, kNumTokens, {});
    while (text.size() < length) {
      DrawTree(text, random);
      const auto logits = [&](uint32_t node) {
        logits_ = Of(node == kRootNode ? text : texts_[node]).target;
        return absl::MakeSpan(logits_);
      };
      const VerifiedRound round{.position = static_cast<uint32_t>(text.size()),
                                .seed = seed,
                                .nodes = nodes_,
                                .groups = groups_,
                                .logits = logits};
      const std::vector<VerifiedToken> tokens = rule_->Verify(round, sampler);
      ++num_rounds_;
      num_accepted_ += tokens.size() - 1;
      for (const VerifiedToken& token : tokens) text.push_back(token.choice.token);
    }
    text.resize(length);
    return text;
  }

  double MeanAccepted() const {
    return static_cast<double>(num_accepted_) / static_cast<double>(num_rounds_);
  }

 private:
  struct Models {
    std::vector<float> target;
    DraftDistribution drawn_from;
    std::shared_ptr<const DraftDistribution> told;
  };

  const Models& Of(const TokenIds& text) {
    const auto [at, is_new] = models_.try_emplace(text);
    if (is_new) {
      at->second.target = Logits(world_.seed, text);
      at->second.drawn_from = Draft(world_.seed + 1, world_.num_missing, text);
      at->second.told = std::make_shared<DraftDistribution>(
          Draft(world_.seed + (world_.lies ? 2 : 1), world_.num_missing, text));
    }
    return at->second;
  }

  void DrawTree(const TokenIds& text, Random* random) {
    nodes_.clear();
    groups_.clear();
    texts_.clear();
    DrawChildren(kRootNode, 0, text, random);
    for (uint32_t i = 0; i < nodes_.size() && nodes_[i].depth < children_.size(); ++i) {
      const TokenIds above = texts_[i];
      DrawChildren(i, nodes_[i].depth, above, random);
    }
  }

  void DrawChildren(uint32_t parent, uint32_t depth, const TokenIds& text, Random* random) {
    const Models& models = Of(text);
    DrawGroup group{.parent = parent, .distribution = models.told};
    RemainingDraft left(&models.drawn_from);
    for (size_t i = 0; i < children_[depth] && !left.empty(); ++i) {
      const TokenId token = left.Draw(random->Uniform());
      left.Remove(token);
      group.children.push_back({.token = token});
      if (random->Uniform() < skip_) continue;
      group.children.back().node = static_cast<uint32_t>(nodes_.size());
      nodes_.push_back({.parent = parent, .token = token, .depth = depth + 1});
      texts_.push_back(text);
      texts_.back().push_back(token);
    }
    groups_.push_back(std::move(group));
  }

  const World world_;
  const std::unique_ptr<const VerificationRule> rule_;
  const std::vector<size_t> children_;
  const double skip_;
  std::map<TokenIds, Models> models_;
  std::vector<RoundNode> nodes_;
  std::vector<TokenIds> texts_;  // Up to each node, itself included.
  std::vector<DrawGroup> groups_;
  std::vector<float> logits_;
  uint64_t num_rounds_ = 0;
  uint64_t num_accepted_ = 0;
};

// The deviation of counts from the expected ones.
struct Fit {
  double chi_square = 0.0;  // Infinite when something impossible has happened.
  double degrees = 0.0;
  double total_variation = 0.0;

  // Within six standard deviations of chance.
  bool IsGood() const { return chi_square < degrees + 6.0 * std::sqrt(2.0 * degrees); }
};

inline Fit Compare(const std::vector<uint64_t>& counts, const std::vector<double>& probs) {
  double total = 0.0;
  for (uint64_t count : counts) total += static_cast<double>(count);
  Fit fit;
  double rare_expected = 0.0;
  double rare_count = 0.0;
  const auto add = [&](double count, double expected) {
    fit.chi_square += (count - expected) * (count - expected) / expected;
    fit.degrees += 1.0;
  };
  for (size_t i = 0; i < counts.size(); ++i) {
    const auto count = static_cast<double>(counts[i]);
    const double expected = probs[i] * total;
    fit.total_variation += 0.5 * std::abs(count - expected) / total;
    if (expected == 0.0 && count > 0.0) fit.chi_square = HUGE_VAL;
    if (expected >= 10.0) {
      add(count, expected);
    } else {
      rare_expected += expected;
      rare_count += count;
    }
  }
  if (rare_expected >= 10.0) add(rare_count, rare_expected);
  fit.degrees -= 1.0;
  return fit;
}

// The first three tokens of so many requests with different seeds, against the target's own distribution.
inline Fit FitOfThreeTokens(const World& world, Generator* generator, int num_samples = kNumSamples) {
  constexpr size_t kLength = 3;
  std::vector<uint64_t> counts(kNumTokens * kNumTokens * kNumTokens);
  Random random(world.seed + 100);
  for (int i = 0; i < num_samples; ++i) {
    size_t cell = 0;
    for (TokenId token : generator->Generate(static_cast<uint64_t>(i), kLength, &random)) {
      cell = cell * kNumTokens + static_cast<size_t>(token);
    }
    ++counts[cell];
  }
  std::vector<double> probs(counts.size());
  for (size_t cell = 0; cell < probs.size(); ++cell) {
    const TokenIds text = {static_cast<TokenId>(cell / 16), static_cast<TokenId>(cell / 4 % 4),
                           static_cast<TokenId>(cell % 4)};
    probs[cell] = 1.0;
    for (size_t i = 0; i < kLength; ++i) {
      const TokenIds above(text.begin(), text.begin() + static_cast<ptrdiff_t>(i));
      probs[cell] *= TargetProbs(world, above)[static_cast<size_t>(text[i])];
    }
  }
  return Compare(counts, probs);
}

}  // namespace tandem::testing_world
