#pragma once

#include "absl/status/status.h"
#include "common/model/config/model_config.h"
#include "common/model/lora_adapter.h"

namespace tandem {

// Checks that an adapter fits a model. InvalidArgument, naming the layer, for another number of layers or
// other sizes, and for feed-forward parts in layers that have experts.
absl::Status CheckAdapterFits(const LoraAdapter& adapter, const ModelConfig& config);

}  // namespace tandem
