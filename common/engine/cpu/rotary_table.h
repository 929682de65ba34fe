#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/cpu/aligned_buffer.h"
#include "common/model/config/model_config.h"

namespace tandem {

// Cosines and sines of the rotary position embedding (Su et al., RoFormer, 2021): computed in double
// precision, rounded once. Frequencies are theta^(-2 i / rotary_dim), stretched as RopeScaling says. There is
// room for every position that can occur. They are computed as positions occur, since few requests come near
// the end of a model's context.
class RotaryTable {
 public:
  RotaryTable() = default;
  // With no position computed. ResourceExhausted without memory.
  static absl::StatusOr<RotaryTable> Build(const ModelConfig& config, uint32_t num_positions);
  // For layers that use block.local_rope_theta.
  static absl::StatusOr<RotaryTable> BuildLocal(const ModelConfig& config, uint32_t num_positions);

  // Computes all positions below this, at most num_positions. Nobody may read meanwhile.
  void ExtendTo(uint32_t num_positions);

  // Needs ExtendTo(position + 1). Rotates the first rotary_dim numbers of one head in place. Element i pairs
  // with i + rotary_dim / 2, as in most Hugging Face models. With rotary_pairs_adjacent, 2i pairs with 2i
  // + 1.
  void Rotate(uint32_t position, float* head) const;

  // Of the positions computed: [positions][cosines, sines][rotary_dim / 2]
  absl::Span<const float> values() const;

 private:
  static absl::StatusOr<RotaryTable> Reserve(const ModelConfig& config, double theta,
                                             const RopeScaling& scaling, uint32_t num_positions);

  uint32_t num_positions_ = 0;
  uint32_t num_computed_ = 0;
  std::vector<double> frequencies_;
  double size_ = 1.0;
  uint32_t half_ = 0;
  bool adjacent_ = false;
  AlignedBuffer data_;  // As values().
};

}  // namespace tandem
