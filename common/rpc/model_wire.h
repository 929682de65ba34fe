#pragma once

#include <cstdint>
#include <string>

#include "common/model/model.h"
#include "tandem/v1/types.pb.h"

namespace tandem {

// A model as servers describe it, its weights kept as `weight_type`, such as "bf16". `vocabulary_fingerprint`
// is the tokenizer's for the model's logits width.
v1::ModelInfo ModelInfoToProto(const std::string& name, const Model& model, const std::string& weight_type,
                               uint64_t vocabulary_fingerprint);

}  // namespace tandem
