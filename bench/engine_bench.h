#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/engine/cpu/kernels.h"

namespace tandem {

struct EngineBenchOptions {
  std::string folder;  // Hugging Face model folder.
  std::vector<uint32_t> rows = {1, 2, 4, 8, 16, 32, 64};
  uint32_t context = 128;  // Tokens before the measured rows.
  int threads = 1;
  InstructionSet instruction_set = InstructionSet::kAuto;
  int repetitions = 50;
};

// One forward pass of `rows` tree rows that share a context, every one with logits.
struct StepTime {
  uint32_t rows = 0;
  double median_seconds = 0.0;
  double fastest_seconds = 0.0;
};

struct EngineBenchResult {
  std::string kernels;
  uint64_t weight_bytes = 0;
  // Reading memory far beyond the caches, with as many threads as the engine, in the same run.
  double read_bytes_per_second = 0.0;
  // What a step cannot be faster than, when the weights do not stay in a cache: weight_bytes / read
  // bandwidth.
  double floor_seconds = 0.0;
  std::vector<StepTime> steps;
};

// Repetitions of the different numbers of rows are interleaved, so that a change of the machine's pace meets
// all of them alike.
absl::StatusOr<EngineBenchResult> RunEngineBench(const EngineBenchOptions& options);

}  // namespace tandem
