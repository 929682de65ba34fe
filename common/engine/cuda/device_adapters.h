#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/engine/cuda/device_ops.h"
#include "common/engine/cuda/step_plan.h"
#include "common/engine/engine.h"
#include "common/model/config/model_config.h"
#include "common/model/lora_adapter.h"

namespace tandem {

// The adapters of a CudaEngine in device memory: one block per adapter, freed when the adapter is dropped.
// Kernels find an adapter by its place (adapter_kernels.h), which a later adapter may reuse; ids are never
// reused.
//
// Thread rule: the engine's.
class DeviceAdapters {
 public:
  // Both outlive it.
  DeviceAdapters(const ModelConfig& config, DeviceOps* ops) : config_(config), ops_(ops) {}

  // Call it between steps. It may change the table and the width. Errors are those of Engine.
  absl::StatusOr<AdapterId> Add(const LoraAdapter& adapter);
  absl::Status Drop(AdapterId adapter);

  const AdapterPlaces& places() const { return places_; }
  // The data of AdapterTable.
  DeviceSpan<const DeviceSpan<const AdapterInput>> table() const { return table_; }
  // The width of the widest reduced row, in numbers.
  uint32_t width() const { return width_; }

 private:
  struct Held {
    void* memory = nullptr;  // Null if the place is free.
    DeviceSpan<const AdapterInput> inputs;
  };
  // The layout of an adapter that is being added.
  struct Layout;

  absl::StatusOr<Held> Upload(const Layout& layout);
  absl::Status MakeRoom(uint32_t place);

  const ModelConfig& config_;
  DeviceOps* const ops_;
  AdapterId last_ = kNoAdapter;
  AdapterPlaces places_;
  std::vector<Held> held_;  // By place.
  DeviceSpan<DeviceSpan<const AdapterInput>> table_;
  uint32_t width_ = 0;
};

}  // namespace tandem
