#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/engine/cpu/kernels.h"
#include "common/engine/weight_type.h"

namespace tandem {

struct LoadBenchOptions {
  std::string path;  // A model folder or a GGUF file.
  int threads = 1;   // Of the engine, and of reading.
  InstructionSet instruction_set = InstructionSet::kAuto;
  WeightType weight_type = WeightType::kAsInFile;
  int repetitions = 5;
  bool cold = false;  // Asks the system to forget the files before each reading and each load.
};

// Times of all repetitions, which take turns.
struct LoadTimes {
  double fastest = 0.0;
  double median = 0.0;
};

// Seconds.
struct LoadBenchResult {
  uint64_t file_bytes = 0;    // Of the files that hold the weights.
  uint64_t packed_bytes = 0;  // Of matrices as the engine keeps them, without a separate embedding.
  // All bytes of the files once, into a buffer that stays in the nearest caches: by one thread, and by so
  // many as the engine has.
  LoadTimes read_by_one;
  LoadTimes read;
  // Memory for packed_bytes that nobody has touched yet, written by the engine's threads: the system fills it
  // with zeros first.
  LoadTimes write;
  LoadTimes open;  // Model::Load.
  LoadTimes pack;  // CreateCpuEngine, with keys and values for one block.
  LoadTimes load;  // Both.
};

// Measures loading a model for a CPU, beside reading its files and writing its memory. Before each load, it
// allocates and frees as much memory: virtual machines get memory from their host at the first use, which
// takes longer than everything else. InvalidArgument if `path` holds no weights; otherwise the errors of
// Model::Load and CreateCpuEngine.
absl::StatusOr<LoadBenchResult> RunLoadBench(const LoadBenchOptions& options);

// A table of two lines: the medians and the fastest.
std::string LoadBenchTable(const LoadBenchOptions& options, const LoadBenchResult& result);

}  // namespace tandem
