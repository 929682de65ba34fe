#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/model/tensor_view.h"

namespace tandem {

// Where a Model's tensors come from, and who owns them: views are valid as long as the source lives.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  // Whether a tensor that a model may have or lack is there.
  virtual bool Contains(const std::string& name) const = 0;
  // The tensor, which must have that shape; errors name it and say what was expected.
  virtual absl::StatusOr<TensorView> Take(const std::string& name, const std::vector<int64_t>& shape) = 0;
  // A tensor of kMxFp4, [matrices, outputs, inputs], which lies in two, NAME_blocks and NAME_scales, of bytes
  // [matrices, outputs, inputs / 32, 16] and [matrices, outputs, inputs / 32]. Errors likewise.
  virtual absl::StatusOr<TensorView> TakeMxFp4(const std::string& name,
                                               const std::vector<int64_t>& /*shape*/) {
    return absl::UnimplementedError(absl::StrCat("tensor \"", name, "\": MXFP4 is read from safetensors"));
  }
  // A vector of so many 64-bit integers. Errors likewise.
  virtual absl::StatusOr<std::vector<int64_t>> TakeIntegers(const std::string& name, int64_t count) = 0;
  // Says that a tensor may be there and is not needed: what it holds follows from others.
  virtual void Ignore(const std::string& /*name*/) {}
  // Likewise of all whose names begin with `prefix`, or of all others.
  virtual void IgnoreBelow(absl::string_view /*prefix*/, bool /*others*/ = false) {}
  // Called once the model has taken what it needs: an error when something it should know about is left.
  virtual absl::Status Finish(const std::string& architecture) = 0;
  // See Model::Release.
  virtual void Release(const TensorView& /*tensor*/) const {}
};

}  // namespace tandem
