#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/engine/cpu/kernel_table.h"
#include "common/model/config/architecture.h"

namespace tandem {

// An expert chosen for a row.
struct ExpertChoice {
  uint32_t expert = 0;
  uint32_t slot = 0;  // The row's place among the gathered rows.
  float weight = 0.0f;
};

// Chooses a row's experts from the router's logits (equations: ExpertsDescription). One per thread,
// because it holds scratch memory.
class ExpertChooser {
 public:
  // Both outlive this.
  ExpertChooser(const ExpertsDescription& experts, const KernelTable& kernels);

  // `logits` and `selection_bias` are [num_experts]; `selection_bias` may be empty. Fills `choices`,
  // [num_chosen], in the order of their experts, except for slots. The experts are always different, whatever
  // the router computed: a NaN is chosen only if nothing else is left.
  void Choose(const float* logits, absl::Span<const float> selection_bias, absl::Span<ExpertChoice> choices);

 private:
  // Chooses the experts with the greatest `values` in the allowed groups, the first one among equals.
  void TakeGreatest(const float* values, absl::Span<ExpertChoice> choices);
  void ChooseGroups(const float* values);
  void WeighBySoftmax(const float* logits, absl::Span<ExpertChoice> choices);
  void WeighBySigmoid(absl::Span<ExpertChoice> choices);

  const ExpertsDescription& experts_;
  const KernelTable& kernels_;
  std::vector<float> scores_;         // [num_experts]
  std::vector<float> biased_;         // [num_experts], if there are biases
  std::vector<ExpertChoice> places_;  // [group_places]
  std::vector<ExpertChoice> groups_;  // [num_chosen_groups]
};

}  // namespace tandem
