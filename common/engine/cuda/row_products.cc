#include "common/engine/cuda/row_products.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

absl::StatusOr<RoundedInputs> Round(DeviceSpan<const Bf16> inputs, uint32_t num_rows, uint32_t depth,
                                    const RoundedInputs& room, DeviceOps* ops) {
  const uint64_t groups = uint64_t{num_rows} * NumInputGroups(depth);
  const RoundedInputs rounded = {room.words.Part(0, groups * RoundedInputs::kGroupWords),
                                 room.scales.Part(0, groups)};
  TANDEM_RETURN_IF_ERROR(
      ops->Launch(RoundInputsKernel{inputs, rounded, depth}, RoundInputsShape(num_rows, depth)));
  return rounded;
}

absl::Status MultiplyPacked(const DeviceMatrix& matrix, DeviceSpan<const Bf16> inputs,
                            DeviceSpan<float> outputs, uint32_t num_rows, const RoundedInputs& room,
                            DeviceOps* ops) {
  const ProductGrid grid = {.outputs = matrix.outputs, .depth = matrix.depth, .num_rows = num_rows};
  const LaunchShape shape = MultiplyShape(grid);
  if (matrix.format == DeviceFormat::kFp8) {
    return ops->Launch(MultiplyFp8Kernel{matrix.packed, inputs, outputs, grid}, shape);
  }
  TANDEM_ASSIGN_OR_RETURN(const RoundedInputs rounded, Round(inputs, num_rows, matrix.depth, room, ops));
  if (matrix.format == DeviceFormat::kInt4) {
    return ops->Launch(MultiplyInt4Kernel{matrix.packed, rounded, outputs, grid}, shape);
  }
  return ops->Launch(MultiplyInt8Kernel{matrix.packed, rounded, outputs, grid}, shape);
}

}  // namespace

uint64_t PaddedRows(uint64_t rows) {
  return (rows + kRowTile - 1) / kRowTile * kRowTile;
}

bool HasIntegerWeights(WeightType type) {
  return type == WeightType::kInt8 || type == WeightType::kInt4;
}

absl::Status CheckProductMemory(WeightType type, bool has_experts, uint32_t num_rows, const DeviceOps& ops) {
  const bool has_own_kernels = HasIntegerWeights(type) || IsGpuWeightType(type) || has_experts;
  if (!has_own_kernels || MultiplySharedBytes(num_rows) <= ops.max_shared_bytes()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("products of weights in ", WeightTypeName(type), " take ", MultiplySharedBytes(num_rows),
                   " bytes of shared memory; this GPU has ", ops.max_shared_bytes()));
}

absl::StatusOr<RoundedInputs> AllocateRoundedInputs(WeightType type, uint64_t rows, uint64_t depth,
                                                    DeviceOps* ops) {
  return AllocateRoundedGroups(type, rows * NumInputGroups(static_cast<uint32_t>(depth)), ops);
}

absl::StatusOr<RoundedInputs> AllocateRoundedGroups(WeightType type, uint64_t groups, DeviceOps* ops) {
  RoundedInputs rounded;
  if (!HasIntegerWeights(type)) return rounded;
  TANDEM_ASSIGN_OR_RETURN(rounded.words,
                          ops->Allocate<uint32_t>(groups * RoundedInputs::kGroupWords, "activations"));
  TANDEM_ASSIGN_OR_RETURN(rounded.scales, ops->Allocate<float>(groups, "activations"));
  return rounded;
}

absl::Status MultiplyRows(const DeviceMatrix& matrix, DeviceSpan<const Bf16> inputs,
                          DeviceSpan<float> outputs, uint32_t num_rows, const RoundedInputs& rounded,
                          DeviceOps* ops) {
  if (matrix.format != DeviceFormat::kBf16) {
    return MultiplyPacked(matrix, inputs, outputs, num_rows, rounded, ops);
  }
  const auto padded = static_cast<uint32_t>(PaddedRows(num_rows));
  return ops->Multiply(matrix, inputs.Part(0, uint64_t{padded} * matrix.depth),
                       outputs.Part(0, uint64_t{padded} * matrix.outputs), padded);
}

absl::Status MultiplyExpertRows(const DeviceMatrix& stack, const ExpertProduct& product,
                                DeviceSpan<const Bf16> inputs, DeviceSpan<float> outputs,
                                const RoundedInputs& room, DeviceOps* ops) {
  const ExpertRows& rows = product.rows;
  const ProductGrid grid = {.outputs = stack.outputs,
                            .depth = stack.depth,
                            .num_rows = RowsPerItem(product.num_rows, product.sizes)};
  const LaunchShape shape = MultiplyExpertsShape(grid, MostItems(product.num_rows, product.sizes));
  if (stack.format == DeviceFormat::kBf16) {
    return ops->Launch(MultiplyBf16ExpertsKernel{stack.data, inputs, outputs, grid, rows}, shape);
  }
  if (stack.format == DeviceFormat::kFp8) {
    return ops->Launch(MultiplyFp8ExpertsKernel{stack.packed, inputs, outputs, grid, rows}, shape);
  }
  // Each row is rounded once, however many experts it takes.
  const uint32_t num_inputs =
      rows.reads_rows ? product.num_rows : product.num_rows * product.sizes.num_chosen;
  TANDEM_ASSIGN_OR_RETURN(const RoundedInputs rounded, Round(inputs, num_inputs, stack.depth, room, ops));
  if (stack.format == DeviceFormat::kInt4) {
    return ops->Launch(MultiplyInt4ExpertsKernel{stack.packed, rounded, outputs, grid, rows}, shape);
  }
  return ops->Launch(MultiplyInt8ExpertsKernel{stack.packed, rounded, outputs, grid, rows}, shape);
}

}  // namespace tandem
