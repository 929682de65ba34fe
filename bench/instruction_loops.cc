#include "bench/instruction_loops.h"

#include <cstring>

#include "common/engine/cpu/amx_permission.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tandem {
namespace {

// Enough chains for two units of latency 4 to 6.
constexpr int kChains = 12;

using Float4 = float __attribute__((vector_size(16)));
using Word4 = uint64_t __attribute__((vector_size(32)));

// Values for a chain x = x * factor + addend that stays near 1. Volatile: the compiler must not compute the
// result.
volatile float g_factor = 0.5f;
volatile float g_addend = 0.5f;

float PortableLoop(uint64_t iterations) {
  const float factor = g_factor, addend = g_addend;
  const Float4 factors = {factor, factor, factor, factor}, addends = {addend, addend, addend, addend};
  Float4 sums[kChains];
  for (Float4& sum : sums) sum = addends;
  for (uint64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (int chain = 0; chain < kChains; ++chain) sums[chain] = sums[chain] * factors + addends;
  }
  float total = 0;
  for (const Float4& sum : sums) total += sum[0];
  return total;
}

// Four streams.
uint64_t PortableRead(const char* begin, size_t num_bytes) {
  const size_t quarter = num_bytes / 4;
  Word4 sums[4] = {};
  for (size_t offset = 0; offset < quarter; offset += sizeof(Word4)) {
    for (size_t stream = 0; stream < 4; ++stream) {
      Word4 words;
      std::memcpy(&words, begin + stream * quarter + offset, sizeof(words));
      sums[stream] += words;
    }
  }
  const Word4 sum = sums[0] + sums[1] + sums[2] + sums[3];
  return sum[0] + sum[1] + sum[2] + sum[3];
}

#if defined(__x86_64__)

__attribute__((target("avx2,fma"))) float Avx2Loop(uint64_t iterations) {
  const __m256 factors = _mm256_set1_ps(g_factor), addends = _mm256_set1_ps(g_addend);
  __m256 sums[kChains];
  for (__m256& sum : sums) sum = addends;
  for (uint64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (int chain = 0; chain < kChains; ++chain) {
      sums[chain] = _mm256_fmadd_ps(sums[chain], factors, addends);
    }
  }
  for (int chain = 1; chain < kChains; ++chain) sums[0] = _mm256_add_ps(sums[0], sums[chain]);
  return _mm256_cvtss_f32(sums[0]);
}

__attribute__((target("avx512f"))) float Avx512Loop(uint64_t iterations) {
  const __m512 factors = _mm512_set1_ps(g_factor), addends = _mm512_set1_ps(g_addend);
  __m512 sums[kChains];
  for (__m512& sum : sums) sum = addends;
  for (uint64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (int chain = 0; chain < kChains; ++chain) {
      sums[chain] = _mm512_fmadd_ps(sums[chain], factors, addends);
    }
  }
  for (int chain = 1; chain < kChains; ++chain) sums[0] = _mm512_add_ps(sums[0], sums[chain]);
  return _mm512_cvtss_f32(sums[0]);
}

__attribute__((target("avx512f,avx512bf16"))) float Avx512Bf16Loop(uint64_t iterations) {
  const __m512 addends = _mm512_set1_ps(g_addend);
  const __m512bh halves = _mm512_cvtne2ps_pbh(addends, addends);
  __m512 sums[kChains];
  for (__m512& sum : sums) sum = addends;
  for (uint64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (int chain = 0; chain < kChains; ++chain) sums[chain] = _mm512_dpbf16_ps(sums[chain], halves, halves);
  }
  for (int chain = 1; chain < kChains; ++chain) sums[0] = _mm512_add_ps(sums[0], sums[chain]);
  return _mm512_cvtss_f32(sums[0]);
}

__attribute__((target("avx512f,avx512vnni"))) float Avx512Int8Loop(uint64_t iterations) {
  const __m512i bytes = _mm512_castps_si512(_mm512_set1_ps(g_factor));
  __m512i sums[kChains];
  for (__m512i& sum : sums) sum = bytes;
  for (uint64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (int chain = 0; chain < kChains; ++chain) {
      sums[chain] = _mm512_dpbusd_epi32(sums[chain], bytes, bytes);
    }
  }
  for (int chain = 1; chain < kChains; ++chain) sums[0] = _mm512_add_epi32(sums[0], sums[chain]);
  return static_cast<float>(_mm_cvtsi128_si32(_mm512_castsi512_si128(sums[0])));
}

__attribute__((target("avx512f"))) uint64_t Avx512Read(const char* begin, size_t num_bytes) {
  const size_t quarter = num_bytes / 4;
  __m512i sums[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(),
                     _mm512_setzero_si512()};
  for (size_t offset = 0; offset < quarter; offset += sizeof(__m512i)) {
#pragma GCC unroll 4
    for (size_t stream = 0; stream < 4; ++stream) {
      sums[stream] = _mm512_add_epi64(sums[stream], _mm512_loadu_si512(begin + stream * quarter + offset));
    }
  }
  const __m512i sum =
      _mm512_add_epi64(_mm512_add_epi64(sums[0], sums[1]), _mm512_add_epi64(sums[2], sums[3]));
  uint64_t words[8];
  _mm512_storeu_si512(words, sum);
  uint64_t total = 0;
  for (const uint64_t word : words) total += word;
  return total;
}

// Eight tiles of 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

__attribute__((target("amx-tile"))) void StartTiles() {
  // Static: the compiler believes that the instruction reads no more than a pointer's size of it, and would
  // leave out the rest.
  static const TileConfig config;
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
}

// Each instruction multiplies [16, 32] by [32, 16] in bfloat16; four sums are independent.
__attribute__((target("amx-tile,amx-bf16"))) float AmxBf16Loop(uint64_t iterations) {
  StartTiles();
  for (uint64_t i = 0; i < iterations; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 5, 6);
    _tile_dpbf16ps(2, 4, 6);
    _tile_dpbf16ps(3, 5, 6);
  }
  _tile_release();
  return 0.0f;
}

// [16, 64] by [64, 16] in int8.
__attribute__((target("amx-tile,amx-int8"))) float AmxInt8Loop(uint64_t iterations) {
  StartTiles();
  for (uint64_t i = 0; i < iterations; ++i) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 5, 6);
    _tile_dpbssd(2, 4, 6);
    _tile_dpbssd(3, 5, 6);
  }
  _tile_release();
  return 0.0f;
}

#endif

}  // namespace

std::vector<InstructionLoop> SupportedInstructionLoops() {
  std::vector<InstructionLoop> loops = {{"f32-portable", kChains * 4 * 2, &PortableLoop}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    loops.push_back({"f32-avx2", kChains * 8 * 2, &Avx2Loop});
  }
  if (__builtin_cpu_supports("avx512f")) {
    loops.push_back({"f32-avx512", kChains * 16 * 2, &Avx512Loop});
    if (__builtin_cpu_supports("avx512bf16")) {
      loops.push_back({"bf16-avx512", kChains * 32 * 2, &Avx512Bf16Loop});
    }
    if (__builtin_cpu_supports("avx512vnni")) {
      loops.push_back({"int8-avx512", kChains * 64 * 2, &Avx512Int8Loop});
    }
  }
  if (AmxAvailable()) {
    loops.push_back({"bf16-amx", 4 * 16 * 16 * 32 * 2, &AmxBf16Loop});
    loops.push_back({"int8-amx", 4 * 16 * 16 * 64 * 2, &AmxInt8Loop});
  }
#endif
  return loops;
}

ReadLoop BestReadLoop() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return &Avx512Read;
#endif
  return &PortableRead;
}

}  // namespace tandem
