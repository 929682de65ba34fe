#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/gguf/gguf_file.h"
#include "common/model/config/model_config.h"
#include "nlohmann/json.hpp"

namespace tandem {

// Whether a tensor holds rotary settings, which configurations have and models do not.
bool IsGgufRopeTensor(absl::string_view name);

// What config.json would have in `rope_scaling`: of the keys behind `prefix`, the architecture's name and a
// dot, and of the tensors of longrope. Null without a scaling. Errors name the file and the key or tensor.
absl::StatusOr<nlohmann::json> ReadGgufRopeScaling(const GgufFile& file, const std::string& prefix);

// Frequencies that the file divides one by one (`rope_freqs.weight`), in the configuration: as Llama 3's
// scaling, if they are what it makes of them, and else as what they are.
absl::Status UseGgufRopeFactors(const GgufFile& file, ModelConfig* config);

}  // namespace tandem
