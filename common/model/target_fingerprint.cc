#include "common/model/target_fingerprint.h"

#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/hash.h"
#include "common/model/tensor_convert.h"

namespace tandem {

uint64_t TargetFingerprint(const Model& model) {
  std::vector<float> norms;
  const auto add = [&](const TensorView& norm) {
    if (!norm.exists()) return;
    const size_t begin = norms.size();
    norms.resize(begin + static_cast<size_t>(norm.num_elements()));
    ConvertToFloat(norm, absl::MakeSpan(norms).subspan(begin));
  };
  add(model.final_norm());
  for (const LayerWeights& layer : model.layers()) {
    add(layer.input_norm);
    add(layer.post_attention_norm);
  }
  const auto seed = HashCombine(static_cast<uint64_t>(model.config().hidden_size),
                                static_cast<uint64_t>(model.config().num_layers));
  const absl::string_view bytes(reinterpret_cast<const char*>(norms.data()), norms.size() * sizeof(float));
  const uint64_t hash = HashBytes(bytes, seed);
  return hash == 0 ? 1 : hash;
}

}  // namespace tandem
