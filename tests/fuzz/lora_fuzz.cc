// LoRA adapters in PEFT's folders, held against a model.

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/model/lora_adapter.h"
#include "common/model/tensor_convert.h"
#include "common/model/testing/family_fixture.h"
#include "common/model/testing/lora_fixture.h"
#include "tests/fuzz/fuzz_target.h"

namespace tandem::fuzz {
namespace {

const Model& AdaptedModel() {
  static const std::shared_ptr<const Model> model = MakeAdaptedModel(AdapterGolden("llama"));
  Require(model != nullptr, "the model of the adapters");
  return *model;
}

bool RunLora(absl::string_view input) {
  InputReader reader(input);
  ScratchFile("adapter_config.json", reader.Part());
  ScratchFile("adapter_model.safetensors", reader.Rest());
  const std::string folder = ScratchFolder();
  const auto adapter = LoraAdapter::Load(folder, AdaptedModel().config());
  if (!adapter.ok()) return Refused(adapter.status(), folder);
  Require((*adapter)->layers().size() == static_cast<size_t>(AdaptedModel().config().num_layers),
          "a part for each of the model's layers");
  for (const LoraLayer& layer : (*adapter)->layers()) {
    for (const LoraPair* pair : {&layer.query, &layer.key, &layer.value, &layer.attention_out, &layer.gate,
                                 &layer.up, &layer.down}) {
      if (!pair->exists()) continue;
      for (const TensorView* view : {&pair->a, &pair->b}) {
        std::vector<float> numbers(static_cast<size_t>(view->num_elements()));
        ConvertToFloat(*view, absl::MakeSpan(numbers));
      }
    }
  }
  return true;
}

std::vector<std::string> LoraSeeds() {
  std::vector<std::string> seeds;
  for (const char* const name : {"llama", "phi3", "qwen2"}) {
    const nlohmann::json golden = AdapterGolden(name);
    seeds.push_back(Parts(
        {golden.at("config").dump(), GoldenTensorFile(golden.at("tensors"), 1, TensorView::DType::kBF16)}));
  }
  return seeds;
}

const Registration kLora({.name = "lora", .run = RunLora, .seeds = LoraSeeds, .spoilt = 400});

}  // namespace
}  // namespace tandem::fuzz
