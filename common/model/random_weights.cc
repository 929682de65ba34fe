#include "common/model/random_weights.h"

#include <cmath>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/checked_math.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

// Uniform in center +- spread.
struct Distribution {
  float center = 0.0f;
  float spread = 1.0f;
};

Distribution DistributionOf(const std::string& name, const std::vector<int64_t>& shape) {
  if (absl::EndsWith(name, "embed_tokens.weight")) return {0.0f, 1.0f};
  if (shape.size() == 1) {
    return absl::EndsWith(name, ".bias") ? Distribution{0.0f, 0.5f} : Distribution{1.0f, 0.5f};
  }
  // The variance of a uniform distribution is a third of its spread squared.
  return {0.0f, std::sqrt(3.0f / static_cast<float>(shape.back()))};
}

absl::StatusOr<uint64_t> CountElements(const std::string& name, const std::vector<int64_t>& shape) {
  std::optional<uint64_t> count = 1;
  for (const int64_t size : shape) {
    if (size < 1) count = std::nullopt;
    if (count.has_value()) count = CheckedMultiply(*count, static_cast<uint64_t>(size));
  }
  // Bounded so that neither the bytes nor a signed count overflow.
  if (!count.has_value() || *count > uint64_t{1} << 60) {
    return absl::InvalidArgumentError(absl::StrCat("tensor \"", name, "\": shape ", ShapeText(shape),
                                                   ", expected sizes from 1 with a product below 2^60"));
  }
  return *count;
}

void Fill(uint64_t seed, const Distribution& distribution, uint64_t count, uint16_t* values) {
  for (uint64_t i = 0; i < count; i += 4) {
    uint64_t bits = Mix64(seed + i);
    for (uint64_t j = i; j < i + 4 && j < count; ++j, bits >>= 16) {
      // An odd number over 2^16: never 0, so never near a denormal either.
      const float uniform =
          static_cast<float>(2 * static_cast<int32_t>(bits & 0xffff) + 1 - 65536) * (1.0f / 65536);
      const float value = distribution.center + distribution.spread * uniform;
      uint32_t word;
      std::memcpy(&word, &value, sizeof(word));
      values[j] = static_cast<uint16_t>(word >> 16);
    }
  }
}

}  // namespace

absl::StatusOr<TensorView> RandomWeights::Take(const std::string& name, const std::vector<int64_t>& shape) {
  TANDEM_ASSIGN_OR_RETURN(const uint64_t count, CountElements(name, shape));
  std::unique_ptr<uint16_t[]> values(new (std::nothrow) uint16_t[count]);
  if (values == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for ", 2 * count, " bytes of random tensor \"", name, "\""));
  }
  Fill(HashBytes(name, seed_), DistributionOf(name, shape), count, values.get());
  const TensorView view = {.dtype = TensorView::DType::kBF16, .shape = shape, .data = values.get()};
  tensors_.push_back(std::move(values));
  return view;
}

}  // namespace tandem
