#include "bench/engine_bench.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

constexpr int kFewestRepetitions = 3;

// Sizes within a sixteenth of one another share a bandwidth.
bool SameSize(uint64_t a, uint64_t b) {
  return std::max(a, b) - std::min(a, b) <= std::max(a, b) / 16;
}

absl::Status Validate(const EngineBenchOptions& options) {
  if (options.threads.empty()) return absl::InvalidArgumentError("--threads: expected at least one number");
  if (options.rows.empty() && options.prefill == 0) {
    return absl::InvalidArgumentError("--rows: expected at least one number, or --prefill");
  }
  if (options.contexts.empty()) return absl::InvalidArgumentError("--context: expected at least one number");
  for (const uint32_t context : options.contexts) {
    if (context == 0)
      return absl::InvalidArgumentError("--context: a context of 0 tokens, expected at least 1");
  }
  if (options.repetitions < 1) return absl::InvalidArgumentError("--repetitions: expected at least 1");
  return absl::OkStatus();
}

EngineRunner::Options RunnerOptions(const EngineBenchOptions& options, int threads) {
  EngineRunner::Options runner;
  runner.threads = threads;
  runner.instruction_set = options.instruction_set;
  runner.weight_dtype = options.weight_dtype;
  runner.kv_type = options.kv_type;
  runner.adapter = options.adapter;
  runner.device = options.device;
  runner.tree = options.tree;
  runner.most_rows = options.rows.empty() ? 1 : *std::max_element(options.rows.begin(), options.rows.end());
  runner.most_context =
      std::max(options.prefill, *std::max_element(options.contexts.begin(), options.contexts.end()));
  return runner;
}

// Interleaved times of `num_passes` passes; `pass(i)` runs one.
absl::StatusOr<std::vector<std::vector<double>>> Interleave(
    const EngineBenchOptions& options, size_t num_passes,
    absl::FunctionRef<absl::StatusOr<double>(size_t)> pass) {
  std::vector<std::vector<double>> seconds(num_passes);
  const absl::Time start = absl::Now();
  // The first round warms up and is not counted.
  for (int round = -1; round < options.repetitions; ++round) {
    const bool is_late = absl::ToDoubleSeconds(absl::Now() - start) > options.most_seconds;
    if (round >= kFewestRepetitions && is_late) break;
    for (size_t i = 0; i < num_passes; ++i) {
      TANDEM_ASSIGN_OR_RETURN(const double taken, pass(i));
      if (round >= 0) seconds[i].push_back(taken);
    }
  }
  return seconds;
}

absl::Status FillFloor(const std::vector<StepWork>& works, MachineFloor* floor, PassResult* pass) {
  pass->work = StepWork();
  pass->floor_seconds = 0.0;
  for (const StepWork& work : works) {
    pass->work.weight_bytes += work.weight_bytes;
    pass->work.kv_bytes += work.kv_bytes;
    pass->work.operations += work.operations;
    TANDEM_ASSIGN_OR_RETURN(pass->read_bytes_per_second, floor->ReadBandwidth(work.bytes()));
    TANDEM_ASSIGN_OR_RETURN(const double seconds, floor->Seconds(work));
    pass->floor_seconds += seconds;
  }
  return absl::OkStatus();
}

struct Plan {
  uint32_t context = 0;        // 0: a prompt.
  std::vector<uint32_t> rows;  // Or the prompt's length.
};

absl::StatusOr<EngineBenchRun> RunPlan(const EngineBenchOptions& options, const Plan& plan,
                                       EngineRunner* runner, MachineFloor* floor) {
  EngineBenchRun run;
  run.context = plan.context;
  const bool is_prompt = plan.context == 0;
  if (!is_prompt) TANDEM_RETURN_IF_ERROR(runner->SetContext(plan.context));
  const auto works = [&](size_t i) {
    return is_prompt ? runner->PrefillWork(plan.rows[i])
                     : std::vector<StepWork>{runner->TreeWork(plan.rows[i])};
  };
  // Before and after: the machine may have been slow the first time.
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    run.passes.emplace_back();
    TANDEM_RETURN_IF_ERROR(FillFloor(works(i), floor, &run.passes[i]));
  }
  TANDEM_ASSIGN_OR_RETURN(std::vector<std::vector<double>> seconds,
                          Interleave(options, plan.rows.size(), [&](size_t i) {
                            return is_prompt ? runner->Prefill(plan.rows[i]) : runner->TreeStep(plan.rows[i]);
                          }));
  TANDEM_RETURN_IF_ERROR(floor->Refresh());
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    TANDEM_RETURN_IF_ERROR(FillFloor(works(i), floor, &run.passes[i]));
    run.passes[i].rows = plan.rows[i];
    run.passes[i].repetitions = static_cast<int>(seconds[i].size());
    run.passes[i].seconds = SpreadOf(std::move(seconds[i]));
  }
  run.peaks = floor->peaks();
  run.peak = floor->peak();
  return run;
}

}  // namespace

TimeSpread SpreadOf(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  const size_t count = seconds.size();
  return {.fastest = seconds.front(),
          .lower_quartile = seconds[count / 4],
          .median = seconds[count / 2],
          .upper_quartile = seconds[count - 1 - count / 4]};
}

absl::StatusOr<MachineFloor> MachineFloor::Create(int threads, absl::string_view kernels, WeightDtype dtype) {
  MachineFloor floor;
  TANDEM_ASSIGN_OR_RETURN(floor.team_, ThreadTeam::Create(threads));
  floor.kernels_ = std::string(kernels);
  floor.dtype_ = dtype;
  floor.peaks_ = MeasurePeakRates(floor.team_.get());
  TANDEM_ASSIGN_OR_RETURN(floor.peak_, PeakRateFor(kernels, WeightDtypeName(dtype), floor.peaks_));
  return floor;
}

absl::StatusOr<MachineFloor> MachineFloor::CreateForCuda(int index) {
  MachineFloor floor;
  TANDEM_ASSIGN_OR_RETURN(floor.copy_bytes_per_second_, MeasureCudaCopyBandwidth(index));
  floor.peak_ = {"not measured", std::numeric_limits<double>::infinity()};
  return floor;
}

absl::StatusOr<double> MachineFloor::ReadBandwidth(uint64_t num_bytes) {
  if (team_ == nullptr) return copy_bytes_per_second_;
  for (const Bandwidth& known : bandwidths_) {
    if (SameSize(known.num_bytes, num_bytes)) return known.bytes_per_second;
  }
  TANDEM_ASSIGN_OR_RETURN(const double rate, MeasureReadBandwidth(num_bytes, team_.get()));
  bandwidths_.push_back({.num_bytes = num_bytes, .bytes_per_second = rate});
  return rate;
}

absl::StatusOr<double> MachineFloor::Seconds(const StepWork& work) {
  TANDEM_ASSIGN_OR_RETURN(const double rate, ReadBandwidth(work.bytes()));
  return FloorSeconds(work, rate, peak_.operations_per_second);
}

absl::Status MachineFloor::Refresh() {
  if (team_ == nullptr) return absl::OkStatus();
  const std::vector<PeakRate> again = MeasurePeakRates(team_.get());
  for (size_t i = 0; i < again.size() && i < peaks_.size(); ++i) {
    peaks_[i].operations_per_second =
        std::max(peaks_[i].operations_per_second, again[i].operations_per_second);
  }
  TANDEM_ASSIGN_OR_RETURN(peak_, PeakRateFor(kernels_, WeightDtypeName(dtype_), peaks_));
  for (Bandwidth& known : bandwidths_) {
    TANDEM_ASSIGN_OR_RETURN(const double rate, MeasureReadBandwidth(known.num_bytes, team_.get()));
    known.bytes_per_second = std::max(known.bytes_per_second, rate);
  }
  return absl::OkStatus();
}

absl::StatusOr<EngineBenchResult> RunEngineBench(const EngineBenchOptions& options) {
  TANDEM_RETURN_IF_ERROR(Validate(options));
  TANDEM_ASSIGN_OR_RETURN(const KernelTable* kernels, SelectKernels(options.instruction_set));
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<const Model> model, LoadModel(options.model));
  EngineBenchResult result = {.num_parameters = model->num_parameters(),
                              .model_bytes = model->weight_bytes()};
  std::vector<Plan> plans;
  if (!options.rows.empty()) {
    for (const uint32_t context : options.contexts)
      plans.push_back({.context = context, .rows = options.rows});
  }
  if (options.prefill > 0) plans.push_back({.context = 0, .rows = {options.prefill}});
  for (const int threads : options.threads) {
    TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<EngineRunner> runner,
                            EngineRunner::Create(model, RunnerOptions(options, threads)));
    TANDEM_ASSIGN_OR_RETURN(MachineFloor floor,
                            options.device.is_cuda
                                ? MachineFloor::CreateForCuda(options.device.index)
                                : MachineFloor::Create(threads, kernels->name, options.weight_dtype));
    for (const Plan& plan : plans) {
      TANDEM_ASSIGN_OR_RETURN(EngineBenchRun run, RunPlan(options, plan, runner.get(), &floor));
      run.threads = threads;
      run.kernels = options.device.is_cuda ? "cuda" : kernels->name;
      result.runs.push_back(std::move(run));
    }
  }
  return result;
}

}  // namespace tandem
