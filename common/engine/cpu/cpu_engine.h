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
  // Blocks of keys and values: `num_blocks` if that is not 0, otherwise as many as fit into `kv_bytes`.
  uint32_t num_blocks = 0;
  uint64_t kv_bytes = uint64_t{256} << 20;
  uint32_t max_rows = 512;
  int num_threads = 1;
  // Pins the threads: one CPU for each (cpu_list.h). The first is for the thread that calls Step, during the
  // call. Empty: no pinning.
  std::vector<int> cpus;
  InstructionSet instruction_set = InstructionSet::kAuto;
  // Affects outputs like a part of the model: they are only reproducible with the same type.
  WeightType weight_type = WeightType::kAsInFile;
  // The same. What a file says exactly, unless told otherwise: references are computed with it.
  KvType kv_type = KvType::kF32;
  // Gets the progress of CreateCpuEngine, tensor by tensor; the caller calls Finish. Not owned, may be null.
  LoadProgress* progress = nullptr;
};

// An engine on the CPU: weights packed once, activations in float32. The weights are copied: `model` need not
// outlive this call. A context is at most the model's and at most what the blocks hold.
//
// The bits are the same on every instruction set, except for bfloat16 weights (see kernel_table.h), and with
// any number of threads, because threads divide outputs, never a sum.
//
// InvalidArgument for options out of range or a weight type that the files do not hold; ResourceExhausted if
// there is not enough memory or no threads.
absl::StatusOr<std::unique_ptr<Engine>> CreateCpuEngine(std::shared_ptr<const Model> model,
                                                        const CpuEngineOptions& options);

// The number of experts whose weights the last step read, over all layers; an expert counts once per layer,
// for all rows. 0 for a model without experts, or for another engine.
uint64_t ExpertsRead(const Engine& engine);

}  // namespace tandem
