#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/config/head_config.h"

namespace tandem {

// What a config.json says of a head, or nothing if it is not one's: EAGLE-3 as SpecForge, SGLang and the
// authors write it (architecture LlamaForCausalLMEagle3), EAGLE-1 and 2 (LlamaForCausalLMEagle), vLLM
// speculators' (speculators_model_type), and Medusa as its authors (medusa_num_heads) and vLLM (model_type
// medusa) have it. `layer` is where the decoder layer is described: the object itself or one inside it. Null
// for Medusa, which has none: then `hidden_size` and `vocab_size` are there, 0 where the file does not say.
// Authors' EAGLE-1 and 2 call themselves LlamaForCausalLM: see EagleByTensors. Errors are ParseModelConfig's.
struct ParsedHead {
  HeadConfig config;
  const nlohmann::json* layer = nullptr;
  int32_t hidden_size = 0;
  int32_t vocab_size = 0;
};
absl::StatusOr<std::optional<ParsedHead>> ParseHeadConfig(const nlohmann::json& object,
                                                          absl::string_view path);

}  // namespace tandem
