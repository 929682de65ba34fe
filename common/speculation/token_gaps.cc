#include "common/speculation/token_gaps.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "common/speculation/gumbel.h"

namespace tandem {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr TokenId kLastToken = std::numeric_limits<TokenId>::max();

// In the order of (gap, id).
uint64_t KeyOf(float gap, TokenId token) {
  return uint64_t{std::bit_cast<uint32_t>(gap)} << 32 | static_cast<uint32_t>(token);
}

struct GapEntry {
  uint64_t key;
  uint64_t measure;
  friend bool operator<(const GapEntry& a, const GapEntry& b) { return a.key < b.key; }
};

// The key at which the measures of `entries`, summed in the order of the keys, reach `target`: quickselect,
// linear on average. There are entries, and together they reach it.
uint64_t SelectByMeasure(std::vector<GapEntry>& entries, uint64_t target) {
  auto low = entries.begin();
  auto high = entries.end();
  while (high - low > 1) {
    const auto middle = low + (high - low) / 2;
    std::nth_element(low, middle, high);
    uint64_t measure = 0;
    for (auto entry = low; entry != middle; ++entry) measure += entry->measure;
    if (measure >= target) {
      high = middle;
    } else {
      target -= measure;
      low = middle;
    }
  }
  return low->key;
}

// Where the measures of near tokens, summed in the order of the keys, reach a target. `measures` is
// [near.count], or null where each token measures 1. Both outlive this.
class KeySearch {
 public:
  KeySearch(const NearTokens& near, const uint64_t* measures) : near_(near), measures_(measures) {
    for (size_t i = 0; i < near.count; ++i) histogram_[BucketOf(near.gaps[i])] += MeasureOf(i);
  }

  // Nothing with less in all.
  std::optional<uint64_t> Find(uint64_t target) {
    size_t bucket = 0;
    while (bucket < kNumBuckets && histogram_[bucket] < target) target -= histogram_[bucket++];
    if (bucket == kNumBuckets) return std::nullopt;
    if (bucket != bucket_of_entries_) CollectEntries(bucket);
    return SelectByMeasure(entries_, target);
  }

 private:
  // Of gaps 1/32 wide, the last one open.
  static constexpr size_t kNumBuckets = 1024;

  static size_t BucketOf(float gap) {
    return gap < 31.9f ? static_cast<size_t>(static_cast<int32_t>(gap * 32.0f)) : kNumBuckets - 1;
  }
  void CollectEntries(size_t bucket) {
    bucket_of_entries_ = bucket;
    entries_.clear();
    for (size_t i = 0; i < near_.count; ++i) {
      if (BucketOf(near_.gaps[i]) != bucket) continue;
      entries_.push_back({KeyOf(near_.gaps[i], near_.tokens[i]), MeasureOf(i)});
    }
  }
  uint64_t MeasureOf(size_t i) const { return measures_ == nullptr ? 1 : measures_[i]; }

  const NearTokens& near_;
  const uint64_t* const measures_;
  std::array<uint64_t, kNumBuckets> histogram_ = {};
  // Of the bucket that was looked into last; targets that lie close together share it.
  std::vector<GapEntry> entries_;
  size_t bucket_of_entries_ = kNumBuckets;
};

// TokenWeight of each near token, and their sum.
std::vector<uint64_t> WeighNear(NearTokens& near, uint64_t& total) {
  // Up to a whole block.
  std::fill_n(near.gaps.get() + near.count, kTokenBlock, kInfinity);
  std::vector<uint64_t> weights((near.count + kTokenBlock - 1) / kTokenBlock * kTokenBlock);
  total = 0;
  for (size_t first = 0; first < near.count; first += kTokenBlock) {
    float gaps[kTokenBlock];
    uint64_t block[kTokenBlock];
    std::memcpy(gaps, near.gaps.get() + first, sizeof(gaps));
    TokenWeights(gaps, block);
    for (uint64_t weight : block) total += weight;
    std::memcpy(weights.data() + first, block, sizeof(block));
  }
  return weights;
}

// The weight that makes up a share `top_p` of `total`.
uint64_t TargetOf(float top_p, uint64_t total) {
  const double share = std::ceil(static_cast<double>(top_p) * static_cast<double>(total));
  // The double nearest to the total may lie above it.
  return std::max<uint64_t>(std::min(static_cast<uint64_t>(share), total), 1);
}

}  // namespace

PeakLogit FindPeak(absl::Span<const float> logits) {
  PeakLogit peak;
  peak.logit = -kInfinity;
  peak.of_blocks.resize((logits.size() + kTokenBlock - 1) / kTokenBlock);
  FindBlockPeaks(logits, absl::MakeSpan(peak.of_blocks));
  float best = -kInfinity;
  size_t block = 0;
  for (size_t index = 0; index < peak.of_blocks.size(); ++index) {
    if (peak.of_blocks[index] <= best) continue;
    best = peak.of_blocks[index];
    block = index;
  }
  if (best == -kInfinity) return peak;
  // Without the sign of -0, which a difference with 0 would pass on.
  peak.logit = best + 0.0f;
  peak.token = static_cast<TokenId>(block * kTokenBlock + FindInBlock(logits, block, best));
  return peak;
}

TokenGaps::TokenGaps(absl::Span<const float> logits, const PeakLogit& peak, float temperature)
    : logits_(logits),
      scale_{.best = peak.logit, .temperature = temperature},
      peak_token_(peak.token),
      minima_(peak.of_blocks.begin(), peak.of_blocks.end()) {
  assert(peak.logit > -kInfinity && temperature > 0.0f);
  // The same operations keep the order: the greatest logit of a block has its smallest gap.
  size_t next = 0;
  for (; next + kTokenBlock <= minima_.size(); next += kTokenBlock) {
    float logits_of_blocks[kTokenBlock];
    float gaps[kTokenBlock];
    std::memcpy(logits_of_blocks, &minima_[next], sizeof(gaps));
    LoadGaps(scale_, kEverything.gap, kTokenBlock, logits_of_blocks, gaps);
    std::memcpy(&minima_[next], gaps, sizeof(gaps));
  }
  for (; next < minima_.size(); ++next) minima_[next] = GapOf(scale_, minima_[next]);
}

float TokenGaps::gap(TokenId token) const {
  const float gap = GapOf(scale_, logits_[static_cast<size_t>(token)]);
  return KeyOf(gap, token) <= KeyOf(cut_.gap, cut_.last_token) ? gap : kInfinity;
}

void TokenGaps::LoadBlock(size_t index, float (&block)[kTokenBlock]) const {
  const size_t first = index * kTokenBlock;
  const int64_t last =
      std::clamp<int64_t>(int64_t{cut_.last_token} - static_cast<int64_t>(first), -1, kTokenBlock);
  float logits[kTokenBlock];
  const size_t count = std::min<size_t>(kTokenBlock, logits_.size() - first);
  std::memcpy(logits, logits_.data() + first, count * sizeof(float));
  std::fill(logits + count, logits + kTokenBlock, -kInfinity);
  LoadGaps(scale_, cut_.gap, static_cast<int32_t>(last), logits, block);
}

uint64_t TokenGaps::TotalWeight() const {
  uint64_t total = 0;
  for (size_t index = 0; index < num_blocks(); ++index) {
    if (MinimumOf(index) >= kWeightlessGap) continue;
    float block[kTokenBlock];
    uint64_t weights[kTokenBlock];
    LoadBlock(index, block);
    TokenWeights(block, weights);
    for (uint64_t weight : weights) total += weight;
  }
  return total;
}

std::vector<double> TokenGaps::Weights() const {
  std::vector<double> all(logits_.size());
  for (size_t index = 0; index < num_blocks(); ++index) {
    if (MinimumOf(index) >= kWeightlessGap) continue;
    float block[kTokenBlock];
    uint64_t weights[kTokenBlock];
    LoadBlock(index, block);
    TokenWeights(block, weights);
    const size_t first = index * kTokenBlock;
    const size_t count = std::min<size_t>(kTokenBlock, logits_.size() - first);
    std::transform(weights, weights + count, all.begin() + static_cast<ptrdiff_t>(first),
                   [](uint64_t weight) { return static_cast<double>(weight); });
  }
  return all;
}

NearTokens TokenGaps::FindNear(float bound, bool weigh_rest) const {
  NearTokens near(logits_.size());
  for (size_t index = 0; index < num_blocks(); ++index) {
    const float minimum = MinimumOf(index);
    const bool weighs = weigh_rest && minimum < kWeightlessGap;
    if (minimum > bound && !weighs) continue;
    float block[kTokenBlock];
    LoadBlock(index, block);
    const uint64_t found = FindUpTo(bound, block);
    for (uint64_t left = found; left != 0; left &= left - 1) {
      const int i = std::countr_zero(left);
      near.gaps[near.count] = block[i];
      near.tokens[near.count++] = static_cast<TokenId>(index * kTokenBlock) + i;
    }
    if (!weighs) continue;
    uint64_t weights[kTokenBlock];
    TokenWeights(block, weights);
    for (uint64_t left = ~found; left != 0; left &= left - 1)
      near.least_rest += weights[std::countr_zero(left)];
  }
  near.most_rest = near.least_rest;
  return near;
}

float TokenGaps::BoundOfCount(uint64_t count) const {
  if (count > num_blocks()) return kLargest;
  // As many blocks each hold a token at least as good as the worst of their minima.
  std::vector<float> minima(num_blocks());
  for (size_t index = 0; index < num_blocks(); ++index) minima[index] = MinimumOf(index);
  const auto last = minima.begin() + static_cast<ptrdiff_t>(count - 1);
  std::nth_element(minima.begin(), last, minima.end());
  return std::min(*last, kLargest);
}

TokenGaps::Cut TokenGaps::FindCutOfCount(uint64_t count) const {
  const NearTokens near = FindNear(BoundOfCount(count), /*weigh_rest=*/false);
  const std::optional<uint64_t> key = KeySearch(near, /*measures=*/nullptr).Find(count);
  return key.has_value() ? CutAt(*key) : kEverything;
}

void TokenGaps::Apply(const Cut& cut) {
  if (KeyOf(cut.gap, cut.last_token) < KeyOf(cut_.gap, cut_.last_token)) cut_ = cut;
}

TokenGaps::LikelyTokens TokenGaps::MostLikely(size_t count) const {
  LikelyTokens tokens;
  if (count == 0) return tokens;
  const float bound = BoundOfCount(count);
  absl::InlinedVector<uint64_t, 2 * kTokenBlock> keys;
  for (size_t index = 0; index < num_blocks(); ++index) {
    if (MinimumOf(index) > bound) continue;
    float block[kTokenBlock];
    LoadBlock(index, block);
    uint64_t left = FindUpTo(bound, block);
    size_t next = keys.size();
    keys.resize(next + static_cast<size_t>(std::popcount(left)));
    for (; left != 0; left &= left - 1) {
      const int i = std::countr_zero(left);
      keys[next++] = KeyOf(block[i], static_cast<TokenId>(index * kTokenBlock) + i);
    }
  }
  if (keys.size() > count) {
    std::nth_element(keys.begin(), keys.begin() + static_cast<ptrdiff_t>(count), keys.end());
    keys.resize(count);
  }
  std::sort(keys.begin(), keys.end());
  tokens.reserve(keys.size());
  for (const uint64_t key : keys) tokens.push_back({.token = CutAt(key).last_token, .gap = CutAt(key).gap});
  return tokens;
}

void TokenGaps::KeepTopK(uint32_t count) {
  assert(count > 0);
  if (count >= logits_.size()) return;
  Apply(FindCutOfCount(count));
}

// From a sample of blocks, and from the best token of every block, which counts for itself alone.
float TokenGaps::EstimateBoundOfShare(float top_p) const {
  constexpr size_t kNumSampled = 32;
  constexpr float kBucketsPerUnit = 4.0f;
  constexpr size_t kNumBuckets = 128;
  std::array<double, kNumBuckets> histogram = {};
  const auto count = [&](const float(&gaps)[kTokenBlock], double factor) {
    uint64_t weights[kTokenBlock];
    TokenWeights(gaps, weights);
    for (int i = 0; i < kTokenBlock; ++i) {
      if (gaps[i] >= kWeightlessGap) continue;
      histogram[static_cast<size_t>(gaps[i] * kBucketsPerUnit)] += factor * static_cast<double>(weights[i]);
    }
  };
  float gaps[kTokenBlock];
  for (size_t first = 0; first < num_blocks(); first += kTokenBlock) {
    for (size_t i = 0; i < kTokenBlock; ++i) {
      gaps[i] = first + i < num_blocks() ? MinimumOf(first + i) : kInfinity;
    }
    count(gaps, 1.0);
  }
  const size_t step = num_blocks() / kNumSampled + 1;
  for (size_t index = 0; index < num_blocks(); index += step) {
    LoadBlock(index, gaps);
    *std::min_element(gaps, gaps + kTokenBlock) = kInfinity;
    count(gaps, static_cast<double>(step));
  }
  const double total = std::accumulate(histogram.begin(), histogram.end(), 0.0);
  double sum = 0.0;
  size_t bucket = 0;
  while (bucket + 1 < kNumBuckets && sum + histogram[bucket] < top_p * total) sum += histogram[bucket++];
  return static_cast<float>(bucket + 2) / kBucketsPerUnit;
}

// The order needs the exact weights of the most likely tokens alone; what the others weigh together decides
// only together with them, and so roughly at first.
void TokenGaps::KeepTopP(float top_p) {
  constexpr float kFurther = 1.0f;
  for (float bound = EstimateBoundOfShare(top_p);; bound += kFurther) {
    // All that has weight.
    const bool is_all = bound >= kWeightlessGap;
    NearTokens near = [&] {
      if (is_all || cut_.gap < kLargest) return FindNear(bound, /*weigh_rest=*/!is_all);
      NearTokens collected(logits_.size());
      CollectNearTokens(scale_, logits_, bound, collected);
      return collected;
    }();
    uint64_t near_total = 0;
    const std::vector<uint64_t> weights = WeighNear(near, near_total);
    KeySearch search(near, weights.data());
    const auto find = [&](uint64_t total) { return search.Find(TargetOf(top_p, total)); };
    std::optional<uint64_t> key = find(near_total + near.most_rest);
    if (key.has_value() && near.least_rest != near.most_rest && key != find(near_total + near.least_rest)) {
      key = find(TotalWeight());
    }
    // Tokens beyond the bound come after what is well below it.
    if (is_all || (key.has_value() && CutAt(*key).gap < bound * static_cast<float>(1 - 8 * kBoundError))) {
      return Apply(CutAt(key.value()));
    }
  }
}

void TokenGaps::KeepMinP(float min_p) {
  const double limit = 0.0 - NaturalLog(min_p);
  float gap = static_cast<float>(limit);
  if (gap > limit) gap = std::bit_cast<float>(std::bit_cast<uint32_t>(gap) - 1);
  Apply({gap, kLastToken});
}

// The score of contenders in a block: of tokens whose noise may make their score `score` or more.
template <typename F>
void TokenGaps::ForContenders(const NoiseKey& key, size_t index, const double& score, F contender) const {
  const float minimum = MinimumOf(index);
  if (minimum > kMaxGumbel - score) return;
  const auto first = static_cast<TokenId>(index * kTokenBlock);
  uint32_t bits[kTokenBlock];
  uint64_t contenders = key.FindBits(first, LeastBitsOf(minimum + static_cast<float>(score)), bits);
  if (contenders == 0) return;
  float block[kTokenBlock];
  LoadBlock(index, block);
  for (; contenders != 0; contenders &= contenders - 1) {
    const int i = std::countr_zero(contenders);
    if (bits[i] < LeastBitsOf(block[i] + static_cast<float>(score))) continue;
    contender(
        NoisyToken{first + i, static_cast<double>(GumbelFromBits(bits[i])) - static_cast<double>(block[i])});
  }
}

TokenId TokenGaps::DrawWithNoise(uint64_t seed, uint32_t position) const {
  const NoiseKey key(seed, position);
  TokenId winner = peak_token_;
  double winning_score = GumbelNoise(seed, position, peak_token_);
  for (size_t index = 0; index < num_blocks(); ++index) {
    ForContenders(key, index, winning_score, [&](const NoisyToken& token) {
      if (token.score > winning_score || (token.score == winning_score && token.token < winner)) {
        winner = token.token;
        winning_score = token.score;
      }
    });
  }
  return winner;
}

std::vector<TokenGaps::NoisyToken> TokenGaps::BestWithNoise(uint64_t seed, uint32_t position,
                                                            size_t count) const {
  // A score below this is worse than the noise alone ever makes the best token's.
  constexpr double kLowestScore = -3.9;
  const NoiseKey key(seed, position);
  std::vector<NoisyToken> best;
  const auto is_better = [](const NoisyToken& a, const NoisyToken& b) {
    return a.score != b.score ? a.score > b.score : a.token < b.token;
  };
  double threshold = kLowestScore;
  for (size_t index = 0; index < num_blocks(); ++index) {
    ForContenders(key, index, threshold, [&](const NoisyToken& token) {
      if (token.score < threshold) return;
      best.insert(std::upper_bound(best.begin(), best.end(), token, is_better), token);
      if (best.size() > count) best.pop_back();
      if (best.size() == count) threshold = std::max(kLowestScore, best.back().score);
    });
  }
  return best;
}

}  // namespace tandem
