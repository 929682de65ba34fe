#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/gguf/gguf_file.h"
#include "common/model/config/model_config.h"

namespace tandem {

// The factors of Llama 3's scaling for each rotary frequency. The configuration has the parameters from which
// they follow.
inline constexpr char kGgufRopeFactors[] = "rope_freqs.weight";

// The configuration in a GGUF file's keys, for the architectures llama, mistral, qwen2, qwen3, qwen2moe,
// qwen3moe and deepseek2: the same as from an equivalent config.json, with the same checks. Errors name the
// file and the key.
absl::StatusOr<ModelConfig> ReadGgufConfig(const GgufFile& file);
// Opens the file for that.
absl::StatusOr<ModelConfig> ReadGgufConfig(const std::string& path);

// Whether a file of this model stores the rows of queries and keys in the order of RowInPairs.
bool HasPairedRows(const ModelConfig& config);

}  // namespace tandem
