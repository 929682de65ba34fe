#pragma once

#include "common/engine/cpu/kernel_table.h"
#include "common/engine/cpu/vector_templates.h"

// How products whose sums stay in registers go through rows and tiles.

namespace tandem {
namespace {

template <int kNum>
struct Count {
  static constexpr int kValue = kNum;
};

// Calls body(Count<n>()) for n = `count`, 1 to kMost.
template <int kMost, typename Body>
TANDEM_INLINE void WithCount(uint32_t count, Body body) {
  if (count == kMost) {
    body(Count<kMost>());
  } else if constexpr (kMost > 1) {
    WithCount<kMost - 1>(count, body);
  }
}

// Tiles that all rows use before the next tiles.
inline constexpr uint32_t kTileGroup = 4;

// Some rows times some tiles.
struct ProductBlock {
  const char* tiles = nullptr;
  uint32_t first_row = 0;
  uint32_t first_output = 0;
  float* const* outputs = nullptr;  // Of the rows.
};

// Reads the weights once: kTileGroup tiles at a time, which stay in the cache for all chunks of rows. Calls
// body(Count<rows>(), Count<tiles>(), block). Chunks are as equal as possible and have at most kMaxRows rows.
// They go through Tiles::kAtOnce<rows> (4, 2 or 1) tiles at a time, and through the last tiles one by one.
template <int kMaxRows, typename Tiles, typename Body>
TANDEM_INLINE void ForProductBlocks(const ProductArgs& args, size_t tile_bytes, Body body) {
  const uint32_t num_chunks = (args.num_rows + kMaxRows - 1) / kMaxRows;
  for (uint32_t first = 0; first < args.num_tiles; first += kTileGroup) {
    const uint32_t end = args.num_tiles - first < kTileGroup ? args.num_tiles : first + kTileGroup;
    uint32_t row = 0;
    for (uint32_t chunk = 0; chunk < num_chunks; ++chunk) {
      const uint32_t num_rows = (args.num_rows - row) / (num_chunks - chunk);
      const auto block_at = [&](uint32_t tile) {
        return ProductBlock{.tiles = static_cast<const char*>(args.tiles) + tile * tile_bytes,
                            .first_row = row,
                            .first_output = args.first_output + tile * kTileOutputs,
                            .outputs = args.outputs + row};
      };
      WithCount<kMaxRows>(num_rows, [&](auto rows) {
        constexpr int kTiles = Tiles::template kAtOnce<decltype(rows)::kValue>;
        uint32_t tile = first;
        for (; tile + kTiles <= end; tile += kTiles) body(rows, Count<kTiles>(), block_at(tile));
        for (; tile < end; ++tile) body(rows, Count<1>(), block_at(tile));
      });
      row += num_rows;
    }
  }
}

}  // namespace
}  // namespace tandem
