#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/tensor_source.h"
#include "common/model/weight_files.h"

namespace tandem {

// The tensors of a folder's files, as stored. Keeps track of those that were taken.
class FileTensors final : public TensorSource {
 public:
  explicit FileTensors(WeightFiles files) : files_(std::move(files)) {}

  const WeightFiles& files() const { return files_; }

  bool Contains(const std::string& name) const override { return files_.Contains(name); }
  absl::StatusOr<TensorView> Take(const std::string& name, const std::vector<int64_t>& shape) override;
  absl::StatusOr<TensorView> TakeMxFp4(const std::string& name, const std::vector<int64_t>& shape) override;
  absl::StatusOr<std::vector<int64_t>> TakeIntegers(const std::string& name, int64_t count) override;
  // A tensor of any dtype and shape. `expected`: what the caller wants, for the error message.
  absl::StatusOr<StoredTensor> TakeStored(const std::string& name, absl::string_view expected);
  void Ignore(const std::string& name) override { taken_.insert(name); }
  void IgnoreBelow(absl::string_view prefix, bool others) override;
  std::vector<std::string> NamesLeft() const override;
  absl::Status Finish(const std::string& architecture) override;
  // Does not release the scales of MXFP4, which are stored elsewhere and are a sixteenth of it.
  void Release(const TensorView& tensor) const override;

 private:
  absl::StatusOr<const char*> Bytes(const std::string& name, const std::vector<int64_t>& shape);

  WeightFiles files_;
  absl::flat_hash_set<std::string> taken_;
  int num_mxfp4_ = 0;
};

}  // namespace tandem
