#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/engine.h"
#include "common/model/model.h"

namespace tandem {

// CreateCpuEngine for Medusa heads (HeadConfig has the equations). A row that wants no logits costs nothing,
// and no row leaves anything behind: blocks are counted as for other models and hold nothing. Law 1 holds as
// for everything else.
absl::StatusOr<std::unique_ptr<Engine>> CreateMedusaEngine(const Model& model,
                                                           const CpuEngineOptions& options);

}  // namespace tandem
