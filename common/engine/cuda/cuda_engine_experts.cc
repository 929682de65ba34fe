// Mixtures of experts in a step (expert_kernels.h).

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/engine/cuda/cuda_engine.h"
#include "common/engine/cuda/row_products.h"

namespace tandem {

absl::Status CudaEngine::AllocateExpertScratch() {
  const ExpertsDescription& description = config_.block.experts;
  if (!description.exist()) return absl::OkStatus();
  const ExpertSizes sizes = expert_sizes();
  const auto hidden = static_cast<uint64_t>(config_.hidden_size);
  const uint64_t rows = padded_rows_;
  const uint64_t choices = rows * sizes.num_chosen;
  // The limit for blocks of threads along y.
  constexpr uint64_t kMostItems = 65535;
  if (choices > std::numeric_limits<uint32_t>::max() || MostItems(padded_rows_, sizes) > kMostItems) {
    return absl::InvalidArgumentError(absl::StrCat(
        "steps of ", padded_rows_, " rows that take ", sizes.num_chosen, " of ", sizes.num_experts,
        " experts each; expected so few that they make at most ", kMostItems, " groups"));
  }
  if (const LaunchShape shape = GroupExpertsShape(sizes); shape.shared_bytes > ops_->max_shared_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat(sizes.num_experts, " experts take ", shape.shared_bytes,
                                                   " bytes of shared memory; this GPU has ",
                                                   ops_->max_shared_bytes()));
  }
  const char* const what = "experts' activations";
  const uint64_t num_routed = sizes.num_experts + (description.shared_size > 0 ? 1 : 0);
  const uint64_t middle = shard_.expert_intermediate.size();
  TANDEM_ASSIGN_OR_RETURN(experts_.inputs, ops_->Allocate<float>(rows * hidden, what));
  TANDEM_ASSIGN_OR_RETURN(experts_.routed, ops_->Allocate<float>(rows * num_routed, what));
  TANDEM_ASSIGN_OR_RETURN(experts_.experts, ops_->Allocate<uint32_t>(choices, what));
  TANDEM_ASSIGN_OR_RETURN(experts_.weights, ops_->Allocate<float>(choices, what));
  // A smaller bucket has smaller items, and so may have more of them.
  uint64_t most_items = 0;
  for (uint32_t bucket = BucketOf(1); bucket <= padded_rows_; bucket = BucketOf(bucket + 1)) {
    most_items = std::max<uint64_t>(most_items, MostItems(bucket, sizes));
  }
  TANDEM_ASSIGN_OR_RETURN(experts_.plan.items,
                          ops_->Allocate<uint32_t>(1 + most_items * ExpertPlan::kItemWords, what));
  TANDEM_ASSIGN_OR_RETURN(experts_.plan.choices, ops_->Allocate<uint32_t>(choices, what));
  TANDEM_ASSIGN_OR_RETURN(experts_.plan.rows, ops_->Allocate<uint32_t>(choices, what));
  TANDEM_ASSIGN_OR_RETURN(experts_.num_read, ops_->Allocate<uint64_t>(1, what));
  TANDEM_ASSIGN_OR_RETURN(experts_.gate_up, ops_->Allocate<float>(choices * 2 * middle, what));
  TANDEM_ASSIGN_OR_RETURN(experts_.gated, ops_->Allocate<Bf16>(choices * middle, what));
  TANDEM_ASSIGN_OR_RETURN(experts_.outputs, ops_->Allocate<float>(choices * hidden, what));
  return absl::OkStatus();
}

absl::Status CudaEngine::ComputeExperts(uint32_t layer, const Bucket& bucket) {
  const DeviceWeights::Layer& weights = weights_.layers[layer];
  const DeviceWeights::Experts& experts = weights.experts;
  TANDEM_RETURN_IF_ERROR(ChooseExperts(layer, bucket));
  const bool is_shared = weights.gate_up.outputs > 0;
  if (is_shared) {
    TANDEM_RETURN_IF_ERROR(ComputeGate(layer, bucket));
    TANDEM_RETURN_IF_ERROR(Multiply(weights.down, gated_, addends_, bucket.rows));
  }
  TANDEM_RETURN_IF_ERROR(MultiplyExperts(experts, bucket));
  SumExpertsKernel sum;
  sum.step = step_;
  sum.outputs = experts_.outputs;
  sum.experts = experts_.experts;
  sum.weights = experts_.weights;
  sum.bias = experts.down_bias;
  if (is_shared) {
    sum.routed = experts_.routed;
    sum.shared_bias = experts.shared_bias;
  }
  sum.sums = addends_;
  sum.hidden_size = static_cast<uint32_t>(config_.hidden_size);
  sum.num_experts = expert_sizes().num_experts;
  sum.num_chosen = expert_sizes().num_chosen;
  TANDEM_RETURN_IF_ERROR(ops_->Launch(sum, GateShape(bucket.rows, sum.hidden_size)));
  return GatherAddends(uint64_t{bucket.rows} * sum.hidden_size);
}

absl::Status CudaEngine::ChooseExperts(uint32_t layer, const Bucket& bucket) {
  const DeviceWeights::Experts& experts = weights_.layers[layer].experts;
  const ExpertSizes sizes = expert_sizes();
  RouteKernel route;
  route.step = step_;
  route.inputs = experts_.inputs;
  route.weights = experts.router;
  route.bias = experts.router_bias;
  route.outputs = experts_.routed;
  route.hidden_size = static_cast<uint32_t>(config_.hidden_size);
  route.num_outputs = static_cast<uint32_t>(experts.router.size / route.hidden_size);
  TANDEM_RETURN_IF_ERROR(ops_->Launch(route, RouteShape(bucket.rows, route.num_outputs)));
  ChooseExpertsKernel choose;
  choose.step = step_;
  choose.routed = experts_.routed;
  choose.experts = experts_.experts;
  choose.weights = experts_.weights;
  choose.num_experts = sizes.num_experts;
  choose.num_routed = route.num_outputs;
  choose.num_chosen = sizes.num_chosen;
  choose.over_chosen = config_.block.experts.scores_add_up_to_one;
  TANDEM_RETURN_IF_ERROR(ops_->Launch(choose, ChooseExpertsShape(bucket.rows, sizes)));
  GroupExpertsKernel group;
  group.step = step_;
  group.experts = experts_.experts;
  group.plan = experts_.plan;
  group.num_read = experts_.num_read;
  group.is_first = std::none_of(weights_.layers.begin(), weights_.layers.begin() + layer,
                                [](const DeviceWeights::Layer& each) { return each.experts.exist(); });
  group.num_experts = sizes.num_experts;
  group.num_chosen = sizes.num_chosen;
  group.rows_per_item = RowsPerItem(bucket.rows, sizes);
  return ops_->Launch(group, GroupExpertsShape(sizes));
}

absl::Status CudaEngine::MultiplyExperts(const DeviceWeights::Experts& experts, const Bucket& bucket) {
  ExpertProduct product = {.sizes = expert_sizes(), .rows = {.plan = experts_.plan}, .num_rows = bucket.rows};
  TANDEM_RETURN_IF_ERROR(
      MultiplyExpertRows(experts.gate_up, product, normed_, experts_.gate_up, rounded_, ops_.get()));
  const uint32_t num_choices = bucket.rows * product.sizes.num_chosen;
  const uint32_t width = shard_.expert_intermediate.size();
  const GateKernel gate = {.step = step_,
                           .gate_up = experts_.gate_up,
                           .bias = experts.gate_up_bias,
                           .output = experts_.gated,
                           .width = width,
                           .activation = static_cast<uint32_t>(config_.block.activation),
                           .gated = true,
                           .limits = Limits(),
                           .num_each = product.sizes.num_chosen,
                           .experts = experts_.experts};
  TANDEM_RETURN_IF_ERROR(ops_->Launch(gate, GateShape(num_choices, width)));
  product.rows.reads_rows = false;
  return MultiplyExpertRows(experts.down, product, experts_.gated, experts_.outputs, rounded_, ops_.get());
}

}  // namespace tandem
