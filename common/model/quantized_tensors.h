#pragma once

#include <memory>
#include <string>

#include "common/model/config/quantization.h"
#include "common/model/tensor_source.h"
#include "common/model/weight_files.h"

namespace tandem {

// The tensors of a quantised checkpoint's folder, under the model's names. A matrix NAME.weight that is
// stored in the tensors of `quantization` is returned as kQuantized, all others as stored. Scales for
// rounding activations or keys and values are not used. A log line says what engines make of the matrices.
// The tensor whose name ends in `embedding` is not quantised, because its rows are read one by one.
std::unique_ptr<TensorSource> MakeQuantizedTensors(WeightFiles files, const Quantization& quantization,
                                                   const std::string& embedding);

}  // namespace tandem
