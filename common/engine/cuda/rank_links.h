#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/engine/cuda/device.h"
#include "common/engine/cuda/shard.h"

struct ncclComm;

namespace tandem {

// Communication between the ranks of tensor parallelism, through NCCL. It only moves bytes: Tandem
// computes the sums itself, in the order of ranks.
class RankLinks {
 public:
  // Waits until all ranks have joined, five minutes at most. See CudaDeviceOptions::rendezvous. Unimplemented
  // in a build without NCCL.
  static absl::StatusOr<std::unique_ptr<RankLinks>> Join(const TensorParallel& parallel,
                                                         const std::string& rendezvous);
  ~RankLinks();

  absl::Status AllGather(const float* part, float* all, uint64_t count, const CudaStream& stream);
  absl::Status Broadcast(void* data, uint64_t num_bytes, const CudaStream& stream);

 private:
  RankLinks() = default;

  ncclComm* communicator_ = nullptr;
};

}  // namespace tandem
