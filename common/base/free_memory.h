#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tandem {

// How much memory a process can still take, and what says so.
struct FreeMemory {
  uint64_t bytes = 0;
  std::string of;  // "the machine" or "the control group /path".
};

// The least of what the machine has available (MemAvailable of /proc/meminfo: caches of files count as free)
// and what the limits of the process' control group (of version 1 or 2) and of those above it leave. nullopt
// if the system does not say. `root`: stands before the paths of system files, for tests.
std::optional<FreeMemory> FindFreeMemory(const std::string& root = "");

}  // namespace tandem
