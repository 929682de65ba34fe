#pragma once

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/safetensors.h"

namespace tandem {

// The weights of a Hugging Face model folder as one set of named tensors: model.safetensors, or the shards
// that model.safetensors.index.json assigns tensors to (where both exist, the single file is read), or, of
// Medusa heads as their authors name it, medusa_lm_head.safetensors (where neither exists).
//
// An index names files in its own folder only. Every tensor it lists must lie in the shard it names, and
// every tensor of a shard must be listed for that shard, so that no tensor exists twice and none is silently
// ignored.
//
// Owns the mappings; views are valid as long as the object, or what it was moved to, lives.
class WeightFiles {
 public:
  // NotFound when there is no such file or a shard is missing; InvalidArgument for content that breaks the
  // rules.
  static absl::StatusOr<WeightFiles> Open(const std::string& folder);

  // The single file or the index: what an error about a missing tensor should name.
  const std::string& path() const { return path_; }
  // Sorted.
  const std::vector<std::string>& names() const { return names_; }
  bool Contains(absl::string_view name) const { return file_index_.contains(name); }
  // The file that holds a tensor which exists.
  const std::string& FileOf(absl::string_view name) const;

  // As SafetensorsFile::Tensor.
  absl::StatusOr<TensorView> Tensor(absl::string_view name) const;
  // As SafetensorsFile::Stored.
  absl::StatusOr<StoredTensor> Stored(absl::string_view name) const;
  // As SafetensorsFile::Bytes.
  absl::StatusOr<const char*> Bytes(absl::string_view name, const std::vector<int64_t>& shape) const;
  // As SafetensorsFile::Integers.
  absl::StatusOr<std::vector<int64_t>> Integers(absl::string_view name, int64_t count) const;

 private:
  WeightFiles() = default;

  absl::Status OpenSingle(const std::string& path);
  absl::Status OpenShards(const std::string& folder);

  std::string path_;
  std::vector<SafetensorsFile> files_;
  absl::flat_hash_map<std::string, size_t> file_index_;  // Tensor name to its place in files_.
  std::vector<std::string> names_;
};

}  // namespace tandem
