#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/engine/cpu/thread_team.h"

namespace tandem {

// The rate of a class of multiply-add instructions on registers, over all threads of the team.
struct PeakRate {
  std::string name;  // "f32-portable", "f32-avx2", "f32-avx512", "bf16-avx512", "int8-avx512", "bf16-amx",
                     // "int8-amx".
  double operations_per_second = 0.0;  // A multiplication and an addition are two.
};

// One rate for each class that this machine has, the best of several runs of some milliseconds. Asks the
// system for AMX; if it refuses, those classes are absent.
std::vector<PeakRate> MeasurePeakRates(ThreadTeam* team);

// The rate of the class that a product kernel named `kernels` uses for weights of the given name ("bf16",
// "int8", ...). That is AMX if the name says so; for integers, AVX-512's own int8 instructions if the machine
// has them; for "avx512-bf16", the faster of its bf16 instructions and float32; otherwise float32 of its
// instruction set. Half of the int8 rate if an input takes two products ("int8", "int4"). NotFound if `rates`
// does not have it.
absl::StatusOr<PeakRate> PeakRateFor(absl::string_view kernels, absl::string_view weight_dtype,
                                     const std::vector<PeakRate>& rates);

// Bytes per second when all threads together read `num_bytes` end to end, repeatedly, so that sizes that fit
// into a cache get its bandwidth. The best of several passes. Reads at most 1 GiB, which is beyond any cache.
// ResourceExhausted without memory.
absl::StatusOr<double> MeasureReadBandwidth(uint64_t num_bytes, ThreadTeam* team);

}  // namespace tandem
