#include "common/speculation/token_blocks.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "common/speculation/simd_clones.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tandem {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

// Lanes of their own, so that the compiler need not know that the order of maxima does not matter.
TANDEM_SIMD_CLONES
void PeakOfLanes(const float (&logits)[kTokenBlock], float (&lanes)[16]) {
  for (int i = 0; i < 16; ++i) lanes[i] = -kInfinity;
  for (int first = 0; first < kTokenBlock; first += 16) {
    for (int i = 0; i < 16; ++i) lanes[i] = logits[first + i] > lanes[i] ? logits[first + i] : lanes[i];
  }
}

float PeakOfBlock(const float (&logits)[kTokenBlock]) {
  float lanes[16];
  PeakOfLanes(logits, lanes);
  return *std::max_element(lanes, lanes + 16);
}

// Block `index`, filled up with -infinity.
void CopyBlock(absl::Span<const float> logits, size_t index, float (&block)[kTokenBlock]) {
  const size_t first = index * kTokenBlock;
  const size_t count = std::min<size_t>(kTokenBlock, logits.size() - first);
  std::memcpy(block, logits.data() + first, count * sizeof(float));
  std::fill(block + count, block + kTokenBlock, -kInfinity);
}

// By the definition, exactly.
void CollectFromBlock(const GapScale& scale, const float (&logits)[kTokenBlock], TokenId first, float bound,
                      NearTokens& near) {
  float gaps[kTokenBlock];
  uint64_t weights[kTokenBlock];
  LoadGaps(scale, kLargest, kTokenBlock, logits, gaps);
  TokenWeights(gaps, weights);
  for (int i = 0; i < kTokenBlock; ++i) {
    if (gaps[i] <= bound) {
      near.gaps[near.count] = gaps[i];
      near.tokens[near.count++] = first + i;
    } else {
      near.least_rest += weights[i];
      near.most_rest += weights[i];
    }
  }
}

#if defined(__x86_64__)

#define TANDEM_AVX512 __attribute__((target("avx512f,avx512dq")))

// The maximum of two floats is the second where one of them is not a number.
TANDEM_AVX512 void FindPeaksAvx512(const float* logits, size_t num_blocks, float* peaks) {
  for (size_t index = 0; index < num_blocks; ++index, logits += kTokenBlock) {
    __m512 lanes = _mm512_set1_ps(-kInfinity);
    for (int i = 0; i < kTokenBlock; i += 16) lanes = _mm512_max_ps(_mm512_loadu_ps(logits + i), lanes);
    peaks[index] = _mm512_reduce_max_ps(lanes);
  }
}

// +infinity is the largest finite number.
TANDEM_AVX512 uint64_t FindEqualAvx512(const float (&logits)[kTokenBlock], float peak) {
  uint64_t found = 0;
  for (int i = 0; i < kTokenBlock; i += 16) {
    const __m512 logit = _mm512_min_ps(_mm512_set1_ps(kLargest), _mm512_loadu_ps(logits + i));
    found |= uint64_t{_mm512_cmp_ps_mask(logit, _mm512_set1_ps(peak), _CMP_EQ_OQ)} << i;
  }
  return found;
}

TANDEM_AVX512 void LoadGapsAvx512(const GapScale& scale, float cut_gap, int32_t last,
                                  const float (&logits)[kTokenBlock], float (&gaps)[kTokenBlock]) {
  const __m512 infinity = _mm512_set1_ps(kInfinity);
  const __m512 cut = _mm512_set1_ps(cut_gap);
  // Tokens up to `last`.
  const uint64_t first_ones = last < 0                  ? 0
                              : last >= kTokenBlock - 1 ? ~uint64_t{0}
                                                        : (uint64_t{2} << last) - 1;
  for (int i = 0; i < kTokenBlock; i += 16) {
    const __m512 logit = _mm512_min_ps(_mm512_set1_ps(kLargest), _mm512_loadu_ps(logits + i));
    const __m512 gap =
        _mm512_div_ps(_mm512_sub_ps(_mm512_set1_ps(scale.best), logit), _mm512_set1_ps(scale.temperature));
    const auto equal_ones = static_cast<__mmask16>(first_ones >> i);
    const __mmask16 kept = static_cast<__mmask16>(_mm512_cmp_ps_mask(gap, cut, _CMP_LT_OQ) |
                                                  (_mm512_cmp_ps_mask(gap, cut, _CMP_EQ_OQ) & equal_ones));
    const __mmask16 is_gap = _mm512_cmp_ps_mask(gap, _mm512_setzero_ps(), _CMP_GE_OQ);
    _mm512_storeu_ps(gaps + i, _mm512_mask_mov_ps(infinity, static_cast<__mmask16>(kept & is_gap), gap));
  }
}

TANDEM_AVX512 uint64_t FindUpToAvx512(float bound, const float (&gaps)[kTokenBlock]) {
  uint64_t found = 0;
  for (int i = 0; i < kTokenBlock; i += 16) {
    const __mmask16 near = _mm512_cmp_ps_mask(_mm512_loadu_ps(gaps + i), _mm512_set1_ps(bound), _CMP_LE_OQ);
    found |= uint64_t{near} << i;
  }
  return found;
}

// 2^t for t from -64 to 0: t = n + f with |f| <= 1/2, 2^f by its Taylor series up to f^6, whose remainder is
// below 2e-7 of it. With the roundings of t, which is off by 3 * 2^-24 of itself, exp(-gap) is off by less
// than kRestError of itself.
TANDEM_AVX512 inline __m512 PowerOfTwo(__m512 t) {
  const __m512 n = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(t, n);
  __m512 series = _mm512_set1_ps(1.54035304e-4f);
  series = _mm512_fmadd_ps(series, f, _mm512_set1_ps(1.33335581e-3f));
  series = _mm512_fmadd_ps(series, f, _mm512_set1_ps(9.61812911e-3f));
  series = _mm512_fmadd_ps(series, f, _mm512_set1_ps(5.55041087e-2f));
  series = _mm512_fmadd_ps(series, f, _mm512_set1_ps(2.40226507e-1f));
  series = _mm512_fmadd_ps(series, f, _mm512_set1_ps(6.93147181e-1f));
  series = _mm512_fmadd_ps(series, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(series, n);
}

struct NearBuffers {
  float* distances;
  TokenId* tokens;
};

// Whole blocks. Appends what is near with its distance to the best logit, for which there is room for all
// tokens and a vector more; returns the weight of all others in units of the best token's.
TANDEM_AVX512 double CollectAvx512(const GapScale& scale, const float* logits, size_t num_blocks, float bound,
                                   NearBuffers& to) {
  constexpr float kLog2E = 1.44269504f;
  const __m512 best = _mm512_set1_ps(scale.best);
  const __m512 factor = _mm512_set1_ps(-kLog2E / scale.temperature);
  const __m512 near_bound = _mm512_set1_ps(-kLog2E * bound);
  const __m512 far_bound = _mm512_set1_ps(-kLog2E * kWeightlessGap);
  __m512i tokens = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  __m512d total = _mm512_setzero_pd();
  for (size_t index = 0; index < num_blocks; ++index, logits += kTokenBlock) {
    __m512 rest = _mm512_setzero_ps();
    for (int i = 0; i < kTokenBlock; i += 16) {
      const __m512 logit = _mm512_min_ps(_mm512_set1_ps(kLargest), _mm512_loadu_ps(logits + i));
      const __m512 distance = _mm512_sub_ps(best, logit);
      // Of the same order as gaps, but reversed. Not a number is neither near nor far.
      const __m512 t = _mm512_mul_ps(distance, factor);
      const __mmask16 counts = _mm512_cmp_ps_mask(t, far_bound, _CMP_GE_OQ);
      const __mmask16 near = _mm512_cmp_ps_mask(t, near_bound, _CMP_GE_OQ);
      if (near != 0) {
        _mm512_storeu_ps(to.distances, _mm512_maskz_compress_ps(near, distance));
        _mm512_storeu_si512(to.tokens, _mm512_maskz_compress_epi32(near, tokens));
        const int count = __builtin_popcount(near);
        to.distances += count;
        to.tokens += count;
      }
      rest = _mm512_mask_add_ps(rest, static_cast<__mmask16>(counts & ~near), rest, PowerOfTwo(t));
      tokens = _mm512_add_epi32(tokens, _mm512_set1_epi32(16));
    }
    total = _mm512_add_pd(total, _mm512_cvtps_pd(_mm512_castps512_ps256(rest)));
    total = _mm512_add_pd(total, _mm512_cvtps_pd(_mm512_extractf32x8_ps(rest, 1)));
  }
  return _mm512_reduce_add_pd(total);
}

// The whole blocks.
void CollectWithAvx512(const GapScale& scale, absl::Span<const float> logits, float bound, NearTokens& near) {
  NearBuffers to = {near.gaps.get(), near.tokens.get()};
  const double rest = CollectAvx512(scale, logits.data(), logits.size() / kTokenBlock, bound, to);
  near.count = static_cast<size_t>(to.tokens - near.tokens.get());
  for (size_t i = 0; i < near.count; ++i) near.gaps[i] /= scale.temperature;
  const double units = rest * static_cast<double>(uint64_t{1} << kWeightBits);
  // Each weight is rounded to a whole number.
  const auto roundings = static_cast<double>(logits.size());
  near.least_rest = static_cast<uint64_t>(std::max(units * (1 - kRestError) - roundings, 0.0));
  near.most_rest = static_cast<uint64_t>(units * (1 + kRestError) + roundings);
}

#endif

}  // namespace

void FindBlockPeaks(absl::Span<const float> logits, absl::Span<float> peaks) {
  const size_t num_whole = logits.size() / kTokenBlock;
  size_t index = 0;
#if defined(__x86_64__)
  if (ComputesWithAvx512()) {
    FindPeaksAvx512(logits.data(), num_whole, peaks.data());
    index = num_whole;
  }
#endif
  for (; index < peaks.size(); ++index) {
    float block[kTokenBlock];
    CopyBlock(logits, index, block);
    peaks[index] = PeakOfBlock(block);
  }
  for (float& peak : peaks) peak = std::min(peak, kLargest);
}

size_t FindInBlock(absl::Span<const float> logits, size_t index, float peak) {
#if defined(__x86_64__)
  if (ComputesWithAvx512()) {
    float block[kTokenBlock];
    CopyBlock(logits, index, block);
    return static_cast<size_t>(std::countr_zero(FindEqualAvx512(block, peak)));
  }
#endif
  size_t token = index * kTokenBlock;
  while (std::min(logits[token], kLargest) != peak) ++token;
  return token - index * kTokenBlock;
}

NearTokens::NearTokens(size_t vocab_size)
    : gaps(std::make_unique_for_overwrite<float[]>(vocab_size + kTokenBlock)),
      tokens(std::make_unique_for_overwrite<TokenId[]>(vocab_size + kTokenBlock)) {}

float GapOf(const GapScale& scale, float logit) {
  const float distance = scale.best - (logit > kLargest ? kLargest : logit);
  return (distance >= 0.0f ? distance : kInfinity) / scale.temperature;
}

void LoadGaps(const GapScale& scale, float cut_gap, int32_t last, const float (&logits)[kTokenBlock],
              float (&gaps)[kTokenBlock]) {
#if defined(__x86_64__)
  if (ComputesWithAvx512()) return LoadGapsAvx512(scale, cut_gap, last, logits, gaps);
#endif
  // Equal gaps are beyond the cut after `last`: the next smaller float is the limit there.
  const float below = cut_gap > 0.0f ? std::bit_cast<float>(std::bit_cast<int32_t>(cut_gap) - 1) : -1.0f;
  const float best = scale.best;
  const float temperature = scale.temperature;
  for (int32_t i = 0; i < kTokenBlock; ++i) {
    const float limited = logits[i] > kLargest ? kLargest : logits[i];
    const float distance = best - limited;
    const float gap = (distance >= 0.0f ? distance : kInfinity) / temperature;
    const float limit = i <= last ? cut_gap : below;
    gaps[i] = gap <= limit ? gap : kInfinity;
  }
}

uint64_t FindUpTo(float bound, const float (&gaps)[kTokenBlock]) {
#if defined(__x86_64__)
  if (ComputesWithAvx512()) return FindUpToAvx512(bound, gaps);
#endif
  uint64_t found = 0;
  for (int i = 0; i < kTokenBlock; ++i) found |= static_cast<uint64_t>(gaps[i] <= bound) << i;
  return found;
}

void CollectNearTokens(const GapScale& scale, absl::Span<const float> logits, float bound, NearTokens& near) {
  size_t first = 0;
#if defined(__x86_64__)
  // Of colder ones the reciprocal may be infinite.
  constexpr float kLeastTemperature = 1e-30f;
  if (ComputesWithAvx512() && scale.temperature >= kLeastTemperature) {
    CollectWithAvx512(scale, logits, bound, near);
    first = logits.size() - logits.size() % kTokenBlock;
  }
#endif
  for (; first < logits.size(); first += kTokenBlock) {
    float block[kTokenBlock];
    CopyBlock(logits, first / kTokenBlock, block);
    CollectFromBlock(scale, block, static_cast<TokenId>(first), bound, near);
  }
}

}  // namespace tandem
