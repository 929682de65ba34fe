#pragma once

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/config/head_format.h"

namespace tandem {

// DFlash and DSpark as DFlash's authors and SpecForge have them: architecture DFlashDraftModel or
// DSparkDraftModel, the layers' fields in the file itself, and `dflash_config`. No field that is not known
// may stand there. Which position the slots of a DSpark head guess must be said. Errors as in
// ParseModelConfig.
absl::StatusOr<ParsedHead> ParseDFlash(const nlohmann::json& object, bool is_dspark, absl::string_view path);

// Both as vLLM's speculators have them: speculators_model_type dflash or dspark.
absl::StatusOr<ParsedHead> ParseSpeculatorsDFlash(const nlohmann::json& object, bool is_dspark,
                                                  absl::string_view path);

// DSpark as DeepSpec has it: architecture Qwen3DSparkModel, all fields in the file itself. All slots guess
// the next position.
absl::StatusOr<ParsedHead> ParseDeepSpec(const nlohmann::json& object, absl::string_view path);

}  // namespace tandem
