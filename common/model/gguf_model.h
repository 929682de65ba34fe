#pragma once

#include <memory>

#include "common/gguf/gguf_file.h"
#include "common/model/config/model_config.h"
#include "common/model/tensor_source.h"

namespace tandem {

// The file's tensors by the names and in the shapes of the Hugging Face folder that it was made from. Query
// and key rows of Llama's, which the format keeps in another order, are put back in theirs; matrices that are
// quantised stay so (kQuantized), and a log line says it. Latent attention's kv_b_proj, where the file keeps
// its parts for keys and values apart, and the former the other way round, is put together, quantised parts
// as float32.
std::unique_ptr<TensorSource> MakeGgufTensors(GgufFile file, const ModelConfig& config);

}  // namespace tandem
