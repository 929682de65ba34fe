#include "common/engine/cpu/weight_layouts.h"

#include <bit>

namespace tandem {
namespace {

uint16_t UpperHalf(float value) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
}

float FromUpperHalf(uint16_t half) {
  return std::bit_cast<float>(static_cast<uint32_t>(half) << 16);
}

// Of output `output` in a line of bfloat16 pairs.
uint32_t PairedIndex(uint32_t output) {
  return output < kLanes ? 2 * output : 2 * (output - kLanes) + 1;
}

// Of weight (output, k) in AMX tiles.
size_t AmxIndex(uint32_t output, uint32_t k) {
  constexpr size_t kTileElements = 512;
  const size_t tile = size_t{k / 32} * 2 + output / 16;
  return tile * kTileElements + size_t{k % 32 / 2} * 32 + output % 16 * 2 + k % 2;
}

// Of weight (output, k) in quads.
size_t QuadIndex(uint32_t output, uint32_t k) {
  return (size_t{k / 4} * kTileOutputs + output) * 4 + k % 4;
}

// Of weight (output, k) in chains.
size_t ChainIndex(uint32_t output, uint32_t k) {
  const uint32_t line = k / 4 * 2 + k % 2;
  return (size_t{line} * kTileOutputs + output) * 2 + (k % 4 < 2 ? 1 : 0);
}

}  // namespace

WeightLayout F32Lines() {
  WeightLayout layout;
  layout.tile_bytes = [](uint32_t depth) { return uint64_t{depth} * kTileOutputs * sizeof(float); };
  layout.pack = [](const float* weights, uint32_t depth, uint32_t output, void* tile) {
    float* to = static_cast<float*>(tile) + output;
    for (uint32_t k = 0; k < depth; ++k) to[size_t{k} * kTileOutputs] = weights[k];
  };
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
  layout.unpack = [](const void* tile, uint32_t depth, uint32_t output, float* weights) {
    const auto* from = static_cast<const uint16_t*>(tile);
    for (uint32_t k = 0; k < depth; ++k) weights[k] = FromUpperHalf(from[ChainIndex(output, k)]);
  };
  return layout;
}

}  // namespace tandem
