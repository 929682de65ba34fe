#pragma once

#include <cstring>
#include <random>
#include <vector>

#include "common/engine/cpu/kernels.h"

namespace tandem {

// The instruction sets that this machine runs.
inline std::vector<const KernelTable*> AllKernels() {
  std::vector<const KernelTable*> all;
  for (InstructionSet instruction_set : SupportedInstructionSets()) {
    all.push_back(SelectKernels(instruction_set).value());
  }
#if defined(__x86_64__)
  // What a machine without VNNI would select.
  if (SelectKernels(InstructionSet::kAvx512).ok()) all.push_back(&Avx512Kernels());
  // One of these is selected.
  if (SelectKernels(InstructionSet::kAvx512Bf16).ok()) {
    all.push_back(&Avx512Bf16Kernels());
    all.push_back(&Avx512Bf16MultiplyAddKernels());
  }
#endif
  return all;
}

// Numbers in [-scale, scale).
inline std::vector<float> Random(size_t count, uint64_t seed, float scale = 1) {
  std::mt19937_64 random(seed);
  std::vector<float> values(count);
  for (float& value : values) value = scale * (static_cast<float>(random() >> 40) * 0x1p-23f - 1);
  return values;
}

inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace tandem
