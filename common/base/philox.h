#pragma once

#include <array>
#include <cstdint>

namespace tandem {

// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"
// (SC 2011): a keyed bijection of 128-bit counters. Any value of the stream is computed directly from its
// counter, which is what law 2 needs: noise that depends on (seed, position, token) and on nothing else.
using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

PhiloxCounter Philox4x32(PhiloxCounter counter, PhiloxKey key);

}  // namespace tandem
