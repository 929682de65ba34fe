#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/engine/cuda/device_ops.h"
#include "common/engine/cuda/testing/host_block.h"

namespace tandem {

// Data exchange between the ranks of one emulated machine. Every rank has its own thread.
class HostRanks {
 public:
  explicit HostRanks(uint32_t world_size) : parts_(world_size) {}

  uint32_t world_size() const { return static_cast<uint32_t>(parts_.size()); }
  // Waits until every rank has brought its part, and then lets each rank read all parts.
  void Exchange(uint32_t rank, const void* part,
                const std::function<void(const std::vector<const void*>&)>& read);

 private:
  void Barrier();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<const void*> parts_;
  uint32_t num_arrived_ = 0;
  uint64_t round_ = 0;
};

// A GPU emulated on the host (host_block.h), for tests. Products are one chain of fused multiply-adds over
// the depth. Work happens when it is waited for, not before, so if host memory is changed or read too early,
// results show it. Buffers have exactly the size asked for, so AddressSanitizer finds accesses beyond them.
// All buffers together have at most `memory_limit` bytes.
class HostOps final : public DeviceOps {
 public:
  struct Options {
    uint64_t seed = 0;  // Decides the order in which threads run.
    uint64_t memory_limit = uint64_t{1} << 32;
    uint32_t rank = 0;
    std::shared_ptr<HostRanks> ranks;  // None: one.
    uint32_t num_multiprocessors = 2;
    std::function<void()> before_product;  // Called by every product.
  };

  explicit HostOps(const Options& options);

  std::string name() const override { return "emulated"; }
  uint32_t num_multiprocessors() const override { return options_.num_multiprocessors; }
  uint32_t max_shared_bytes() const override { return 99 << 10; }
  TensorParallel parallel() const override;
  absl::Status BindThread() override;
  absl::StatusOr<void*> AllocateBytes(uint64_t num_bytes, absl::string_view what) override;
  absl::StatusOr<void*> AllocateBlock(uint64_t num_bytes, absl::string_view what) override;
  void FreeBlock(void* data) override;
  absl::StatusOr<void*> AllocateHostBytes(uint64_t num_bytes, absl::string_view what) override;
  absl::Status Upload(void* to, const void* from, uint64_t num_bytes) override;
  absl::Status Download(void* to, const void* from, uint64_t num_bytes) override;
  absl::Status Synchronize() override;
  absl::Status PrepareProduct(const DeviceMatrix& matrix) override;
  absl::Status Multiply(const DeviceMatrix& matrix, DeviceSpan<const Bf16> inputs, DeviceSpan<float> outputs,
                        uint32_t num_rows) override;
  absl::Status AllGather(DeviceSpan<const float> part, DeviceSpan<float> all) override;
  absl::Status Broadcast(void* data, uint64_t num_bytes) override;
  absl::Status BeginCapture() override;
  absl::StatusOr<uint32_t> EndCapture() override;
  absl::Status Replay(uint32_t graph) override;
  void DropGraphs() override { graphs_.clear(); }
#define TANDEM_HOST_LAUNCH(Kernel)                                               \
  absl::Status Launch(const Kernel& kernel, const LaunchShape& shape) override { \
    return Do([this, kernel, shape] {                                            \
      ++traffic_.launches;                                                       \
      grid_.Launch(kernel, shape);                                               \
    });                                                                          \
  }
  TANDEM_FOR_EACH_KERNEL(TANDEM_HOST_LAUNCH)
#undef TANDEM_HOST_LAUNCH

  uint64_t memory_used() const {
    return memory_used_;
  }
  // How many kernels were launched one by one, and how many graphs were replayed.
  uint64_t num_eager() const {
    return num_eager_;
  }
  uint64_t num_replays() const {
    return num_replays_;
  }
  // The bytes copied between host and device, and how often the host waited.
  struct Traffic {
    uint64_t uploads = 0;
    uint64_t bytes_up = 0;
    uint64_t downloads = 0;
    uint64_t bytes_down = 0;
    uint64_t waits = 0;
    uint64_t launches = 0;  // Kernels run. Those of a graph count at every replay.

    Traffic operator-(const Traffic& before) const {
      return {uploads - before.uploads,       bytes_up - before.bytes_up, downloads - before.downloads,
              bytes_down - before.bytes_down, waits - before.waits,       launches - before.launches};
    }
  };
  const Traffic& traffic() const {
    return traffic_;
  }

 private:
  // Runs at the next wait, or when the graph that is being recorded is replayed.
  absl::Status Do(std::function<void()> work);

  const Options options_;
  HostGrid grid_;
  std::thread::id owner_ = std::this_thread::get_id();
  std::vector<std::unique_ptr<char[]>> memory_;
  std::map<void*, uint64_t> block_bytes_;
  uint64_t memory_used_ = 0;
  std::vector<std::pair<uint32_t, uint32_t>> prepared_;
  bool is_recording_ = false;
  using Work = std::vector<std::function<void()>>;
  Work recorded_;
  std::vector<std::shared_ptr<const Work>> graphs_;
  Work asked_;  // And not waited for yet.
  Traffic traffic_;
  uint64_t num_eager_ = 0;
  uint64_t num_replays_ = 0;
};

}  // namespace tandem
