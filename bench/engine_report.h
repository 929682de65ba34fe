#pragma once

#include <string>

#include "bench/engine_bench.h"

namespace tandem {

// A table for people, one block per run.
std::string EngineBenchTable(const EngineBenchOptions& options, const EngineBenchResult& result);
// Everything measured, as one JSON object.
std::string EngineBenchJson(const EngineBenchOptions& options, const EngineBenchResult& result);

}  // namespace tandem
