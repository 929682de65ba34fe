#pragma once

#include <cstdint>
#include <functional>

namespace tandem {

// Random bits from a generator that the system's entropy seeded: for seeds, ids and shares of a sample, not
// for secrets. The function is thread-safe, and its copies draw from the same generator.
std::function<uint64_t()> SystemRandomBits();

// A random number in [0, 1), from a generator of the calling thread: for the jitter of pauses.
double RandomFraction();

}  // namespace tandem
