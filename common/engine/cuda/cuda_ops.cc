#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/engine/cuda/cuda_module.h"
#include "common/engine/cuda/device.h"
#include "common/engine/cuda/launch_kernels.h"
#include "common/engine/cuda/matrix_products.h"
#include "common/engine/cuda/rank_links.h"

namespace tandem {
namespace {

class CudaOps final : public DeviceOps {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceOps>> Open(const CudaDeviceOptions& options);
  ~CudaOps() override {
    // The device must have finished its work before its memory is freed.
    BindThread().IgnoreError();
    stream_.Synchronize().IgnoreError();
  }

  std::string name() const override { return absl::StrCat("cuda:", device_.index, " (", device_.name, ")"); }
  uint32_t num_multiprocessors() const override { return static_cast<uint32_t>(device_.num_multiprocessors); }
  uint32_t max_shared_bytes() const override { return max_shared_bytes_; }
  TensorParallel parallel() const override { return options_.parallel; }
  absl::Status BindThread() override {
    // The owner calls this too: if it used another device in between, that one may still be current.
    TANDEM_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(options_.index), "taking the device"));
    owner_ = std::this_thread::get_id();
    return absl::OkStatus();
  }
  absl::StatusOr<void*> AllocateBytes(uint64_t num_bytes, absl::string_view what) override {
    TANDEM_RETURN_IF_ERROR(CheckThread());
    TANDEM_ASSIGN_OR_RETURN(void* data, pool_.Allocate(num_bytes, what));
    TANDEM_RETURN_IF_ERROR(CudaStatus(cudaMemsetAsync(data, 0, num_bytes, stream_.get()), "clearing memory"));
    return data;
  }
  absl::StatusOr<void*> AllocateBlock(uint64_t num_bytes, absl::string_view what) override {
    TANDEM_RETURN_IF_ERROR(CheckThread());
    return pool_.AllocateBlock(num_bytes, what);
  }
  void FreeBlock(void* data) override { pool_.FreeBlock(data); }
  absl::StatusOr<void*> AllocateHostBytes(uint64_t num_bytes, absl::string_view /*what*/) override {
    TANDEM_RETURN_IF_ERROR(CheckThread());
    TANDEM_ASSIGN_OR_RETURN(CudaHostBuffer buffer, CudaHostBuffer::Allocate(num_bytes));
    host_buffers_.push_back(std::move(buffer));
    return host_buffers_.back().data();
  }
  absl::Status Upload(void* to, const void* from, uint64_t num_bytes) override {
    TANDEM_RETURN_IF_ERROR(CheckThread());
    return CudaStatus(cudaMemcpyAsync(to, from, num_bytes, cudaMemcpyHostToDevice, stream_.get()),
                      "copying to the device");
  }
  absl::Status Download(void* to, const void* from, uint64_t num_bytes) override {
    TANDEM_RETURN_IF_ERROR(CheckThread());
    return CudaStatus(cudaMemcpyAsync(to, from, num_bytes, cudaMemcpyDeviceToHost, stream_.get()),
                      "copying from the device");
  }
  absl::Status Synchronize() override {
    TANDEM_RETURN_IF_ERROR(CheckThread());
    return stream_.Synchronize();
  }
  absl::Status PrepareProduct(const DeviceMatrix& matrix) override {
    TANDEM_RETURN_IF_ERROR(CheckThread());
    return products_->Prepare(matrix, stream_);
  }
  absl::Status Multiply(const DeviceMatrix& matrix, DeviceSpan<const Bf16> inputs, DeviceSpan<float> outputs,
                        uint32_t num_rows) override {
    TANDEM_RETURN_IF_ERROR(CheckThread());
    return products_->Multiply(matrix, inputs, outputs, num_rows, stream_);
  }
  absl::Status AllGather(DeviceSpan<const float> part, DeviceSpan<float> all) override {
    TANDEM_RETURN_IF_ERROR(CheckThread());
    if (all.size < part.size * options_.parallel.world_size) {
      return absl::InvalidArgumentError(absl::StrCat("parts of ", part.size, " from ",
                                                     options_.parallel.world_size, " ranks into ", all.size));
    }
    return links_->AllGather(part.data, all.data, part.size, stream_);
  }
  absl::Status Broadcast(void* data, uint64_t num_bytes) override {
    TANDEM_RETURN_IF_ERROR(CheckThread());
    return links_->Broadcast(data, num_bytes, stream_);
  }
  absl::Status BeginCapture() override {
    TANDEM_RETURN_IF_ERROR(CheckThread());
    return CudaGraph::Begin(stream_);
  }
  absl::StatusOr<uint32_t> EndCapture() override {
    TANDEM_RETURN_IF_ERROR(CheckThread());
    TANDEM_ASSIGN_OR_RETURN(CudaGraph graph, CudaGraph::End(stream_));
    graphs_.push_back(std::move(graph));
    return static_cast<uint32_t>(graphs_.size() - 1);
  }
  absl::Status Replay(uint32_t graph) override {
    TANDEM_RETURN_IF_ERROR(CheckThread());
    if (graph >= graphs_.size()) return absl::InvalidArgumentError(absl::StrCat("there is no graph ", graph));
    return graphs_[graph].Launch(stream_);
  }
  void DropGraphs() override { graphs_.clear(); }

#define TANDEM_CUDA_LAUNCH(Kernel)                                                         \
  absl::Status Launch(const Kernel& kernel, const LaunchShape& shape) override {           \
    TANDEM_RETURN_IF_ERROR(CheckThread());                                                 \
    return CudaStatus(LaunchKernel(kernel, shape, stream_.get()), "launching a " #Kernel); \
  }
  TANDEM_FOR_EACH_KERNEL(TANDEM_CUDA_LAUNCH)
#undef TANDEM_CUDA_LAUNCH

 private:
  explicit CudaOps(const CudaDeviceOptions& options) : options_(options), pool_(options.memory_limit) {}

  absl::Status CheckThread() const {
    if (owner_ == std::this_thread::get_id()) return absl::OkStatus();
    return absl::FailedPreconditionError("a GPU belongs to one thread at a time");
  }

  const CudaDeviceOptions options_;
  std::thread::id owner_;
  CudaDevice device_;
  uint32_t max_shared_bytes_ = 0;
  // The stream is destroyed last, after everything that uses it.
  CudaStream stream_;
  CudaPool pool_;
  std::vector<CudaHostBuffer> host_buffers_;
  std::unique_ptr<MatrixProducts> products_;
  std::unique_ptr<RankLinks> links_;
  std::vector<CudaGraph> graphs_;
};

absl::StatusOr<std::unique_ptr<DeviceOps>> CudaOps::Open(const CudaDeviceOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<CudaDevice> devices, ListCudaDevices());
  if (options.index < 0 || static_cast<size_t>(options.index) >= devices.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no CUDA device ", options.index, "; this process sees ", devices.size()));
  }
  std::unique_ptr<CudaOps> ops(new CudaOps(options));
  TANDEM_RETURN_IF_ERROR(ops->BindThread());
  ops->device_ = devices[static_cast<size_t>(options.index)];
  int shared_bytes = 0;
  TANDEM_RETURN_IF_ERROR(CudaStatus(
      cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, options.index),
      "reading the size of shared memory"));
  ops->max_shared_bytes_ = static_cast<uint32_t>(shared_bytes);
  // Fails if the binary has no code for this kind of GPU.
  TANDEM_RETURN_IF_ERROR(
      CudaStatus(AllowSharedMemory(ops->max_shared_bytes_),
                 absl::StrCat("preparing kernels for ", ops->device_.name, ", compute capability ",
                              ops->device_.compute_major, ".", ops->device_.compute_minor,
                              " (see TANDEM_CUDA_ARCHITECTURES in docs/operate/gpu.md)")));
  TANDEM_ASSIGN_OR_RETURN(ops->stream_, CudaStream::Create(options.low_priority));
  TANDEM_ASSIGN_OR_RETURN(ops->products_, MatrixProducts::Create(&ops->pool_));
  if (options.parallel.world_size > 1) {
    TANDEM_ASSIGN_OR_RETURN(ops->links_, RankLinks::Join(options.parallel, options.rendezvous));
  }
  return ops;
}

absl::StatusOr<double> MeasureCopyBandwidth(int index) {
  constexpr size_t kBytes = size_t{1} << 30;
  constexpr int kRepetitions = 10;
  TANDEM_RETURN_IF_ERROR(ListCudaDevices().status());
  TANDEM_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(index), "taking the device"));
  TANDEM_ASSIGN_OR_RETURN(const CudaStream stream, CudaStream::Create(/*low_priority=*/false));
  TANDEM_ASSIGN_OR_RETURN(const CudaBuffer from, CudaBuffer::Allocate(kBytes));
  TANDEM_ASSIGN_OR_RETURN(const CudaBuffer to, CudaBuffer::Allocate(kBytes));
  TANDEM_ASSIGN_OR_RETURN(CudaEvent begin, CudaEvent::Create());
  TANDEM_ASSIGN_OR_RETURN(CudaEvent end, CudaEvent::Create());
  double best = 0.0;
  // The first repetition warms up.
  for (int i = 0; i <= kRepetitions; ++i) {
    TANDEM_RETURN_IF_ERROR(begin.Record(stream));
    TANDEM_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice, stream.get()),
                   "copying within the device"));
    TANDEM_RETURN_IF_ERROR(end.Record(stream));
    TANDEM_ASSIGN_OR_RETURN(const double seconds, end.SecondsSince(begin));
    if (i > 0) best = std::max(best, 2.0 * static_cast<double>(kBytes) / seconds);
  }
  return best;
}

}  // namespace
}  // namespace tandem

extern "C" __attribute__((visibility("default"))) const tandem::CudaModule* tandem_cuda_module() {
  static constexpr tandem::CudaModule kModule = {.open = tandem::CudaOps::Open,
                                                 .measure_copy_bandwidth = tandem::MeasureCopyBandwidth};
  return &kModule;
}
