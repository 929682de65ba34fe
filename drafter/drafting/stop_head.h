#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace tandem {

// The acceptance prediction head of SpecDec++ (Huang et al., 2024, section 3.2): from a draft model's hidden
// state behind a token that it guessed (the normed one, which its output matrix multiplies), the probability
// that the target accepts the token, given that it accepts all tokens before it. A residual network:
//
//   x <- x + silu(W x + b), for each layer;  sigmoid(w x + c)
//
// deploy/demo-models/train/stop_head.py writes the file, next to the model's weights. Immutable, so
// thread-safe.
class StopHead {
 public:
  static constexpr char kFileName[] = "stop_head.safetensors";
  // Most layers of a valid file.
  static constexpr int kMaxLayers = 16;

  virtual ~StopHead() = default;

  // Loads the folder's stop head, for a model with states of `hidden_size`; nullptr if there is none. Tensors
  // are layers.N.weight [hidden, hidden], layers.N.bias [hidden], from N = 0 without a gap, output.weight [1,
  // hidden] and output.bias [1], of any type that weights may have. InvalidArgument names the file, the
  // tensor and what was expected; NotFound a tensor that is missing.
  static absl::StatusOr<std::unique_ptr<const StopHead>> LoadIfPresent(const std::string& folder,
                                                                       int32_t hidden_size);

  // The probability of acceptance, in (0, 1]; `state` is [hidden_size]. For states that are not finite, the
  // smallest value.
  virtual float Acceptance(absl::Span<const float> state) const = 0;
};

}  // namespace tandem
