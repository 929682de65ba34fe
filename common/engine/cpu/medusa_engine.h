#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/engine.h"
#include "common/model/model.h"

namespace tandem {

// CreateCpuEngine for Medusa heads (HeadConfig has the equations). A row without logits costs nothing, and
// rows store nothing: blocks are counted as for other models but hold nothing. Law 1 holds as for other
// engines.
absl::StatusOr<std::unique_ptr<Engine>> CreateMedusaEngine(const Model& model,
                                                           const CpuEngineOptions& options);

}  // namespace tandem
