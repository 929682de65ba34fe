#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/tensor_source.h"

namespace tandem {

// Tensors that are generated on request; see Model::Random.
class RandomWeights final : public TensorSource {
 public:
  explicit RandomWeights(uint64_t seed) : seed_(seed) {}

  // There are no optional tensors: a tied model gets no output projection of its own.
  bool Contains(const std::string& /*name*/) const override { return false; }
  // ResourceExhausted without memory, InvalidArgument for sizes below 1 or whose product overflows.
  absl::StatusOr<TensorView> Take(const std::string& name, const std::vector<int64_t>& shape) override;
  // 0, 0, ...: a draft head's tokens are those of its target.
  absl::StatusOr<std::vector<int64_t>> TakeIntegers(const std::string& /*name*/, int64_t count) override {
    return std::vector<int64_t>(static_cast<size_t>(count));
  }
  absl::Status Finish(const std::string& /*architecture*/) override { return absl::OkStatus(); }

 private:
  const uint64_t seed_;
  std::vector<std::unique_ptr<uint16_t[]>> tensors_;
};

}  // namespace tandem
