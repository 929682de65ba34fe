#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/cuda/cuda_engine.h"
#include "common/engine/cuda/device_ops.h"
#include "common/engine/cuda/device_weights.h"
#include "common/engine/engine.h"
#include "common/engine/step_validator.h"

namespace tandem {

// Medusa heads on a GPU (equations: HeadConfig): the products of CudaEngine, with one kernel between them.
// A row without wanted logits costs nothing, and rows leave no state behind: blocks are counted as for
// other models, but hold nothing. Law 1 holds as for those products.
//
// A step is one upload, one wait and a download for each output matrix, for every kMostTogether rows. It
// uses no captured graph: launches depend on the number of rows, and each is short compared with the
// output's product.
//
// Thread rule: as for CudaEngine.
class CudaMedusaEngine final : public Engine {
 public:
  // The most rows that go through the heads together. Each needs room for the logits of all positions.
  static constexpr uint32_t kMostTogether = 16;

  // The weights are copied. The options for graphs and features have no effect; without `num_blocks`, there
  // are enough blocks for many sessions of a few tokens. Errors: those of UploadMedusa; InvalidArgument for
  // options out of range, and for several ranks.
  static absl::StatusOr<std::unique_ptr<CudaMedusaEngine>> Create(const Model& model,
                                                                  const CudaEngine::Options& options,
                                                                  std::unique_ptr<DeviceOps> ops);

  const ModelConfig& config() const override { return config_; }
  uint32_t num_blocks() const override { return num_blocks_; }
  uint32_t max_rows() const override { return max_rows_; }
  absl::Status Step(absl::Span<const StepRow> rows) override;
  absl::Status CopyKv(absl::Span<const KvCopy> copies) override { return validator_->CheckCopies(copies); }

  DeviceOps& ops() { return *ops_; }

 private:
  CudaMedusaEngine(const ModelConfig& config, uint32_t max_rows, std::unique_ptr<DeviceOps> ops)
      : config_(config), max_rows_(max_rows), ops_(std::move(ops)) {}

  absl::Status AllocateScratch(WeightType weight_type);
  // Runs the heads for rows with logits, at most kMostTogether.
  absl::Status RunHeads(absl::Span<const StepRow* const> rows);
  // The states of one position, [rows, hidden], as its output matrix reads them.
  absl::Status RunBlocks(const DevicePosition& position, uint32_t num_rows, DeviceSpan<Bf16> states);
  uint64_t hidden_size() const { return static_cast<uint64_t>(config_.hidden_size); }
  uint64_t vocab_size() const { return static_cast<uint64_t>(config_.vocab_size); }

  const ModelConfig config_;
  const uint32_t max_rows_;
  std::unique_ptr<DeviceOps> ops_;
  uint32_t num_blocks_ = 0;
  std::unique_ptr<StepValidator> validator_;
  std::vector<DevicePosition> positions_;

  float* staged_states_ = nullptr;  // [kMostTogether, hidden], pinned.
  // [positions][kMostTogether, vocab], pinned; fewer rows are packed more closely.
  float* staged_logits_ = nullptr;
  DeviceSpan<float> read_;    // [kRowTile, hidden]
  DeviceSpan<float> states_;  // The same for the current position, as are the next two.
  DeviceSpan<float> products_;
  DeviceSpan<Bf16> inputs_;
  RoundedInputs rounded_;
  // [positions * kMostTogether in tiles, hidden], if all positions share one output matrix.
  DeviceSpan<Bf16> all_inputs_;
  DeviceSpan<float> logits_;  // [as many rows as a product of the output computes, vocab]
};

}  // namespace tandem
