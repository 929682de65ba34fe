#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

// The settings of a LoRA adapter (Hu et al., LoRA, 2021) in a PEFT folder's adapter_config.json that affect
// what is computed. Modules are named by their paths, such as "model.layers.0.self_attn.q_proj". A name in
// the file means every path that ends in it.
struct LoraConfig {
  int32_t rank = 0;
  double alpha = 0.0;
  bool rank_stabilised = false;  // use_rslora: scaled by alpha / sqrt(rank), else by alpha / rank.
  // Of modules by name, in place of the above.
  std::map<std::string, int32_t> ranks;
  std::map<std::string, double> alphas;
  // Modules that have a part in it, by name; nothing: the file has a pattern, and the tensors say which.
  std::optional<std::vector<std::string>> targets;
  std::vector<std::string> excluded;
  std::optional<std::vector<int32_t>> layers;  // Of these layers alone.

  // InvalidArgument when two names of ranks or of alphas mean this module.
  absl::StatusOr<int32_t> RankOf(absl::string_view module) const;
  // What b * (a * input) is multiplied with.
  absl::StatusOr<float> ScaleOf(absl::string_view module) const;
  // Whether the module is bound to have its tensors.
  bool Targets(absl::string_view module, int32_t layer) const;

  std::string path;  // For messages.
};

inline constexpr int32_t kMostLoraRank = 1024;

// Reads and checks the text of an adapter_config.json. InvalidArgument names the field, its value and what
// was expected. Unimplemented for settings that would change the result and are not supported: methods other
// than LoRA, DoRA, biases, modules_to_save, initialisations that change the model's own weights, and any
// unknown field with a value. `path` is only used in messages.
absl::StatusOr<LoraConfig> ParseLoraConfig(absl::string_view json, absl::string_view path);

}  // namespace tandem
