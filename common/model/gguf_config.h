#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/gguf/gguf_file.h"
#include "common/model/config/model_config.h"

namespace tandem {

// The configuration in a GGUF file's keys, for the architectures of gguf_architecture.h: the same as from an
// equivalent config.json, with the same checks, but that files hold norms' weights as they are multiplied. A
// key that has to be there and is not, or that would change the result and is not understood, is refused.
// Errors name the file and the key.
absl::StatusOr<ModelConfig> ReadGgufConfig(const GgufFile& file);
// Opens the file for that.
absl::StatusOr<ModelConfig> ReadGgufConfig(const std::string& path);

}  // namespace tandem
