#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/config/head_config.h"

namespace tandem {

// The head in a config.json; nullopt if the file does not describe a head. Reads EAGLE-3 and 3.1 as
// SpecForge, SGLang and ModelOpt (architecture LlamaForCausalLMEagle3), AngelSlim (Eagle3LlamaForCausalLM)
// and the authors (LlamaForCausalLM with draft_vocab_size) have them, EAGLE-1 and 2 (LlamaForCausalLMEagle,
// or vLLM's EagleLlamaForCausalLM), the form of vLLM's speculators (speculators_model_type), Medusa in
// the authors' form (medusa_num_heads) and in vLLM's (model_type medusa), and DFlash (block_format.h).
// `layer` is the object that
// describes the decoder layer: the whole file or an object in it. It is null for Medusa, which has no layer;
// then `hidden_size` and `vocab_size` are set, or 0 if the file does not have them. The authors' EAGLE-1 and
// 2 call themselves LlamaForCausalLM: see EagleByTensors. Errors as in ParseModelConfig.
struct ParsedHead {
  HeadConfig config;
  const nlohmann::json* layer = nullptr;
  int32_t hidden_size = 0;
  int32_t vocab_size = 0;
  bool layer_is_qwen3 = false;  // Whatever `layer` calls itself.
};
absl::StatusOr<std::optional<ParsedHead>> ParseHeadConfig(const nlohmann::json& object,
                                                          absl::string_view path);

}  // namespace tandem
