#pragma once

#include <memory>

#include "common/gguf/gguf_file.h"
#include "common/model/config/model_config.h"
#include "common/model/tensor_source.h"

namespace tandem {

// The file's tensors, under its names, for a model that a GgufArchitecture stands for. Query and key rows,
// which the format stores in another order for some, are put back in the original order. Quantised matrices
// stay quantised (kQuantized), and a log line says which and how large. If the file stores latent attention's
// kv_b_proj in separate parts for keys (transposed) and values, they are joined, with quantised parts as
// float32.
std::unique_ptr<TensorSource> MakeGgufTensors(GgufFile file, const ModelConfig& config);

}  // namespace tandem
