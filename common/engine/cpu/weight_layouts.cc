#include "common/engine/cpu/weight_layouts.h"

#include <bit>
#include <cstring>

#include "common/engine/cpu/transpose.h"
#include "common/model/tensor_convert.h"

// The loops over blocks are compiled to vector instructions that every processor has.

namespace tandem {
namespace {

uint16_t UpperHalf(float value) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
}

float FromUpperHalf(uint16_t half) {
  return std::bit_cast<float>(static_cast<uint32_t>(half) << 16);
}

// The place of output `output` in a line of bfloat16 pairs.
uint32_t PairedIndex(uint32_t output) {
  return output < kLanes ? 2 * output : 2 * (output - kLanes) + 1;
}

// The place of weight (output, k) in AMX tiles.
size_t AmxIndex(uint32_t output, uint32_t k) {
  constexpr size_t kTileElements = 512;
  const size_t tile = size_t{k / 32} * 2 + output / 16;
  return tile * kTileElements + size_t{k % 32 / 2} * 32 + output % 16 * 2 + k % 2;
}

// The place of weight (output, k) in quads.
size_t QuadIndex(uint32_t output, uint32_t k) {
  return (size_t{k / 4} * kTileOutputs + output) * 4 + k % 4;
}

// The place of weight (output, k) in chains.
size_t ChainIndex(uint32_t output, uint32_t k) {
  const uint32_t line = k / 4 * 2 + k % 2;
  return (size_t{line} * kTileOutputs + output) * 2 + (k % 4 < 2 ? 1 : 0);
}

using Kind = PlainOutputs::Kind;

// The bits of a tile's numbers of kPackedInputs inputs, as float32 or as bfloat16.
struct WordBlock {
  alignas(64) uint32_t rows[kTileOutputs][kPackedInputs];
};
struct HalfBlock {
  alignas(64) uint16_t rows[kTileOutputs][kPackedInputs];
};

template <Kind kKind>
void ReadWords(const PlainOutputs& weights, uint32_t begin, WordBlock* block) {
  for (uint32_t output = 0; output < kTileOutputs; ++output) {
    uint32_t* const to = block->rows[output];
    if constexpr (kKind == Kind::kF32) {
      std::memcpy(to, weights.outputs[output] + size_t{begin} * sizeof(float), sizeof(block->rows[0]));
    } else {
      uint16_t from[kPackedInputs];
      std::memcpy(from, weights.outputs[output] + size_t{begin} * sizeof(uint16_t), sizeof(from));
      for (uint32_t k = 0; k < kPackedInputs; ++k) {
        to[k] = kKind == Kind::kBF16 ? static_cast<uint32_t>(from[k]) << 16
                                     : std::bit_cast<uint32_t>(HalfToFloat(from[k]));
      }
    }
  }
}

void ReadHalves(const PlainOutputs& weights, uint32_t begin, HalfBlock* block) {
  for (uint32_t output = 0; output < kTileOutputs; ++output) {
    uint16_t* const to = block->rows[output];
    if (weights.kind == Kind::kBF16) {
      std::memcpy(to, weights.outputs[output] + size_t{begin} * sizeof(uint16_t), sizeof(block->rows[0]));
      continue;
    }
    uint32_t from[kPackedInputs];
    std::memcpy(from, weights.outputs[output] + size_t{begin} * sizeof(float), sizeof(from));
    for (uint32_t k = 0; k < kPackedInputs; ++k) to[k] = static_cast<uint16_t>(from[k] >> 16);
  }
}

template <Kind kKind>
void PackF32Lines(const PlainOutputs& weights, uint32_t begin, uint32_t end, void* tile) {
  WordBlock block;
  for (uint32_t k = begin; k < end; k += kPackedInputs) {
    ReadWords<kKind>(weights, k, &block);
    for (uint32_t half = 0; half < kTileOutputs; half += 16) {
      for (uint32_t column = 0; column < kPackedInputs; column += 16) {
        uint32_t* const lines = static_cast<uint32_t*>(tile) + size_t{k + column} * kTileOutputs + half;
        TransposeWords(&block.rows[half][column], kPackedInputs, lines, kTileOutputs);
      }
    }
  }
}

void PackF32Tile(const PlainOutputs& weights, uint32_t begin, uint32_t end, void* tile) {
  switch (weights.kind) {
    case Kind::kF32:
      return PackF32Lines<Kind::kF32>(weights, begin, end, tile);
    case Kind::kF16:
      return PackF32Lines<Kind::kF16>(weights, begin, end, tile);
    case Kind::kBF16:
      return PackF32Lines<Kind::kBF16>(weights, begin, end, tile);
  }
}

void PackBf16LinesTile(const PlainOutputs& weights, uint32_t begin, uint32_t end, void* tile) {
  HalfBlock block;
  // Neighbours in a line, as words.
  alignas(64) uint32_t pairs[kLanes][kPackedInputs];
  for (uint32_t k = begin; k < end; k += kPackedInputs) {
    ReadHalves(weights, k, &block);
    for (uint32_t output = 0; output < kLanes; ++output) {
      for (uint32_t i = 0; i < kPackedInputs; ++i) {
        pairs[output][i] = block.rows[output][i] | static_cast<uint32_t>(block.rows[output + kLanes][i])
                                                       << 16;
      }
    }
    for (uint32_t column = 0; column < kPackedInputs; column += 16) {
      uint32_t* const lines = static_cast<uint32_t*>(tile) + size_t{k + column} * kLanes;
      TransposeWords(&pairs[0][column], kPackedInputs, lines, kLanes);
    }
  }
}

// Lines of pairs of inputs, as words: [kPackedInputs / 2][kTileOutputs].
struct PairLines {
  alignas(64) uint32_t lines[kPackedInputs / 2][kTileOutputs];
};
void ReadPairLines(const PlainOutputs& weights, uint32_t begin, PairLines* pairs) {
  HalfBlock block;
  ReadHalves(weights, begin, &block);
  WordBlock words;
  constexpr size_t kRowWords = kPackedInputs / 2;
  std::memcpy(words.rows, block.rows, sizeof(block.rows));
  for (uint32_t half = 0; half < kTileOutputs; half += 16) {
    TransposeWords(&words.rows[0][0] + half * kRowWords, kRowWords, &pairs->lines[0][half], kTileOutputs);
  }
}

void PackAmxTile(const PlainOutputs& weights, uint32_t begin, uint32_t end, void* tile) {
  PairLines pairs;
  for (uint32_t k = begin; k < end; k += kPackedInputs) {
    ReadPairLines(weights, k, &pairs);
    for (uint32_t output = 0; output < kTileOutputs; output += 16) {
      for (uint32_t line = 0; line < kPackedInputs / 2; ++line) {
        std::memcpy(static_cast<uint16_t*>(tile) + AmxIndex(output, k + 2 * line), &pairs.lines[line][output],
                    16 * sizeof(uint32_t));
      }
    }
  }
}

void PackQuadsTile(const PlainOutputs& weights, uint32_t begin, uint32_t end, void* tile) {
  HalfBlock block;
  for (uint32_t k = begin; k < end; k += kPackedInputs) {
    ReadHalves(weights, k, &block);
    for (uint32_t quad = 0; quad < kPackedInputs; quad += 4) {
      auto* const to = static_cast<uint16_t*>(tile) + QuadIndex(0, k + quad);
      for (uint32_t output = 0; output < kTileOutputs; ++output) {
        std::memcpy(to + 4 * output, &block.rows[output][quad], 4 * sizeof(uint16_t));
      }
    }
  }
}

void PackChainsTile(const PlainOutputs& weights, uint32_t begin, uint32_t end, void* tile) {
  PairLines pairs;
  for (uint32_t k = begin; k < end; k += kPackedInputs) {
    ReadPairLines(weights, k, &pairs);
    auto* const to = static_cast<uint32_t*>(tile) + ChainIndex(0, k + 2) / 2;
    for (uint32_t line = 0; line < kPackedInputs / 2; line += 2) {
      for (uint32_t output = 0; output < kTileOutputs; ++output) {
        // Inputs 0 and 1, and 2 and 3, become 2 and 0, and 3 and 1.
        const uint32_t first = pairs.lines[line][output], second = pairs.lines[line + 1][output];
        to[size_t{line} * kTileOutputs + output] = first << 16 | (second & 0xffff);
        to[size_t{line + 1} * kTileOutputs + output] = (first & 0xffff0000) | second >> 16;
      }
    }
  }
}

}  // namespace

WeightLayout F32Lines() {
  WeightLayout layout;
  layout.tile_bytes = [](uint32_t depth) { return uint64_t{depth} * kTileOutputs * sizeof(float); };
  layout.pack = [](const float* weights, uint32_t depth, uint32_t output, void* tile) {
    float* to = static_cast<float*>(tile) + output;
    for (uint32_t k = 0; k < depth; ++k) to[size_t{k} * kTileOutputs] = weights[k];
  };
  layout.pack_tile = PackF32Tile;
  layout.unpack = [](const void* tile, uint32_t depth, uint32_t output, float* weights) {
    const float* from = static_cast<const float*>(tile) + output;
    for (uint32_t k = 0; k < depth; ++k) weights[k] = from[size_t{k} * kTileOutputs];
  };
  return layout;
}

WeightLayout Bf16Lines() {
  WeightLayout layout;
  layout.tile_bytes = [](uint32_t depth) { return uint64_t{depth} * kTileOutputs * sizeof(uint16_t); };
  layout.pack = [](const float* weights, uint32_t depth, uint32_t output, void* tile) {
    uint16_t* to = static_cast<uint16_t*>(tile) + PairedIndex(output);
    for (uint32_t k = 0; k < depth; ++k) to[size_t{k} * kTileOutputs] = UpperHalf(weights[k]);
  };
  layout.pack_tile = PackBf16LinesTile;
  layout.unpack = [](const void* tile, uint32_t depth, uint32_t output, float* weights) {
    const uint16_t* from = static_cast<const uint16_t*>(tile) + PairedIndex(output);
    for (uint32_t k = 0; k < depth; ++k) weights[k] = FromUpperHalf(from[size_t{k} * kTileOutputs]);
  };
  return layout;
}

WeightLayout Bf16AmxTiles() {
  WeightLayout layout;
  layout.tile_bytes = [](uint32_t depth) {
    return (uint64_t{depth} + 31) / 32 * 32 * kTileOutputs * sizeof(uint16_t);
  };
  layout.pack = [](const float* weights, uint32_t depth, uint32_t output, void* tile) {
    auto* to = static_cast<uint16_t*>(tile);
    for (uint32_t k = 0; k < depth; ++k) to[AmxIndex(output, k)] = UpperHalf(weights[k]);
  };
  layout.pack_tile = PackAmxTile;
  layout.unpack = [](const void* tile, uint32_t depth, uint32_t output, float* weights) {
    const auto* from = static_cast<const uint16_t*>(tile);
    for (uint32_t k = 0; k < depth; ++k) weights[k] = FromUpperHalf(from[AmxIndex(output, k)]);
  };
  return layout;
}

WeightLayout Bf16Quads() {
  WeightLayout layout;
  layout.tile_bytes = [](uint32_t depth) {
    return (uint64_t{depth} + 3) / 4 * 4 * kTileOutputs * sizeof(uint16_t);
  };
  layout.pack = [](const float* weights, uint32_t depth, uint32_t output, void* tile) {
    auto* to = static_cast<uint16_t*>(tile);
    for (uint32_t k = 0; k < depth; ++k) to[QuadIndex(output, k)] = UpperHalf(weights[k]);
  };
  layout.pack_tile = PackQuadsTile;
  layout.unpack = [](const void* tile, uint32_t depth, uint32_t output, float* weights) {
    const auto* from = static_cast<const uint16_t*>(tile);
    for (uint32_t k = 0; k < depth; ++k) weights[k] = FromUpperHalf(from[QuadIndex(output, k)]);
  };
  return layout;
}

WeightLayout Bf16Chains() {
  WeightLayout layout;
  layout.tile_bytes = Bf16AmxTiles().tile_bytes;
  layout.pack = [](const float* weights, uint32_t depth, uint32_t output, void* tile) {
    auto* to = static_cast<uint16_t*>(tile);
    for (uint32_t k = 0; k < depth; ++k) to[ChainIndex(output, k)] = UpperHalf(weights[k]);
  };
  layout.pack_tile = PackChainsTile;
  layout.unpack = [](const void* tile, uint32_t depth, uint32_t output, float* weights) {
    const auto* from = static_cast<const uint16_t*>(tile);
    for (uint32_t k = 0; k < depth; ++k) weights[k] = FromUpperHalf(from[ChainIndex(output, k)]);
  };
  return layout;
}

}  // namespace tandem
