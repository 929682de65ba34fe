#include "tests/e2e/next_token_target.h"

#include <cassert>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/model/model.h"
#include "common/model/weight_files.h"
#include "nlohmann/json.hpp"

namespace tandem::e2e {
namespace {

// About the root mean square of the embedding's numbers, which the layer is used to, and the share of it that
// the state gets.
constexpr float kEmbeddingScale = 0.0445f;
constexpr float kStateShare = 0.3f;
constexpr char kModuleFile[] = "module.safetensors";

void AppendBf16(float value, std::string* bytes) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  bytes->push_back(static_cast<char>(bits >> 16));
  bytes->push_back(static_cast<char>(bits >> 24));
}

class ModuleWriter {
 public:
  void Add(const std::string& name, const std::vector<int64_t>& shape, const std::string& bytes) {
    header_[absl::StrCat("model.mtp_layers.0.", name)] = {
        {"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {data_.size(), data_.size() + bytes.size()}}};
    data_ += bytes;
  }
  void Add(const std::string& name, const TensorView& tensor) {
    assert(tensor.dtype == TensorView::DType::kBF16);
    Add(name, tensor.shape, std::string(static_cast<const char*>(tensor.data), tensor.num_bytes()));
  }
  void AddOnes(const std::string& name, int64_t size) {
    std::string bytes;
    for (int64_t i = 0; i < size; ++i) AppendBf16(1.0f, &bytes);
    Add(name, {size}, bytes);
  }

  nlohmann::json names() const {
    nlohmann::json names;
    for (const auto& [name, entry] : header_.items()) names[name] = kModuleFile;
    return names;
  }
  std::string Bytes() const {
    const std::string header = header_.dump();
    const uint64_t size = header.size();
    return absl::StrCat(std::string(reinterpret_cast<const char*>(&size), sizeof(size)), header, data_);
  }

 private:
  nlohmann::json header_;
  std::string data_;
};

ModuleWriter MakeModule(const Model& target) {
  ModuleWriter module;
  const int64_t hidden = target.config().hidden_size;
  std::string projection;
  for (int64_t row = 0; row < hidden; ++row) {
    for (int64_t column = 0; column < 2 * hidden; ++column) {
      AppendBf16(column == row            ? kStateShare * kEmbeddingScale
                 : column == hidden + row ? kEmbeddingScale
                                          : 0.0f,
                 &projection);
    }
  }
  module.Add("input_proj.weight", {hidden, 2 * hidden}, projection);
  module.AddOnes("token_layernorm.weight", hidden);
  module.AddOnes("hidden_layernorm.weight", hidden);
  const LayerWeights& layer = target.layers().front();
  module.Add("input_layernorm.weight", layer.input_norm);
  module.Add("self_attn.q_proj.weight", layer.query);
  module.Add("self_attn.k_proj.weight", layer.key);
  module.Add("self_attn.v_proj.weight", layer.value);
  module.Add("self_attn.o_proj.weight", layer.attention_out);
  module.Add("post_attention_layernorm.weight", layer.post_attention_norm);
  module.Add("mlp.gate_proj.weight", layer.gate);
  module.Add("mlp.up_proj.weight", layer.up);
  module.Add("mlp.down_proj.weight", layer.down);
  module.Add("final_layernorm.weight", target.final_norm());
  return module;
}

}  // namespace

NextTokenTarget::NextTokenTarget(const std::string& target_folder) {
  const std::string weights = "model.safetensors", config = "config.json", base = "base.safetensors";
  for (const auto& entry : std::filesystem::directory_iterator(target_folder)) {
    const std::string name = entry.path().filename();
    if (name == config) continue;
    std::filesystem::create_symlink(entry.path(), folder_.PathOf(name == weights ? base : name));
  }
  nlohmann::json described =
      nlohmann::json::parse(ReadFile(absl::StrCat(target_folder, "/", config), 1 << 20).value());
  described["num_nextn_predict_layers"] = 1;
  folder_.Write(config, described.dump());

  const std::shared_ptr<const Model> target = Model::Load(target_folder).value();
  const ModuleWriter module = MakeModule(*target);
  folder_.Write(kModuleFile, module.Bytes());
  nlohmann::json map = module.names();
  const WeightFiles files = WeightFiles::Open(target_folder).value();
  for (const std::string& name : files.names()) map[name] = base;
  const nlohmann::json index = {{"weight_map", std::move(map)}};
  folder_.Write("model.safetensors.index.json", index.dump());
}

}  // namespace tandem::e2e
