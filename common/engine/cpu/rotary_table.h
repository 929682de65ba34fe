#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/engine/cpu/aligned_buffer.h"
#include "common/model/model_config.h"

namespace tandem {

// Cosines and sines of the rotary position embedding (Su et al., RoFormer, 2021), for every position that can
// occur: computed in double precision, rounded once. Frequency i of head_dim / 2 is theta^(-2 i / head_dim),
// stretched as the configuration says: `linear` divides it by the factor; `llama3` divides low frequencies,
// keeps high ones and blends those between.
class RotaryTable {
 public:
  RotaryTable() = default;
  static absl::StatusOr<RotaryTable> Build(const ModelConfig& config, uint32_t num_positions);

  // Rotates one head in place. Half-rotation, as in Hugging Face models: element i pairs with i + head_dim
  // / 2.
  void Rotate(uint32_t position, float* head) const;

 private:
  uint32_t half_ = 0;
  AlignedBuffer data_;  // [num_positions][cosines, sines][head_dim / 2]
};

}  // namespace tandem
