#include "common/model/config/family.h"

#include <array>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

constexpr std::array kFamilies = {
    Family{"LlamaForCausalLM", "llama", ReadLlama},
    Family{"MistralForCausalLM", "mistral", ReadMistral},
    Family{"MinistralForCausalLM", "ministral", ReadMistral},
    Family{"Qwen2ForCausalLM", "qwen2", ReadQwen2},
    Family{"MiMoForCausalLM", "mimo", ReadQwen2},
    Family{"Qwen3ForCausalLM", "qwen3", ReadQwen3},
    Family{"MixtralForCausalLM", "mixtral", ReadMixtral},
    Family{"Qwen2MoeForCausalLM", "qwen2_moe", ReadQwen2Moe},
    Family{"Qwen3MoeForCausalLM", "qwen3_moe", ReadQwen3Moe},
    Family{"DeepseekV2ForCausalLM", "deepseek_v2", ReadDeepSeekV2},
    Family{"DeepseekV3ForCausalLM", "deepseek_v3", ReadDeepSeekV3},
    Family{"GptOssForCausalLM", "gpt_oss", ReadGptOss, /*reads_quantization=*/true},
    Family{"OPTForCausalLM", "opt", ReadOpt},
    Family{"BloomForCausalLM", "bloom", ReadBloom},
    Family{"GPTNeoXForCausalLM", "gpt_neox", ReadGptNeoX},
    Family{"GPT2LMHeadModel", "gpt2", ReadGpt2},
    Family{"Phi3ForCausalLM", "phi3", ReadPhi3},
    Family{"Gemma2ForCausalLM", "gemma2", ReadGemma2},
    Family{"Gemma3ForCausalLM", "gemma3_text", ReadGemma3},
    Family{"SmolLM3ForCausalLM", "smollm3", ReadSmolLm3},
    Family{"Olmo2ForCausalLM", "olmo2", ReadOlmo2},
    Family{"GraniteForCausalLM", "granite", ReadGranite},
    Family{"Glm4ForCausalLM", "glm4", ReadGlm4},
    Family{"Starcoder2ForCausalLM", "starcoder2", ReadStarCoder2},
};

}  // namespace

std::string FamilyNames() {
  std::string names;
  for (const Family& family : kFamilies) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", family.architecture);
  }
  return names;
}

absl::StatusOr<Family> FindFamily(const JsonFields& fields) {
  TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> model_type, fields.String("model_type"));
  const nlohmann::json* const names = fields.Find("architectures");
  if (names == nullptr && !model_type.has_value()) {
    return fields.Unexpected("architectures", "a list of one name");
  }
  std::optional<std::string> name;
  if (names != nullptr) {
    if (!names->is_array() || names->size() != 1 || !(*names)[0].is_string()) {
      return fields.Unexpected("architectures", "a list of one name");
    }
    name = (*names)[0].get<std::string>();
  }
  for (const Family& candidate : kFamilies) {
    if (name.has_value() ? *name != candidate.architecture : *model_type != candidate.model_type) continue;
    if (model_type.has_value() && *model_type != candidate.model_type) {
      return fields.Unexpected("model_type", absl::StrCat(candidate.model_type, ", as the architecture is ",
                                                          candidate.architecture));
    }
    return candidate;
  }
  return fields.Unsupported(name.has_value() ? "architectures" : "model_type", FamilyNames());
}

}  // namespace tandem
