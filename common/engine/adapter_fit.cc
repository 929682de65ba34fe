#include "common/engine/adapter_fit.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"

namespace tandem {

absl::Status CheckAdapterFits(const LoraAdapter& adapter, const ModelConfig& config) {
  const auto misfit = [&](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat(adapter.folder(), ": an adapter for another model: ", what));
  };
  if (adapter.layers().size() != static_cast<size_t>(config.num_layers)) {
    return misfit(absl::StrCat(adapter.layers().size(), " layers, expected ", config.num_layers));
  }
  const int64_t hidden = config.hidden_size, query = config.query_size(), kv = config.kv_size();
  const int64_t intermediate = config.intermediate_size;
  for (size_t i = 0; i < adapter.layers().size(); ++i) {
    const LoraLayer& layer = adapter.layers()[i];
    struct Shape {
      const LoraPair& pair;
      int64_t outputs;
      int64_t inputs;
    };
    for (const Shape& each :
         {Shape{layer.query, query, hidden}, Shape{layer.key, kv, hidden}, Shape{layer.value, kv, hidden},
          Shape{layer.attention_out, hidden, query}, Shape{layer.gate, intermediate, hidden},
          Shape{layer.up, intermediate, hidden}, Shape{layer.down, hidden, intermediate}}) {
      if (!each.pair.exists()) continue;
      if (each.pair.a.shape[1] == each.inputs && each.pair.b.shape[0] == each.outputs) continue;
      return misfit(absl::StrCat("layer ", i, " has a matrix of ", each.pair.b.shape[0], " outputs and ",
                                 each.pair.a.shape[1], " inputs, expected ", each.outputs, " and ",
                                 each.inputs));
    }
    const bool feeds_forward = layer.gate.exists() || layer.up.exists() || layer.down.exists();
    if (feeds_forward && config.block.has_experts(i))
      return misfit(absl::StrCat("layer ", i, " has experts"));
  }
  return absl::OkStatus();
}

}  // namespace tandem
