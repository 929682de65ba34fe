#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/gguf/gguf_file.h"
#include "common/model/model_config.h"
#include "common/model/tensor_source.h"

namespace tandem {

// The configuration that a GGUF file's keys describe, of the architectures llama, mistral, qwen2, qwen3,
// qwen2moe and qwen3moe: what their config.json would say, checked as that. Errors name the file and the key.
absl::StatusOr<ModelConfig> ReadGgufConfig(const GgufFile& file);
// The same of a file that is opened for it.
absl::StatusOr<ModelConfig> ReadGgufConfig(const std::string& path);

// The file's tensors by the names and in the shapes of the Hugging Face folder that it was made from. Query
// and key rows of Llama's, which the format keeps in another order, are put back in theirs; matrices that are
// quantised stay so (kQuantized), and a log line says it.
std::unique_ptr<TensorSource> MakeGgufTensors(GgufFile file, const ModelConfig& config);

}  // namespace tandem
