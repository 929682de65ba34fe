#include "common/speculation/token_gaps.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "common/speculation/gumbel.h"
#include "common/speculation/simd_clones.h"

namespace tandem {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr TokenId kLastToken = std::numeric_limits<TokenId>::max();

inline float Sanitised(float logit) {
  const float limited = logit > kLargest ? kLargest : logit;
  return limited == limited ? limited : -kInfinity;
}

// Integers in the order of the floats, with -0 equal to 0: the maximum of integers is the same in any order
// and so can be vectorised.
inline int32_t OrderOf(float logit) {
  const int32_t bits = std::bit_cast<int32_t>(Sanitised(logit) + 0.0f);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

TANDEM_SIMD_CLONES
int32_t HighestOrder(const float (&logits)[kTokenBlock]) {
  int32_t highest = std::numeric_limits<int32_t>::min();
  for (int i = 0; i < kTokenBlock; ++i) highest = std::max(highest, OrderOf(logits[i]));
  return highest;
}

// Smallest of `gaps`, none of which is negative or NaN, so that their bits are in their order.
inline float Smallest(const float (&gaps)[kTokenBlock]) {
  int32_t smallest = std::numeric_limits<int32_t>::max();
  for (int i = 0; i < kTokenBlock; ++i) smallest = std::min(smallest, std::bit_cast<int32_t>(gaps[i]));
  return std::bit_cast<float>(smallest);
}

// Replaces logits by gaps and returns the smallest.
TANDEM_SIMD_CLONES
float ToGaps(float best, float temperature, float (&block)[kTokenBlock]) {
  for (int i = 0; i < kTokenBlock; ++i) {
    const float limited = block[i] > kLargest ? kLargest : block[i];
    const float distance = best - limited;
    block[i] = (distance >= 0.0f ? distance : kInfinity) / temperature;
  }
  return Smallest(block);
}

// Sets gaps beyond the cut to infinity and returns the smallest of the block. `last` is the cut's last token
// minus the block's first.
TANDEM_SIMD_CLONES
float CutBlock(float cut_gap, int32_t last, float (&block)[kTokenBlock]) {
  // Equal gaps are beyond the cut after `last`: the next smaller float is the limit there.
  const float below = cut_gap > 0.0f ? std::bit_cast<float>(std::bit_cast<int32_t>(cut_gap) - 1) : -1.0f;
  for (int32_t i = 0; i < kTokenBlock; ++i) {
    const float limit = i <= last ? cut_gap : below;
    block[i] = block[i] <= limit ? block[i] : kInfinity;
  }
  return Smallest(block);
}

// The bucket of each gap, 1/32 wide and the last one open; `num_buckets` for gaps beyond `bound`. Integers
// again, for the sake of vectorising.
TANDEM_SIMD_CLONES
void FindBuckets(const float (&gaps)[kTokenBlock], float bound, int32_t num_buckets,
                 int32_t (&buckets)[kTokenBlock]) {
  for (int i = 0; i < kTokenBlock; ++i) {
    const int32_t gap_bits = std::bit_cast<int32_t>(gaps[i]);
    const float limited = std::bit_cast<float>(std::min(gap_bits, std::bit_cast<int32_t>(1024.0f)));
    const int32_t bucket = std::min(static_cast<int32_t>(limited * 32.0f), num_buckets - 1);
    buckets[i] = gap_bits > std::bit_cast<int32_t>(bound) ? num_buckets : bucket;
  }
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

}  // namespace

PeakLogit FindPeak(absl::Span<const float> logits) {
  int32_t best = OrderOf(-kInfinity);
  size_t best_first = 0;
  for (size_t first = 0; first < logits.size(); first += kTokenBlock) {
    float block[kTokenBlock];
    const size_t count = std::min<size_t>(kTokenBlock, logits.size() - first);
    if (count < kTokenBlock) std::fill(block + count, block + kTokenBlock, -kInfinity);
    std::memcpy(block, logits.data() + first, count * sizeof(float));
    const int32_t highest = HighestOrder(block);
    if (highest > best) {
      best = highest;
      best_first = first;
    }
  }
  if (best == OrderOf(-kInfinity)) return {-kInfinity, 0};
  size_t token = best_first;
  while (OrderOf(logits[token]) != best) ++token;
  // Without the sign of -0, which a difference with 0 would pass on.
  return {Sanitised(logits[token]) + 0.0f, static_cast<TokenId>(token)};
}

TokenGaps::TokenGaps(absl::Span<float> logits, const PeakLogit& peak, float temperature)
    : gaps_(logits), peak_token_(peak.token), minima_((logits.size() + kTokenBlock - 1) / kTokenBlock) {
  assert(peak.logit > -kInfinity && temperature > 0.0f);
  for (size_t index = 0; index < num_blocks(); ++index) {
    float block[kTokenBlock];
    LoadBlock(index, block);
    const size_t first = index * kTokenBlock;
    const size_t count = std::min<size_t>(kTokenBlock, gaps_.size() - first);
    // What lies beyond the last token is padded with +infinity, which as a logit would be the best.
    std::fill(block + count, block + kTokenBlock, -kInfinity);
    minima_[index] = ToGaps(peak.logit, temperature, block);
    std::memcpy(gaps_.data() + first, block, count * sizeof(float));
  }
}

uint64_t TokenGaps::Key(float gap, TokenId token) {
  return uint64_t{std::bit_cast<uint32_t>(gap)} << 32 | static_cast<uint32_t>(token);
}

void TokenGaps::LoadBlock(size_t index, float (&block)[kTokenBlock]) const {
  const size_t first = index * kTokenBlock;
  const size_t count = std::min<size_t>(kTokenBlock, gaps_.size() - first);
  if (count == kTokenBlock) {
    std::memcpy(block, gaps_.data() + first, sizeof(block));
  } else {
    std::memcpy(block, gaps_.data() + first, count * sizeof(float));
    std::fill(block + count, block + kTokenBlock, kInfinity);
  }
}

uint64_t TokenGaps::TotalWeight() const {
  uint64_t total = 0;
  for (size_t index = 0; index < num_blocks(); ++index) {
    if (minima_[index] == kInfinity) continue;
    float block[kTokenBlock];
    uint64_t weights[kTokenBlock];
    LoadBlock(index, block);
    TokenWeights(block, weights);
    for (uint64_t weight : weights) total += weight;
  }
  return total;
}

std::vector<double> TokenGaps::Weights() const {
  std::vector<double> all(gaps_.size());
  for (size_t index = 0; index < num_blocks(); ++index) {
    if (minima_[index] == kInfinity) continue;
    float block[kTokenBlock];
    uint64_t weights[kTokenBlock];
    LoadBlock(index, block);
    TokenWeights(block, weights);
    const size_t first = index * kTokenBlock;
    const size_t count = std::min<size_t>(kTokenBlock, gaps_.size() - first);
    std::transform(weights, weights + count, all.begin() + static_cast<ptrdiff_t>(first),
                   [](uint64_t weight) { return static_cast<double>(weight); });
  }
  return all;
}

float TokenGaps::BoundOfCount(uint64_t count) const {
  if (count > num_blocks()) return kLargest;
  // As many blocks each hold a token at least as good as the worst of their minima.
  std::vector<float> minima = minima_;
  std::nth_element(minima.begin(), minima.begin() + (count - 1), minima.end());
  return std::min(minima[count - 1], kLargest);
}

TokenGaps::Histogram TokenGaps::Measure(float bound, bool weighted) const {
  Histogram histogram = {};
  float block[kTokenBlock];
  int32_t buckets[kTokenBlock];
  uint64_t measures[kTokenBlock];
  std::fill(measures, measures + kTokenBlock, 1);
  for (size_t index = 0; index < num_blocks(); ++index) {
    if (minima_[index] > bound) continue;
    LoadBlock(index, block);
    if (weighted) TokenWeights(block, measures);
    FindBuckets(block, bound, kNumBuckets, buckets);
    for (int i = 0; i < kTokenBlock; ++i) {
      if (buckets[i] < kNumBuckets) histogram[buckets[i]] += measures[i];
    }
  }
  return histogram;
}

TokenGaps::Cut TokenGaps::FindCut(const Histogram& histogram, uint64_t target, float bound,
                                  bool weighted) const {
  int bucket = 0;
  while (bucket < kNumBuckets && histogram[bucket] < target) target -= histogram[bucket++];
  if (bucket == kNumBuckets) return {kLargest, kLastToken};

  std::vector<GapEntry> entries;
  for (size_t index = 0; index < num_blocks(); ++index) {
    if (minima_[index] > bound) continue;
    float block[kTokenBlock];
    int32_t buckets[kTokenBlock];
    LoadBlock(index, block);
    FindBuckets(block, bound, kNumBuckets, buckets);
    for (int i = 0; i < kTokenBlock; ++i) {
      if (buckets[i] != bucket) continue;
      const TokenId token = static_cast<TokenId>(index * kTokenBlock + i);
      entries.push_back({Key(block[i], token), weighted ? TokenWeight(block[i]) : 1});
    }
  }
  const uint64_t key = SelectByMeasure(entries, target);
  return {std::bit_cast<float>(static_cast<uint32_t>(key >> 32)), static_cast<TokenId>(key & 0xffffffff)};
}

TokenGaps::Cut TokenGaps::FindCutOfCount(uint64_t count) const {
  const float bound = BoundOfCount(count);
  return FindCut(Measure(bound, /*weighted=*/false), count, bound, /*weighted=*/false);
}

void TokenGaps::Apply(const Cut& cut) {
  for (size_t index = 0; index < num_blocks(); ++index) {
    if (minima_[index] == kInfinity) continue;
    const size_t first = index * kTokenBlock;
    const int64_t last = int64_t{cut.last_token} - static_cast<int64_t>(first);
    float block[kTokenBlock];
    LoadBlock(index, block);
    minima_[index] = CutBlock(cut.gap, static_cast<int32_t>(std::max<int64_t>(last, -1)), block);
    std::memcpy(gaps_.data() + first, block,
                std::min<size_t>(kTokenBlock, gaps_.size() - first) * sizeof(float));
  }
}

std::vector<TokenId> TokenGaps::MostLikely(size_t count) const {
  std::vector<TokenId> tokens;
  if (count == 0) return tokens;
  const Cut cut = FindCutOfCount(count);
  for (size_t index = 0; index < num_blocks(); ++index) {
    if (minima_[index] > cut.gap) continue;
    const size_t first = index * kTokenBlock;
    for (size_t token = first; token < std::min(first + kTokenBlock, gaps_.size()); ++token) {
      if (Key(gaps_[token], static_cast<TokenId>(token)) <= Key(cut.gap, cut.last_token)) {
        tokens.push_back(static_cast<TokenId>(token));
      }
    }
  }
  std::sort(tokens.begin(), tokens.end(),
            [this](TokenId a, TokenId b) { return Key(gaps_[a], a) < Key(gaps_[b], b); });
  return tokens;
}

void TokenGaps::KeepTopK(uint32_t count) {
  assert(count > 0);
  if (count >= gaps_.size()) return;
  Apply(FindCutOfCount(count));
}

void TokenGaps::KeepTopP(float top_p) {
  const Histogram histogram = Measure(kLargest, /*weighted=*/true);
  const uint64_t total = std::accumulate(histogram.begin(), histogram.end(), uint64_t{0});
  const double share = std::ceil(static_cast<double>(top_p) * static_cast<double>(total));
  // The double nearest to the total may lie above it.
  const uint64_t target = std::min(static_cast<uint64_t>(share), total);
  Apply(FindCut(histogram, std::max<uint64_t>(target, 1), kLargest, /*weighted=*/true));
}

void TokenGaps::KeepMinP(float min_p) {
  const double limit = 0.0 - NaturalLog(min_p);
  float gap = static_cast<float>(limit);
  if (gap > limit) gap = std::bit_cast<float>(std::bit_cast<uint32_t>(gap) - 1);
  Apply({gap, kLastToken});
}

TokenId TokenGaps::DrawWithNoise(uint64_t seed, uint32_t position) const {
  TokenId winner = peak_token_;
  double winning_score = GumbelNoise(seed, position, peak_token_);
  for (size_t index = 0; index < num_blocks(); ++index) {
    if (minima_[index] > kMaxGumbel - winning_score) continue;
    const TokenId first = static_cast<TokenId>(index * kTokenBlock);
    float block[kTokenBlock];
    uint32_t bits[kTokenBlock];
    LoadBlock(index, block);
    uint64_t contenders =
        FindContenders(seed, position, first, block, static_cast<float>(winning_score), bits);
    for (; contenders != 0; contenders &= contenders - 1) {
      const int i = std::countr_zero(contenders);
      const double score = static_cast<double>(GumbelFromBits(bits[i])) - static_cast<double>(block[i]);
      const TokenId token = first + i;
      if (score > winning_score || (score == winning_score && token < winner)) {
        winner = token;
        winning_score = score;
      }
    }
  }
  return winner;
}

std::vector<TokenGaps::NoisyToken> TokenGaps::BestWithNoise(uint64_t seed, uint32_t position,
                                                            size_t count) const {
  // A score below this is worse than the noise alone ever makes the best token's.
  constexpr double kLowestScore = -3.9;
  std::vector<NoisyToken> best;
  const auto is_better = [](const NoisyToken& a, const NoisyToken& b) {
    return a.score != b.score ? a.score > b.score : a.token < b.token;
  };
  double threshold = kLowestScore;
  for (size_t index = 0; index < num_blocks(); ++index) {
    if (minima_[index] > kMaxGumbel - threshold) continue;
    const auto first = static_cast<TokenId>(index * kTokenBlock);
    float block[kTokenBlock];
    uint32_t bits[kTokenBlock];
    LoadBlock(index, block);
    uint64_t contenders = FindContenders(seed, position, first, block, static_cast<float>(threshold), bits);
    for (; contenders != 0; contenders &= contenders - 1) {
      const int i = std::countr_zero(contenders);
      const NoisyToken token{first + i,
                             static_cast<double>(GumbelFromBits(bits[i])) - static_cast<double>(block[i])};
      if (token.score < threshold) continue;
      best.insert(std::upper_bound(best.begin(), best.end(), token, is_better), token);
      if (best.size() > count) best.pop_back();
      if (best.size() == count) threshold = std::max(kLowestScore, best.back().score);
    }
  }
  return best;
}

}  // namespace tandem
