#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/cpu/aligned_buffer.h"
#include "common/model/config/model_config.h"

namespace tandem {

// Cosines and sines of the rotary position embedding (Su et al., RoFormer, 2021), for every position that can
// occur: computed in double precision, rounded once. Frequencies are theta^(-2 i / rotary_dim), stretched as
// RopeScaling says.
class RotaryTable {
 public:
  RotaryTable() = default;
  // ResourceExhausted without memory.
  static absl::StatusOr<RotaryTable> Build(const ModelConfig& config, uint32_t num_positions);
  // For layers that use block.local_rope_theta.
  static absl::StatusOr<RotaryTable> BuildLocal(const ModelConfig& config, uint32_t num_positions);

  // Rotates the first rotary_dim numbers of one head in place. Element i pairs with i + rotary_dim / 2, as in
  // most Hugging Face models. With rotary_pairs_adjacent, 2i pairs with 2i + 1.
  void Rotate(uint32_t position, float* head) const;

  // [num_positions][cosines, sines][rotary_dim / 2]
  absl::Span<const float> values() const;

 private:
  static absl::StatusOr<RotaryTable> Fill(const ModelConfig& config, double theta, const RopeScaling& scaling,
                                          uint32_t num_positions);

  uint32_t num_positions_ = 0;
  uint32_t half_ = 0;
  bool adjacent_ = false;
  AlignedBuffer data_;  // As values().
};

}  // namespace tandem
