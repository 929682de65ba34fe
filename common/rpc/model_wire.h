#pragma once

#include <cstdint>
#include <string>

#include "common/model/model.h"
#include "tandem/v1/types.pb.h"

namespace tandem {

// The description of a model for the wire. `weight_type`: the type in which its weights are kept, such as
// "bf16". `vocabulary_fingerprint`: the tokenizer's, for the width of the model's logits.
v1::ModelInfo ModelInfoToProto(const std::string& name, const Model& model, const std::string& weight_type,
                               uint64_t vocabulary_fingerprint);

}  // namespace tandem
