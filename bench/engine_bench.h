#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/engine_runner.h"
#include "bench/machine_rates.h"
#include "common/engine/cpu/kernels.h"
#include "common/engine/kv_type.h"
#include "common/model/model.h"

namespace tandem {

struct EngineBenchOptions {
  ModelSource model;
  std::vector<uint32_t> rows = {1, 2, 4, 8, 16, 32, 64};
  std::vector<uint32_t> contexts = {128};  // Tokens before the measured rows.
  uint32_t prefill = 0;                    // Tokens of a prompt to measure too; 0: none.
  RowTree tree = RowTree::kBinary;
  std::vector<int> threads = {1};
  InstructionSet instruction_set = InstructionSet::kAuto;
  WeightDtype weight_dtype = WeightDtype::kBf16;
  KvType kv_type = KvType::kAuto;
  std::string adapter;  // Folder of a LoRA adapter that all rows have; empty: none.
  DeviceSpec device;    // On a GPU, threads and instruction set do not matter.
  // Repetitions of every pass; fewer, but at least 3, once a context took `most_seconds`.
  int repetitions = 50;
  double most_seconds = 20.0;
};

// Order statistics of a pass's times.
struct TimeSpread {
  double fastest = 0.0;
  double lower_quartile = 0.0;
  double median = 0.0;
  double upper_quartile = 0.0;
};

// `seconds` must not be empty.
TimeSpread SpreadOf(std::vector<double> seconds);

// One pass over rows of a tree, or a whole prompt.
struct PassResult {
  uint32_t rows = 0;
  StepWork work;  // A prompt's passes added up.
  double read_bytes_per_second = 0.0;
  double floor_seconds = 0.0;
  int repetitions = 0;
  TimeSpread seconds;
};

// The passes with one number of threads and one context.
struct EngineBenchRun {
  int threads = 1;
  std::string kernels;
  std::vector<PeakRate> peaks;
  PeakRate peak;         // The one of the kernels.
  uint32_t context = 0;  // 0 for a prompt.
  std::vector<PassResult> passes;
};

struct EngineBenchResult {
  uint64_t num_parameters = 0;
  uint64_t model_bytes = 0;
  std::vector<EngineBenchRun> runs;
};

// The limits of the machine for a team of that many threads: peaks, and the read bandwidth for each size of
// working set. Measured at the first request and again by Refresh; the better figure counts.
class MachineFloor {
 public:
  static absl::StatusOr<MachineFloor> Create(int threads, absl::string_view kernels, WeightDtype dtype);
  // Of a GPU: what a copy within its memory reaches, and nothing about its arithmetic.
  static absl::StatusOr<MachineFloor> CreateForCuda(int index);

  const std::vector<PeakRate>& peaks() const { return peaks_; }
  const PeakRate& peak() const { return peak_; }
  absl::StatusOr<double> ReadBandwidth(uint64_t num_bytes);
  absl::StatusOr<double> Seconds(const StepWork& work);
  absl::Status Refresh();

 private:
  MachineFloor() = default;

  struct Bandwidth {
    uint64_t num_bytes = 0;
    double bytes_per_second = 0.0;
  };

  std::unique_ptr<ThreadTeam> team_;  // None for a GPU.
  std::string kernels_;
  WeightDtype dtype_ = WeightDtype::kBf16;
  std::vector<PeakRate> peaks_;
  PeakRate peak_;
  std::vector<Bandwidth> bandwidths_;
  double copy_bytes_per_second_ = 0.0;  // Of a GPU.
};

// Passes of different sizes take turns, so that changes of the machine's speed affect all of them alike.
// InvalidArgument for empty lists and sizes beyond the model's context.
absl::StatusOr<EngineBenchResult> RunEngineBench(const EngineBenchOptions& options);

}  // namespace tandem
