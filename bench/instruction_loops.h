#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tandem {

// Independent multiply-adds on registers, as many in flight as the processor allows.
struct InstructionLoop {
  const char* name = nullptr;
  uint64_t operations_per_iteration = 0;
  float (*run)(uint64_t iterations) = nullptr;  // The result keeps the compiler from leaving the loop out.
};

// The loops that this machine can run. Asks the system for AMX, which a process may not use before.
std::vector<InstructionLoop> SupportedInstructionLoops();

// Reads `num_bytes`, a multiple of kReadGranularity, from the start of a cache line, with the widest loads
// there are, in four parts side by side. Returns a sum, so that the compiler cannot omit the reads.
using ReadLoop = uint64_t (*)(const char* begin, size_t num_bytes);
inline constexpr size_t kReadGranularity = 1024;
ReadLoop BestReadLoop();

}  // namespace tandem
