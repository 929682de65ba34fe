#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/engine/cpu/thread_team.h"

namespace tandem {

// How fast a class of multiply-add instructions runs out of registers, on all threads of the team together.
struct PeakRate {
  std::string name;  // "f32-portable", "f32-avx2", "f32-avx512", "bf16-avx512", "int8-avx512", "bf16-amx",
                     // "int8-amx".
  double operations_per_second = 0.0;  // A multiplication and an addition are two.
};

// One rate per class that this machine has, the best of several runs of some milliseconds each. AMX is asked
// of the system for this process; where it refuses, the classes are absent.
std::vector<PeakRate> MeasurePeakRates(ThreadTeam* team);

// Of the class that a product kernel named `kernels` uses for weights of the given name ("bf16", "int8",
// ...): AMX where the name says amx, AVX-512's own int8 instructions for integers where the machine has
// them, the faster of its bf16 instructions and float32 for "avx512-bf16", else float32 of its instruction
// set. Of int8 instructions half, where an input takes two products ("int8", "int4"). NotFound when `rates`
// lack it.
absl::StatusOr<PeakRate> PeakRateFor(absl::string_view kernels, absl::string_view weight_dtype,
                                     const std::vector<PeakRate>& rates);

// Bytes per second when all threads together read `num_bytes` end to end, again and again, so that what fits
// a cache has the cache's bandwidth; the best of several passes. Read are at most 1 GiB, beyond any cache.
// ResourceExhausted without memory.
absl::StatusOr<double> MeasureReadBandwidth(uint64_t num_bytes, ThreadTeam* team);

}  // namespace tandem
