#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tandem {

// Independent multiply-adds on registers alone, as many in flight as the processor takes.
struct InstructionLoop {
  const char* name = nullptr;
  uint64_t operations_per_iteration = 0;
  float (*run)(uint64_t iterations) = nullptr;  // The result keeps the compiler from leaving the loop out.
};

// What this machine runs. Asks the system for AMX, which a process may not use unasked.
std::vector<InstructionLoop> SupportedInstructionLoops();

// Reads `num_bytes`, a multiple of kReadGranularity, from a cache line's start with the widest loads there
// are, four parts of them side by side; the sum keeps the compiler from leaving it out.
using ReadLoop = uint64_t (*)(const char* begin, size_t num_bytes);
inline constexpr size_t kReadGranularity = 1024;
ReadLoop BestReadLoop();

}  // namespace tandem
