#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/engine/cpu/kernels.h"
#include "common/engine/engine.h"
#include "common/engine/kv_type.h"
#include "common/engine/weight_type.h"
#include "common/model/load_progress.h"
#include "common/model/model.h"

namespace tandem {

struct CpuEngineOptions {
  // Blocks of keys and values: `num_blocks` of them when it is not 0, else as many as `kv_bytes` hold.
  uint32_t num_blocks = 0;
  uint64_t kv_bytes = uint64_t{256} << 20;
  uint32_t max_rows = 512;
  int num_threads = 1;
  // Pins the threads: one CPU for each (cpu_list.h), the thread that calls Step being the first, for as long
  // as that takes. Empty: they run where the system puts them.
  std::vector<int> cpus;
  InstructionSet instruction_set = InstructionSet::kAuto;
  // Part of the model as far as outputs go: they are the same again only with the same type.
  WeightType weight_type = WeightType::kAsInFile;
  // Likewise.
  KvType kv_type = KvType::kAuto;
  // Told of every tensor while CreateCpuEngine runs; the caller finishes it. Not owned, may be null.
  LoadProgress* progress = nullptr;
};

// An engine on the processor: weights packed once, activations in float32. The weights are
// copied: `model` need not live longer than this call. A context is at most the model's and at most what the
// blocks hold.
//
// The same bits on every instruction set but for what kernel_table.h says of bfloat16 weights on amx, and
// with any number of threads: they share out outputs, never a sum.
//
// InvalidArgument for options out of range or a weight type that the files do not hold, ResourceExhausted
// without memory or threads.
absl::StatusOr<std::unique_ptr<Engine>> CreateCpuEngine(std::shared_ptr<const Model> model,
                                                        const CpuEngineOptions& options);

// Experts whose weights the last step read, over all layers, each once for all rows of a layer that took it;
// 0 of a model that has none, or of another engine.
uint64_t ExpertsRead(const Engine& engine);

}  // namespace tandem
