#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/cpu/thread_team.h"
#include "common/engine/cuda/device_ops.h"
#include "common/engine/cuda/device_weights.h"
#include "common/engine/cuda/shard.h"
#include "common/engine/weight_type.h"
#include "common/model/load_progress.h"
#include "common/model/tensor_view.h"

namespace tandem {

// The formats of matrices. If weights have few bits, matrices over tokens have more bits than the others.
DeviceFormat FormatFor(WeightType type);
DeviceFormat FormatOfTokens(WeightType type);

// Rows of a tensor [outputs, depth], or elements of a vector.
struct RowPart {
  const TensorView& tensor;
  ShardRange rows;
};

// Unimplemented for a matrix that bfloat16 cannot represent, because nothing is rounded unless requested.
absl::Status CheckBf16(const TensorView& tensor);

// Copies tensors to a device, rounded to the requested format. Errors as in UploadWeights.
class WeightUploader {
 public:
  // All arguments outlive it; `progress` may be null. `norm_offset`: the offset of the norms' weights.
  static absl::StatusOr<std::unique_ptr<WeightUploader>> Create(WeightType type, float norm_offset,
                                                                DeviceOps* ops, LoadProgress* progress);

  // Stacks parts along the outputs.
  absl::StatusOr<DeviceMatrix> Rows(DeviceFormat format, std::initializer_list<RowPart> parts);
  // Inputs [begin, end) of every output.
  absl::StatusOr<DeviceMatrix> Columns(DeviceFormat format, const TensorView& tensor, ShardRange columns);
  // Concatenates matrices of one size (packed ones each in whole tiles): inputs [begin, end) of stacked
  // parts. The result has the outputs of one, and the data of all.
  absl::StatusOr<DeviceMatrix> Stack(DeviceFormat format, absl::Span<const std::vector<RowPart>> matrices,
                                     ShardRange columns);

  // Concatenates vectors in float32; empty if the model has none of them.
  absl::StatusOr<DeviceSpan<const float>> Vector(absl::Span<const RowPart> parts, float offset = 0);
  absl::StatusOr<DeviceSpan<const float>> Vector(const TensorView& tensor);
  // A norm's weights, including the offset.
  absl::StatusOr<DeviceSpan<const float>> NormVector(const TensorView& tensor);
  absl::StatusOr<DeviceNorm> Norm(const TensorView& weight, const TensorView& bias);
  // Two vectors added up; either may be missing.
  absl::StatusOr<DeviceSpan<const float>> Sum(const TensorView& a, const TensorView& b);
  // Concatenates all numbers of some matrices in float32; matrices that do not exist are left out.
  absl::StatusOr<DeviceSpan<const float>> Matrix(std::initializer_list<const TensorView*> tensors);

  // Prepares the products with the matrix.
  absl::StatusOr<DeviceMatrix> Prepared(const DeviceMatrix& matrix);

 private:
  // The weights to pack, and their format.
  struct Packing {
    DeviceFormat format = DeviceFormat::kInt8;
    absl::Span<const RowPart> parts;  // Stacked. Their files may hold them in any type.
    ShardRange columns;
    std::vector<float> part_scales;  // For kFp8, one for each part; empty if every output has its own.
  };
  // Packed tiles on their way to the device.
  struct StagedTiles {
    std::vector<uint32_t> words;
    std::vector<Bf16> scales;
    std::vector<float> output_scales;
  };
  // The size of each for one tile.
  struct TileSize {
    uint64_t words = 0;
    uint64_t scales = 0;
    uint64_t output_scales = 0;
  };
  // Where the tiles of matrices go.
  struct PackedPlace {
    uint32_t* words = nullptr;
    Bf16* scales = nullptr;
    float* output_scales = nullptr;
  };

  WeightUploader(bool scales_matrices, float norm_offset, DeviceOps* ops, LoadProgress* progress)
      : scales_matrices_(scales_matrices), norm_offset_(norm_offset), ops_(ops), progress_(progress) {}

  absl::StatusOr<DeviceSpan<const float>> Floats(const std::vector<float>& floats);
  // Reports that `count` numbers of a tensor have been copied.
  absl::Status Report(const TensorView& tensor, uint64_t count);
  static uint32_t NumRows(absl::Span<const RowPart> parts);

  absl::StatusOr<DeviceMatrix> StackBf16(absl::Span<const std::vector<RowPart>> matrices, ShardRange columns);
  absl::Status UploadPart(const RowPart& part, ShardRange columns, Bf16* to);
  // Uploads a tensor with another layout: gathers some rows at a time.
  absl::Status UploadGathered(const RowPart& part, ShardRange columns, Bf16* to);

  absl::StatusOr<DeviceMatrix> StackPacked(DeviceFormat format,
                                           absl::Span<const std::vector<RowPart>> matrices,
                                           ShardRange columns);
  absl::Status Pack(const Packing& packing, uint32_t num_tiles, const TileSize& size, const PackedPlace& to);
  static void PackTile(const Packing& packing, uint32_t tile, uint32_t* words, Bf16* scales,
                       float* output_scales);
  // The scale of a whole tensor.
  float ScaleOf(const TensorView& tensor);
  template <typename T>
  absl::Status UploadAll(const std::vector<T>& from, T* to) {
    return from.empty() ? absl::OkStatus() : ops_->Upload(to, from.data(), from.size() * sizeof(T));
  }

  const bool scales_matrices_;  // 8-bit floats have one scale for a matrix, not one for each output.
  const float norm_offset_;
  std::unique_ptr<ThreadTeam> packers_;  // Null if nothing is packed.
  DeviceOps* const ops_;
  LoadProgress* const progress_;
};

}  // namespace tandem
