#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

// Shared by products on AMX tiles. For sources that are compiled for AMX and AVX-512.

namespace tandem {
namespace {

constexpr uint32_t kTileRows = 16;
constexpr uint32_t kHalfOutputs = 16;
constexpr size_t kTileBytes = 1024;
constexpr size_t kTileStride = 64;

// Makes all earlier writes visible in memory. GCC assumes that a tile load reads no memory, and that a
// configuration is as long as a pointer, so it might omit or move writes for them.
inline __attribute__((always_inline)) void CompleteWrites() {
  __asm__ volatile("" ::: "memory");
}

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t column_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {kTileRows, kTileRows, kTileRows, kTileRows, kTileRows, kTileRows, kTileRows, kTileRows};
};

// Tiles 0 to 3 are sums, 4 and 5 inputs, both of `num_rows` rows (at most those of a tile): fewer rows cost
// less to load, multiply and store. 6 and 7 are weights.
inline void ConfigureTiles(uint32_t num_rows) {
  TileConfig config;
  for (int tile = 0; tile < 6; ++tile) {
    config.rows[tile] = static_cast<uint8_t>(num_rows < kTileRows ? num_rows : kTileRows);
  }
  // Exposes the address, so that the compiler must assume that it is read.
  const TileConfig* given = &config;
  __asm__ volatile("" : "+r"(given) : : "memory");
  _tile_loadconfig(given);
}

constexpr uint32_t kMostPairs = 16;

// How many pairs of blocks of inputs, each of `block_bytes`, go through the weights together: as many as fit
// into the second-level cache with a tile of weights, and at most kMostPairs.
inline uint32_t PairsAtOnce(size_t block_bytes) {
  constexpr size_t kInputBytes = size_t{5} << 18;
  constexpr size_t kFewest = 4;
  const size_t pairs = kInputBytes / (2 * block_bytes);
  return static_cast<uint32_t>(pairs < kFewest ? kFewest : pairs > kMostPairs ? kMostPairs : pairs);
}

// Of 16 outputs from `first_output` on, those that are not padding.
inline __mmask16 OutputMask(uint32_t first_output, uint32_t end_output) {
  const uint32_t left = first_output < end_output ? end_output - first_output : 0;
  return left >= kHalfOutputs ? 0xffff : static_cast<__mmask16>((1u << left) - 1);
}

}  // namespace
}  // namespace tandem
