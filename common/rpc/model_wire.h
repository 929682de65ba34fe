#pragma once

#include <cstdint>
#include <string>

#include "common/model/model.h"
#include "tandem/v1/types.pb.h"

namespace tandem {

// A loaded model as servers describe it. `vocabulary_fingerprint` is the tokenizer's for the model's logits
// width.
v1::ModelInfo ModelInfoToProto(const std::string& name, const Model& model, uint64_t vocabulary_fingerprint);

}  // namespace tandem
