#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/engine/cuda/device_ops.h"
#include "common/engine/weight_type.h"
#include "common/model/model.h"

namespace tandem {

// Settings that all processes of a model (one per GPU) must share. Their later messages would not reveal a
// difference: parts in other weight types have the same sizes, and only rank 0 knows where there is room for
// keys and values.
struct RankSettings {
  uint64_t model = 0;  // A hash of its shape and of its first weights.
  WeightType weight_type = WeightType::kAsInFile;
  uint64_t max_rows = 0;
  uint64_t kv_size = 0;  // Blocks or bytes, whichever was given.
};

uint64_t ModelHash(const Model& model);

// Returns InvalidArgument, the same at every rank, that names the first rank whose settings differ from rank
// 0's, and those settings. All ranks call it.
absl::Status CompareRanks(const RankSettings& settings, DeviceOps* ops);

}  // namespace tandem
