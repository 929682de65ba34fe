#include "common/engine/kv_choice.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/types/span.h"
#include "common/model/tensor_convert.h"

namespace tandem {

float GreatestKeyBias(const Model& model) {
  float greatest = 0;
  for (const LayerWeights& layer : model.layers()) {
    if (!layer.key_bias.exists()) continue;
    std::vector<float> biases(static_cast<size_t>(layer.key_bias.num_elements()));
    ConvertToFloat(layer.key_bias, absl::MakeSpan(biases));
    for (const float bias : biases) greatest = std::max(greatest, std::fabs(bias));
  }
  return greatest;
}

KvType CpuKvType(const Model& model, KvType type) {
  if (type != KvType::kAuto) return type;
  return GreatestKeyBias(model) >= kLargeKeyBias ? KvType::kF32 : KvType::kBf16;
}

}  // namespace tandem
