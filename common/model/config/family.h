#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/config/json_fields.h"
#include "common/model/config/model_config.h"

namespace tandem {

// One family of models: what its config.json means. docs/inside/adding-a-model-family.md walks through adding
// one.
struct Family {
  absl::string_view architecture;  // In config.json's `architectures`.
  absl::string_view model_type;
  // Sets everything except `architecture`. Errors as in ParseModelConfig.
  absl::Status (*read)(const JsonFields& fields, ModelConfig& config) = nullptr;
  // Whether it reads quantization_config itself; otherwise Quantization does.
  bool reads_quantization = false;
};

// The family that `fields` names. InvalidArgument for an invalid name or one that contradicts `model_type`;
// Unimplemented, with the supported ones, for an unknown one.
absl::StatusOr<Family> FindFamily(const JsonFields& fields);

// All architectures, for messages: "LlamaForCausalLM, MistralForCausalLM, ...".
std::string FamilyNames();

absl::Status ReadLlama(const JsonFields& fields, ModelConfig& config);
absl::Status ReadMistral(const JsonFields& fields, ModelConfig& config);
absl::Status ReadQwen2(const JsonFields& fields, ModelConfig& config);
absl::Status ReadQwen3(const JsonFields& fields, ModelConfig& config);
absl::Status ReadMixtral(const JsonFields& fields, ModelConfig& config);
absl::Status ReadQwen2Moe(const JsonFields& fields, ModelConfig& config);
absl::Status ReadQwen3Moe(const JsonFields& fields, ModelConfig& config);
absl::Status ReadDeepSeekV2(const JsonFields& fields, ModelConfig& config);
absl::Status ReadDeepSeekV3(const JsonFields& fields, ModelConfig& config);
absl::Status ReadGptOss(const JsonFields& fields, ModelConfig& config);
absl::Status ReadOpt(const JsonFields& fields, ModelConfig& config);
absl::Status ReadBloom(const JsonFields& fields, ModelConfig& config);
absl::Status ReadGptNeoX(const JsonFields& fields, ModelConfig& config);
absl::Status ReadGpt2(const JsonFields& fields, ModelConfig& config);
absl::Status ReadPhi3(const JsonFields& fields, ModelConfig& config);
absl::Status ReadGemma2(const JsonFields& fields, ModelConfig& config);
absl::Status ReadGemma3(const JsonFields& fields, ModelConfig& config);
absl::Status ReadSmolLm3(const JsonFields& fields, ModelConfig& config);
absl::Status ReadOlmo2(const JsonFields& fields, ModelConfig& config);
absl::Status ReadGranite(const JsonFields& fields, ModelConfig& config);
absl::Status ReadGlm4(const JsonFields& fields, ModelConfig& config);
absl::Status ReadStarCoder2(const JsonFields& fields, ModelConfig& config);

}  // namespace tandem
