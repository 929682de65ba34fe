#pragma once

#include <iosfwd>

#include "absl/status/status.h"
#include "bench/engine_bench.h"

namespace tandem {

// Measures on demand, so that another program can take turns with another engine. Reads one JSON object per
// line and answers each with one, until the input ends. bench/peers/README.md describes the lines.
//
//   {"run": "step", "rows": 16, "count": 5}       -> {"seconds": [...], "floor_seconds": 0.001}
//   {"run": "prefill", "tokens": 512, "count": 1} -> the same
//   {"run": "greedy", "prompt": [1, 2], "tokens": 8} -> {"tokens": [...]}
//
// The first line says that it is ready: {"ready": true, "name": "tandem", "detail": "avx512 kernels, bf16"}.
// The answer to an invalid line is {"error": "..."}; the only error of this function is a model that cannot
// be loaded. One number of threads and one context; counts are at most 1000.
absl::Status RunEngineTurns(const EngineBenchOptions& options, std::istream& in, std::ostream& out);

}  // namespace tandem
