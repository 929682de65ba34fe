#include "common/model/testing/lora_fixture.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/model/testing/family_fixture.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

std::string AdapterFolder() {
  return absl::StrCat(TANDEM_SOURCE_DIR, "/common/model/testdata/adapters");
}

}  // namespace

std::vector<std::string> AdapterNames() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(AdapterFolder())) {
    names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

nlohmann::json AdapterGolden(const std::string& name) {
  const absl::StatusOr<std::string> text =
      ReadFile(absl::StrCat(AdapterFolder(), "/", name, ".json"), 1 << 20);
  if (!text.ok()) {
    ADD_FAILURE() << text.status();
    return nullptr;
  }
  return nlohmann::json::parse(*text);
}

std::shared_ptr<const Model> MakeAdaptedModel(const nlohmann::json& golden, TensorView::DType dtype) {
  return MakeFamilyModel(FamilyGolden(golden.at("family").get<std::string>()),
                         golden.at("seed").get<uint64_t>(), dtype);
}

void WriteAdapter(const nlohmann::json& golden, uint64_t seed, const TemporaryFolder& folder,
                  TensorView::DType dtype) {
  folder.Write("adapter_config.json", golden.at("config").dump());
  folder.Write("adapter_model.safetensors", GoldenTensorFile(golden.at("tensors"), seed, dtype));
}

std::shared_ptr<const LoraAdapter> MakeAdapter(const nlohmann::json& golden, uint64_t seed,
                                               const ModelConfig& model, TensorView::DType dtype) {
  const TemporaryFolder folder;
  WriteAdapter(golden, seed, folder, dtype);
  absl::StatusOr<std::shared_ptr<const LoraAdapter>> adapter = LoraAdapter::Load(folder.path(), model);
  if (!adapter.ok()) {
    ADD_FAILURE() << adapter.status();
    return nullptr;
  }
  return *std::move(adapter);
}

}  // namespace tandem
