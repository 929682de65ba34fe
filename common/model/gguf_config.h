#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/gguf/gguf_file.h"
#include "common/model/config/model_config.h"

namespace tandem {

// Of Llama 3's scaling, what it makes of each rotary frequency; the configuration says what it follows from.
inline constexpr char kGgufRopeFactors[] = "rope_freqs.weight";

// The configuration that a GGUF file's keys describe, of the architectures llama, mistral, qwen2, qwen3,
// qwen2moe, qwen3moe and deepseek2: what their config.json would say, checked as that. Errors name the file
// and the key.
absl::StatusOr<ModelConfig> ReadGgufConfig(const GgufFile& file);
// The same of a file that is opened for it.
absl::StatusOr<ModelConfig> ReadGgufConfig(const std::string& path);

// Whether a file of that model keeps the rows of queries and keys as RowInPairs says.
bool HasPairedRows(const ModelConfig& config);

}  // namespace tandem
