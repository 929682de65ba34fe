#pragma once

#include <memory>
#include <string>

#include "common/model/config/quantization.h"
#include "common/model/tensor_source.h"
#include "common/model/weight_files.h"

namespace tandem {

// The tensors of a quantised checkpoint's folder by the names that its model has: a matrix NAME.weight that
// lies there in the tensors of `quantization` is handed out as kQuantized, all else as it lies in the files.
// What activations or keys and values would be rounded with is not used. A log line says what
// engines make of the matrices. The tensor whose name ends in `embedding` is not quantised, as its rows are
// read one by one.
std::unique_ptr<TensorSource> MakeQuantizedTensors(WeightFiles files, const Quantization& quantization,
                                                   const std::string& embedding);

}  // namespace tandem
