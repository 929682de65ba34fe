#include "common/model/testing/family_fixture.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/temporary_folder.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

std::string FamilyFolder() {
  return absl::StrCat(TANDEM_SOURCE_DIR, "/common/model/testdata/families");
}

std::string TensorBytes(uint64_t base, uint64_t count, float center, float step, int bits,
                        TensorView::DType dtype) {
  std::string bytes;
  for (uint64_t i = 0; i < count; ++i) {
    const auto level = static_cast<int64_t>(2 * (Mix64(base + i) >> (64 - bits)) + 1) - (int64_t{1} << bits);
    // Few bits: exact, in whatever order.
    const float value = center + step * static_cast<float>(level);
    char word[sizeof(value)];
    std::memcpy(word, &value, sizeof(value));
    // The upper half of a float32 is a bfloat16.
    if (dtype == TensorView::DType::kF32) {
      bytes.append(word, 4);
    } else {
      bytes.append(word + 2, 2);
    }
  }
  return bytes;
}

}  // namespace

std::vector<std::string> FamilyModelNames() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(FamilyFolder())) {
    names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

nlohmann::json FamilyGolden(const std::string& name) {
  const absl::StatusOr<std::string> text =
      ReadFile(absl::StrCat(FamilyFolder(), "/", name, ".json"), 1 << 20);
  if (!text.ok()) {
    ADD_FAILURE() << text.status();
    return nullptr;
  }
  return nlohmann::json::parse(*text);
}

std::string GoldenTensorFile(const nlohmann::json& tensors, uint64_t seed, TensorView::DType dtype) {
  nlohmann::json header;
  std::string data;
  uint64_t index = 0;
  for (const nlohmann::json& tensor : tensors) {
    uint64_t count = 1;
    for (const nlohmann::json& size : tensor.at(1)) count *= size.get<uint64_t>();
    const size_t begin = data.size();
    data += TensorBytes((seed << 40) + (index++ << 24), count, tensor.at(2).get<float>(),
                        tensor.at(3).get<float>(), tensor.at(4).get<int>(), dtype);
    header[tensor.at(0).get<std::string>()] = {{"dtype", dtype == TensorView::DType::kF32 ? "F32" : "BF16"},
                                               {"shape", tensor.at(1)},
                                               {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  const uint64_t size = text.size();
  return absl::StrCat(std::string(reinterpret_cast<const char*>(&size), sizeof(size)), text, data);
}

absl::StatusOr<std::shared_ptr<const Model>> LoadFamilyModel(const nlohmann::json& golden, uint64_t seed,
                                                             TensorView::DType dtype) {
  const TemporaryFolder folder;
  folder.Write("config.json", golden.at("config").dump());
  folder.Write("model.safetensors", GoldenTensorFile(golden.at("tensors"), seed, dtype));
  // The weights stay mapped.
  return Model::Load(folder.path());
}

std::shared_ptr<const Model> MakeFamilyModel(const nlohmann::json& golden, uint64_t seed,
                                             TensorView::DType dtype) {
  absl::StatusOr<std::shared_ptr<const Model>> model = LoadFamilyModel(golden, seed, dtype);
  if (!model.ok()) {
    ADD_FAILURE() << model.status();
    return nullptr;
  }
  return *std::move(model);
}

std::shared_ptr<const Model> MakeFamilyModel(const std::string& name, TensorView::DType dtype) {
  const nlohmann::json golden = FamilyGolden(name);
  return MakeFamilyModel(golden, golden.at("models").at(0).at("seed").get<uint64_t>(), dtype);
}

}  // namespace tandem
