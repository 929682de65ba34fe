#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/model/config/architecture.h"
#include "common/model/tensor_view.h"

namespace tandem {

// Provides and owns a Model's tensors: views are valid as long as the source exists.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  // Where the source holds tensors otherwise than a folder does, changes their description: names, fused and
  // transposed matrices.
  virtual void Describe(BlockDescription* /*block*/) const {}
  // Whether an optional tensor exists.
  virtual bool Contains(const std::string& name) const = 0;
  // The tensor, which must have that shape; errors name it and say what was expected.
  virtual absl::StatusOr<TensorView> Take(const std::string& name, const std::vector<int64_t>& shape) = 0;
  // A tensor of kMxFp4, [matrices, outputs, inputs], which is stored in two tensors of bytes: NAME_blocks
  // [matrices, outputs, inputs / 32, 16] and NAME_scales [matrices, outputs, inputs / 32]. Errors as in Take.
  virtual absl::StatusOr<TensorView> TakeMxFp4(const std::string& name,
                                               const std::vector<int64_t>& /*shape*/) {
    return absl::UnimplementedError(absl::StrCat("tensor \"", name, "\": MXFP4 is read from safetensors"));
  }
  // A vector of `count` 64-bit integers. Errors as in Take.
  virtual absl::StatusOr<std::vector<int64_t>> TakeIntegers(const std::string& name, int64_t count) = 0;
  // Allows a tensor that may exist and is not needed, because it follows from others.
  virtual void Ignore(const std::string& /*name*/) {}
  // The same for all tensors whose names begin with `prefix`, or for all others.
  virtual void IgnoreBelow(absl::string_view /*prefix*/, bool /*others*/ = false) {}
  // The tensors that were neither taken nor allowed; empty for sources that do not know.
  virtual std::vector<std::string> NamesLeft() const { return {}; }
  // Called after the model has taken its tensors: an error if there are others that it does not know.
  virtual absl::Status Finish(const std::string& architecture) = 0;
  // See Model::Release.
  virtual void Release(const TensorView& /*tensor*/) const {}
};

}  // namespace tandem
