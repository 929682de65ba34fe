#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/head_config.h"

namespace tandem {

// What a config.json says of a head, or nothing if it is not one's: EAGLE-3 as SpecForge, SGLang and the
// authors write it (architecture LlamaForCausalLMEagle3), EAGLE-1 and 2 (LlamaForCausalLMEagle), and vLLM
// speculators' (speculators_model_type). `layer` is where the decoder layer is described: the object itself
// or one inside it. Authors' EAGLE-1 and 2 call themselves LlamaForCausalLM: see EagleByTensors. Errors are
// ParseModelConfig's.
struct ParsedHead {
  HeadConfig config;
  const nlohmann::json* layer = nullptr;
};
absl::StatusOr<std::optional<ParsedHead>> ParseHeadConfig(const nlohmann::json& object,
                                                          absl::string_view path);

}  // namespace tandem
