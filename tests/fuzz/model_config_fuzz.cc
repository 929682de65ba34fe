// config.json of every family of models and kind of draft heads, generation_config.json, and PEFT's
// adapter_config.json.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/model/config/lora_config.h"
#include "common/model/config/model_config.h"
#include "nlohmann/json.hpp"
#include "tests/fuzz/fuzz_target.h"

namespace tandem::fuzz {
namespace {

constexpr absl::string_view kConfigPath = "folder/config.json";

bool RunModelConfig(absl::string_view input) {
  const absl::StatusOr<GenerationDefaults> defaults = ParseGenerationDefaults(input, kConfigPath);
  if (!defaults.ok()) Refused(defaults.status(), kConfigPath);
  const absl::StatusOr<LoraConfig> adapter = ParseLoraConfig(input, kConfigPath);
  if (adapter.ok()) {
    Require(adapter->rank >= 1 && adapter->rank <= kMostLoraRank, "a rank within the bounds");
    for (const char* const module : {"model.layers.3.self_attn.q_proj", "q_proj", ""}) {
      if (const auto scale = adapter->ScaleOf(module); !scale.ok()) Refused(scale.status(), kConfigPath);
      adapter->Targets(module, 3);
    }
  } else {
    Refused(adapter.status(), kConfigPath);
  }
  absl::StatusOr<ModelConfig> config = ParseModelConfig(input, kConfigPath);
  if (!config.ok()) return Refused(config.status(), kConfigPath);
  Require(config->num_layers >= 0 && config->vocab_size >= 0, "sizes within the bounds");
  if (config->head.has_value()) {
    if (const absl::Status status = FinishHeadConfig(kConfigPath, nullptr, &*config); !status.ok())
      Refused(status, kConfigPath);
  } else {
    Require(config->num_heads % config->num_kv_heads == 0 && config->head_dim > 0, "whole groups of heads");
    Require(config->vocab_size > 0 && config->num_layers > 0 && config->rotary_dim() <= config->head_dim,
            "layers that can be computed");
    for (int32_t layer = 0; layer < std::min(config->num_layers, 64); ++layer) {
      config->window(static_cast<size_t>(layer));
    }
  }
  return true;
}

// What the tests' models have as `config`.
void AddConfigs(const std::string& folder, std::vector<std::string>& seeds) {
  for (const std::string& name : RepositoryFiles(folder, ".json")) {
    seeds.push_back(
        nlohmann::json::parse(RepositoryFile(absl::StrCat(folder, "/", name))).at("config").dump());
  }
}

std::vector<std::string> ModelConfigSeeds() {
  std::vector<std::string> seeds;
  for (const char* const kind : {"families", "quantized", "adapters"}) {
    AddConfigs(absl::StrCat("common/model/testdata/", kind), seeds);
  }
  for (const char* const head :
       {"eagle1", "eagle3-specforge", "eagle3-shared", "eagle3-speculators-qwen3", "eagle31-speculators",
        "eagle31-specforge", "eagle3-modelopt-normed", "eagle3-modelopt-final", "eagle3-deep-llama",
        "eagle3-deep-qwen3", "medusa", "medusa-vllm", "mimo", "dflash-specforge", "dflash-speculators",
        "dspark-speculators", "dspark-deepspec"}) {
    seeds.push_back(RepositoryFile(absl::StrCat("common/model/testdata/heads/", head, "/config.json")));
  }
  for (const char* const file :
       {"tandem-target-15m/config.json", "tandem-target-15m/generation_config.json"}) {
    seeds.push_back(RepositoryFile(absl::StrCat("deploy/demo-models/", file)));
  }
  return seeds;
}

const Registration kModelConfig(
    {.name = "model_config", .run = RunModelConfig, .seeds = ModelConfigSeeds, .spoilt = 20'000});

}  // namespace
}  // namespace tandem::fuzz
