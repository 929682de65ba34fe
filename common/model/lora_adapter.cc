#include "common/model/lora_adapter.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "common/model/config/lora_config.h"
#include "common/model/config/strict_json.h"

namespace tandem {
namespace {

constexpr size_t kMostAdapterConfigBytes = size_t{1} << 20;
// What PEFT puts in front of every name.
constexpr absl::string_view kPeftPrefix = "base_model.model.";

}  // namespace

class LoraAdapter::Reader {
 public:
  Reader(const ModelConfig& model, const LoraConfig& config, LoraAdapter* adapter)
      : model_(model), config_(config), adapter_(*adapter) {}

  absl::Status Read() {
    ListModules();
    for (const std::string& name : adapter_.file_.names()) TANDEM_RETURN_IF_ERROR(Find(name));
    adapter_.layers_.resize(static_cast<size_t>(model_.num_layers));
    bool any = false;
    for (Place& place : places_) {
      any = any || !place.a.empty() || !place.b.empty();
      TANDEM_RETURN_IF_ERROR(Take(place));
    }
    if (any) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(adapter_.file_.path(), ": no tensor, expected an adapter's"));
  }

 private:
  // A linear module of a layer that an adapter may have a part in.
  struct LoraModule {
    std::string name;  // In its layer.
    int64_t outputs = 0;
    int64_t inputs = 0;
    // Which of the layer's pairs its outputs are for, in order, and how many are each one's.
    std::vector<std::pair<LoraPair LoraLayer::*, int64_t>> parts;
    // Outputs are of all heads in turn, a query, a key and a value each (QkvLayout::kPerHead).
    bool per_head = false;
  };

  static std::vector<LoraModule> ModulesOf(const ModelConfig& config, size_t layer);

  // A module of a layer, and what the file calls its tensors.
  struct Place {
    size_t layer = 0;
    LoraModule module;
    std::string path;  // As transformers has it.
    std::string a;
    std::string b;
  };

  void ListModules() {
    const TensorNames& names = model_.block.names;
    for (size_t layer = 0; layer < static_cast<size_t>(model_.num_layers); ++layer) {
      for (LoraModule& module : ModulesOf(model_, layer)) {
        const std::string in_model = absl::StrCat(names.layers, layer, ".", module.name);
        for (const std::string& root : names.roots) index_.emplace(root + in_model, places_.size());
        places_.push_back(
            {.layer = layer, .module = std::move(module), .path = names.roots.front() + in_model});
      }
    }
  }

  absl::Status Refuse(const std::string& name, absl::string_view why) const {
    std::vector<std::string> modules;
    for (const LoraModule& module : ModulesOf(model_, 0)) modules.push_back(module.name);
    return absl::UnimplementedError(absl::StrCat(
        adapter_.file_.path(), ": tensor \"", PrintableText(name), "\": ", why, ", supported: ", kPeftPrefix,
        model_.block.names.roots.front(), model_.block.names.layers, "N.MODULE.lora_A.weight and lora_B for ",
        absl::StrJoin(modules, ", "), " of the ", model_.num_layers, " layers of ", model_.architecture));
  }

  absl::Status Find(const std::string& name) {
    absl::string_view rest = name;
    const bool is_a = absl::EndsWith(rest, ".lora_A.weight");
    if (!absl::StartsWith(rest, kPeftPrefix)) return Refuse(name, "not a name that PEFT gives");
    rest.remove_prefix(kPeftPrefix.size());
    if (absl::StrContains(rest, "lora_magnitude_vector")) return Refuse(name, "DoRA");
    if (absl::StrContains(rest, "lora_embedding_")) return Refuse(name, "an adapter of an embedding");
    if (!is_a && !absl::EndsWith(rest, ".lora_B.weight")) {
      return Refuse(name, "a module that was trained as a whole, or an unknown one");
    }
    rest.remove_suffix(absl::string_view(".lora_A.weight").size());
    const auto found = index_.find(rest);
    if (found == index_.end()) {
      const bool of_experts = absl::StrContains(rest, "experts");
      return Refuse(name,
                    of_experts ? "an adapter of experts" : "not a module that an adapter may change here");
    }
    Place& place = places_[found->second];
    std::string& known = is_a ? place.a : place.b;
    if (!known.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(adapter_.file_.path(), ": tensor \"",
                                                     PrintableText(name), "\": \"", known,
                                                     "\" is for the same module, expected one"));
    }
    known = name;
    return absl::OkStatus();
  }

  absl::StatusOr<TensorView> Tensor(const std::string& name, const std::vector<int64_t>& shape) {
    TANDEM_ASSIGN_OR_RETURN(TensorView tensor, adapter_.file_.Tensor(name));
    if (tensor.shape != shape) {
      return absl::InvalidArgumentError(absl::StrCat(
          adapter_.file_.path(), ": tensor \"", PrintableText(name), "\": shape ", ShapeText(tensor.shape),
          ", expected ", ShapeText(shape), " by ", config_.path, " and the model's config.json"));
    }
    adapter_.num_parameters_ += static_cast<uint64_t>(tensor.num_elements());
    adapter_.fingerprint_ = HashBytes(
        absl::string_view(static_cast<const char*>(tensor.data), static_cast<size_t>(tensor.num_bytes())),
        HashBytes(name, HashCombine(adapter_.fingerprint_, static_cast<uint64_t>(tensor.dtype))));
    return tensor;
  }

  absl::Status Take(const Place& place) {
    if (place.a.empty() && place.b.empty()) {
      if (!config_.Targets(place.path, static_cast<int32_t>(place.layer))) return absl::OkStatus();
      return absl::NotFoundError(absl::StrCat(adapter_.file_.path(), ": tensor \"", kPeftPrefix, place.path,
                                              ".lora_A.weight\" is missing, expected because ", config_.path,
                                              " has the module among target_modules"));
    }
    if (place.a.empty() || place.b.empty()) {
      return absl::NotFoundError(absl::StrCat(
          adapter_.file_.path(), ": tensor \"", PrintableText(place.a.empty() ? place.b : place.a),
          "\" has no counterpart, expected lora_A and lora_B of each module"));
    }
    const LoraModule& module = place.module;
    TANDEM_ASSIGN_OR_RETURN(const int32_t rank, config_.RankOf(place.path));
    LoraPair whole;
    TANDEM_ASSIGN_OR_RETURN(whole.scale, config_.ScaleOf(place.path));
    TANDEM_ASSIGN_OR_RETURN(whole.a, Tensor(place.a, {rank, module.inputs}));
    TANDEM_ASSIGN_OR_RETURN(whole.b, Tensor(place.b, {module.outputs, rank}));
    adapter_.fingerprint_ = HashCombine(adapter_.fingerprint_, std::bit_cast<uint32_t>(whole.scale));
    adapter_.greatest_rank_ = std::max(adapter_.greatest_rank_, static_cast<uint32_t>(rank));
    LoraLayer& layer = adapter_.layers_[place.layer];
    if (module.parts.size() == 1) {
      layer.*module.parts.front().first = whole;
      return absl::OkStatus();
    }
    int64_t begin = 0;
    for (const auto& [part, outputs] : module.parts) {
      LoraPair& pair = layer.*part;
      pair = whole;
      if (module.per_head) {
        const int64_t head = model_.head_dim;
        pair.b = RowsOfGroups(whole.b, 3 * head, begin, head);
        begin += head;
      } else {
        pair.b = RowsOf(whole.b, begin, outputs);
        begin += outputs;
      }
    }
    return absl::OkStatus();
  }

  const ModelConfig& model_;
  const LoraConfig& config_;
  LoraAdapter& adapter_;
  std::vector<Place> places_;
  absl::flat_hash_map<std::string, size_t> index_;  // By every name that a path may have.
};

std::vector<LoraAdapter::Reader::LoraModule> LoraAdapter::Reader::ModulesOf(const ModelConfig& config,
                                                                            size_t layer) {
  const BlockDescription& block = config.block;
  const TensorNames& names = block.names;
  const int64_t hidden = config.hidden_size, intermediate = config.intermediate_size;
  const int64_t query = config.query_size(), kv = config.kv_size();
  std::vector<LoraModule> modules;
  const auto add = [&](const std::string& name, int64_t inputs,
                       std::vector<std::pair<LoraPair LoraLayer::*, int64_t>> parts) {
    LoraModule module{.name = name, .inputs = inputs, .parts = std::move(parts)};
    for (const auto& part : module.parts) module.outputs += part.second;
    modules.push_back(std::move(module));
  };
  if (block.qkv == QkvLayout::kSeparate) {
    add(names.query, hidden, {{&LoraLayer::query, query}});
    add(names.key, hidden, {{&LoraLayer::key, kv}});
    add(names.value, hidden, {{&LoraLayer::value, kv}});
  } else {
    add(names.query_key_value, hidden,
        {{&LoraLayer::query, query}, {&LoraLayer::key, kv}, {&LoraLayer::value, kv}});
    modules.back().per_head = block.qkv == QkvLayout::kPerHead;
  }
  add(names.attention_out, query, {{&LoraLayer::attention_out, hidden}});
  if (block.has_experts(layer)) return modules;
  if (!names.gate_up.empty()) {
    add(names.gate_up, hidden, {{&LoraLayer::gate, intermediate}, {&LoraLayer::up, intermediate}});
  } else {
    if (block.gated) add(names.gate, hidden, {{&LoraLayer::gate, intermediate}});
    add(names.up, hidden, {{&LoraLayer::up, intermediate}});
  }
  add(names.down, intermediate, {{&LoraLayer::down, hidden}});
  return modules;
}

absl::StatusOr<std::shared_ptr<const LoraAdapter>> LoraAdapter::Load(const std::string& folder,
                                                                     const ModelConfig& model) {
  const std::string config_path = absl::StrCat(folder, "/adapter_config.json");
  TANDEM_ASSIGN_OR_RETURN(const std::string json, ReadFile(config_path, kMostAdapterConfigBytes));
  TANDEM_ASSIGN_OR_RETURN(const LoraConfig config, ParseLoraConfig(json, config_path));
  if (model.head.has_value()) {
    return absl::UnimplementedError(
        absl::StrCat(config_path, ": an adapter of a draft head, supported: of ", "language models"));
  }
  if (model.block.latent.exists()) {
    return absl::UnimplementedError(absl::StrCat(
        config_path, ": an adapter of a ", model.architecture, " with latent attention (kv_lora_rank ",
        model.block.latent.kv_rank, "), supported: of models without"));
  }
  const std::string path = absl::StrCat(folder, "/adapter_model.safetensors");
  absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  if (absl::IsNotFound(file.status())) {
    return absl::NotFoundError(
        absl::StrCat(path,
                     ": no such file, expected beside adapter_config.json (adapter_model.bin is not "
                     "supported: save_pretrained with safe_serialization writes this one)"));
  }
  if (!file.ok()) return file.status();
  std::shared_ptr<LoraAdapter> adapter(new LoraAdapter(folder, *std::move(file)));
  TANDEM_RETURN_IF_ERROR(Reader(model, config, adapter.get()).Read());
  return adapter;
}

}  // namespace tandem
