#include "common/model/weight_files.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "common/model/config/strict_json.h"

namespace tandem {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxIndexBytes = 100'000'000;
constexpr size_t kMaxShards = 4096;

// An index may name files of its own folder only.
absl::Status CheckShardName(const std::string& path, absl::string_view tensor, const Json& shard) {
  if (shard.is_string()) {
    const std::string& name = shard.get_ref<const std::string&>();
    constexpr char kSeparators[] = {'/', '\\', '\0'};
    const bool plain = name.find_first_of(kSeparators, 0, sizeof(kSeparators)) == std::string::npos;
    if (plain && !absl::StrContains(name, "..") && absl::EndsWith(name, ".safetensors"))
      return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": weight_map of tensor \"", PrintableText(tensor), "\": found ",
                   PrintableValue(shard), ", expected the name of a .safetensors file in the same folder"));
}

// The folder may have weights in Python's pickle format, which can run code when it is opened. torch reads no
// more than tensors from it if it is told so.
absl::Status NoSafetensors(const std::string& folder, const absl::Status& not_found) {
  static constexpr std::array<std::pair<absl::string_view, absl::string_view>, 2> kPickles = {
      std::pair{"pytorch_model.bin", "model.safetensors"},
      std::pair{"medusa_lm_head.pt", "medusa_lm_head.safetensors"}};
  for (const auto& [pickle, safetensors] : kPickles) {
    std::error_code ignored;
    if (!std::filesystem::exists(absl::StrCat(folder, "/", pickle), ignored)) continue;
    return absl::NotFoundError(absl::StrCat(
        not_found.message(), "; found ", pickle,
        ", which is not read because it can run code. To convert it: cd ", folder,
        " && python3 -c 'import torch; from safetensors.torch import save_file; tensors = torch.load(\"",
        pickle,
        "\", map_location=\"cpu\", weights_only=True); save_file({name: tensor.clone().contiguous() for "
        "name, "
        "tensor in tensors.items()}, \"",
        safetensors, "\")'"));
  }
  return not_found;
}

}  // namespace

absl::StatusOr<WeightFiles> WeightFiles::Open(const std::string& folder) {
  WeightFiles weights;
  absl::Status opened = weights.OpenSingle(absl::StrCat(folder, "/model.safetensors"));
  if (absl::IsNotFound(opened)) opened = weights.OpenShards(folder);
  if (absl::IsNotFound(opened) && weights.files_.empty()) {
    const absl::Status medusa = weights.OpenSingle(absl::StrCat(folder, "/medusa_lm_head.safetensors"));
    // What a folder of another model should have is the better message.
    if (!absl::IsNotFound(medusa)) opened = medusa;
  }
  if (absl::IsNotFound(opened) && weights.files_.empty()) return NoSafetensors(folder, opened);
  if (!opened.ok()) return opened;
  return weights;
}

absl::Status WeightFiles::OpenSingle(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(SafetensorsFile single, SafetensorsFile::Open(path));
  path_ = path;
  names_ = single.names();
  for (const std::string& name : names_) file_index_.emplace(name, 0);
  files_.push_back(std::move(single));
  return absl::OkStatus();
}

absl::Status WeightFiles::OpenShards(const std::string& folder) {
  path_ = absl::StrCat(folder, "/model.safetensors.index.json");
  absl::StatusOr<std::string> text = ReadFile(path_, kMaxIndexBytes);
  if (absl::IsNotFound(text.status())) {
    return absl::NotFoundError(
        absl::StrCat(folder, ": expected model.safetensors or model.safetensors.index.json"));
  }
  if (!text.ok()) return text.status();
  TANDEM_ASSIGN_OR_RETURN(const Json index, ParseStrictJson(*text, path_));
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (map == index.end() || !map->is_object() || map->empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": expected a non-empty object \"weight_map\" from tensor to file name"));
  }
  absl::flat_hash_map<std::string, size_t> shards;
  for (const auto& [tensor, shard] : map->items()) {
    TANDEM_RETURN_IF_ERROR(CheckShardName(path_, tensor, shard));
    const std::string& shard_name = shard.get_ref<const std::string&>();
    const auto [found, is_new] = shards.try_emplace(shard_name, files_.size());
    if (is_new) {
      if (files_.size() == kMaxShards) {
        return absl::InvalidArgumentError(absl::StrCat(path_, ": expected at most ", kMaxShards, " shards"));
      }
      absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(absl::StrCat(folder, "/", shard_name));
      if (!file.ok()) {
        return absl::Status(file.status().code(),
                            absl::StrCat(file.status().message(), " (a shard that ", path_, " names)"));
      }
      files_.push_back(*std::move(file));
    }
    if (!files_[found->second].Contains(tensor)) {
      return absl::InvalidArgumentError(absl::StrCat(files_[found->second].path(), ": tensor \"",
                                                     PrintableText(tensor), "\" is missing, expected as ",
                                                     path_, " lists it there"));
    }
    file_index_.emplace(tensor, found->second);
    names_.push_back(tensor);
  }
  for (size_t i = 0; i < files_.size(); ++i) {
    for (const std::string& name : files_[i].names()) {
      const auto listed = file_index_.find(name);
      if (listed != file_index_.end() && listed->second == i) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          files_[i].path(), ": tensor \"", PrintableText(name), "\": ",
          listed == file_index_.end() ? "not listed in "
                                      : "lies in a second shard too, expected only the one listed in ",
          path_));
    }
  }
  std::sort(names_.begin(), names_.end());
  return absl::OkStatus();
}

const std::string& WeightFiles::FileOf(absl::string_view name) const {
  const auto found = file_index_.find(name);
  assert(found != file_index_.end());
  return files_[found->second].path();
}

absl::StatusOr<TensorView> WeightFiles::Tensor(absl::string_view name) const {
  const auto found = file_index_.find(name);
  if (found == file_index_.end()) {
    return absl::NotFoundError(absl::StrCat(path_, ": tensor \"", name, "\" is missing"));
  }
  return files_[found->second].Tensor(name);
}

absl::StatusOr<StoredTensor> WeightFiles::Stored(absl::string_view name) const {
  const auto found = file_index_.find(name);
  if (found == file_index_.end()) {
    return absl::NotFoundError(absl::StrCat(path_, ": tensor \"", name, "\" is missing"));
  }
  return files_[found->second].Stored(name);
}

absl::StatusOr<const char*> WeightFiles::Bytes(absl::string_view name,
                                               const std::vector<int64_t>& shape) const {
  const auto found = file_index_.find(name);
  if (found == file_index_.end()) {
    return absl::NotFoundError(absl::StrCat(path_, ": tensor \"", name, "\" is missing"));
  }
  return files_[found->second].Bytes(name, shape);
}

absl::StatusOr<std::vector<int64_t>> WeightFiles::Integers(absl::string_view name, int64_t count) const {
  const auto found = file_index_.find(name);
  if (found == file_index_.end()) {
    return absl::NotFoundError(absl::StrCat(path_, ": tensor \"", name, "\" is missing"));
  }
  return files_[found->second].Integers(name, count);
}

}  // namespace tandem
