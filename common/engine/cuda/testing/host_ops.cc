#include "common/engine/cuda/testing/host_ops.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem {

void HostRanks::Barrier() {
  std::unique_lock<std::mutex> lock(mutex_);
  const uint64_t round = round_;
  if (++num_arrived_ == parts_.size()) {
    num_arrived_ = 0;
    ++round_;
    changed_.notify_all();
    return;
  }
  changed_.wait(lock, [&] { return round_ != round; });
}

void HostRanks::Exchange(uint32_t rank, const void* part,
                         const std::function<void(const std::vector<const void*>&)>& read) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    parts_[rank] = part;
  }
  Barrier();
  read(parts_);
  Barrier();
}

HostOps::HostOps(const Options& options) : options_(options), grid_(options.seed) {}

TensorParallel HostOps::parallel() const {
  return {.rank = options_.rank, .world_size = options_.ranks == nullptr ? 1 : options_.ranks->world_size()};
}

absl::Status HostOps::BindThread() {
  owner_ = std::this_thread::get_id();
  return absl::OkStatus();
}

absl::StatusOr<void*> HostOps::AllocateBytes(uint64_t num_bytes, absl::string_view what) {
  if (num_bytes > options_.memory_limit - memory_used_) {
    return absl::ResourceExhaustedError(absl::StrCat("allocating ", num_bytes, " bytes for ", what, ": ",
                                                     memory_used_, " of ", options_.memory_limit,
                                                     " are in use"));
  }
  memory_used_ += num_bytes;
  memory_.push_back(std::make_unique<char[]>(num_bytes));
  return memory_.back().get();
}

absl::StatusOr<void*> HostOps::AllocateBlock(uint64_t num_bytes, absl::string_view what) {
  TANDEM_ASSIGN_OR_RETURN(void* const data, AllocateBytes(num_bytes, what));
  // Filled with NaN, which shows in results if something reads it too early.
  std::memset(data, 0xff, num_bytes);
  block_bytes_[data] = num_bytes;
  return data;
}

void HostOps::FreeBlock(void* data) {
  memory_used_ -= block_bytes_.at(data);
  block_bytes_.erase(data);
  std::erase_if(memory_, [data](const auto& each) { return each.get() == data; });
}

absl::StatusOr<void*> HostOps::AllocateHostBytes(uint64_t num_bytes, absl::string_view /*what*/) {
  memory_.push_back(std::make_unique<char[]>(num_bytes));
  return memory_.back().get();
}

absl::Status HostOps::Do(std::function<void()> work) {
  if (std::this_thread::get_id() != owner_) {
    return absl::FailedPreconditionError("a GPU belongs to one thread at a time");
  }
  if (is_recording_) {
    recorded_.push_back(std::move(work));
    return absl::OkStatus();
  }
  ++num_eager_;
  asked_.push_back(std::move(work));
  return absl::OkStatus();
}

absl::Status HostOps::Upload(void* to, const void* from, uint64_t num_bytes) {
  if (is_recording_) return absl::FailedPreconditionError("an upload while a graph is recorded");
  ++traffic_.uploads;
  traffic_.bytes_up += num_bytes;
  return Do([=] { std::memcpy(to, from, num_bytes); });
}

absl::Status HostOps::Download(void* to, const void* from, uint64_t num_bytes) {
  if (is_recording_) return absl::FailedPreconditionError("a download while a graph is recorded");
  ++traffic_.downloads;
  traffic_.bytes_down += num_bytes;
  return Do([=] { std::memcpy(to, from, num_bytes); });
}

absl::Status HostOps::Synchronize() {
  if (is_recording_) return absl::FailedPreconditionError("waiting while a graph is recorded");
  ++traffic_.waits;
  for (const auto& work : std::exchange(asked_, {})) work();
  return absl::OkStatus();
}

absl::Status HostOps::PrepareProduct(const DeviceMatrix& matrix) {
  prepared_.emplace_back(matrix.outputs, matrix.depth);
  return absl::OkStatus();
}

absl::Status HostOps::Multiply(const DeviceMatrix& matrix, DeviceSpan<const Bf16> inputs,
                               DeviceSpan<float> outputs, uint32_t num_rows) {
  const std::pair shape(matrix.outputs, matrix.depth);
  if (std::find(prepared_.begin(), prepared_.end(), shape) == prepared_.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("a product of ", matrix.outputs, " by ", matrix.depth, " that was not prepared"));
  }
  return Do([=, this] {
    if (options_.before_product) options_.before_product();
    std::vector<float> depth_by_outputs(uint64_t{matrix.depth} * matrix.outputs);
    for (uint64_t o = 0; o < matrix.outputs; ++o) {
      for (uint64_t k = 0; k < matrix.depth; ++k) {
        depth_by_outputs[k * matrix.outputs + o] = ToFloat(matrix.data[o * matrix.depth + k]);
      }
    }
    std::vector<float> sums(matrix.outputs);
    for (uint64_t row = 0; row < num_rows; ++row) {
      std::fill(sums.begin(), sums.end(), 0.0f);
      for (uint64_t k = 0; k < matrix.depth; ++k) {
        const float input = ToFloat(inputs[row * matrix.depth + k]);
        if (input == 0.0f) continue;
        const float* weights = &depth_by_outputs[k * matrix.outputs];
        // bfloat16 products are exact in float32: this is a chain of fused multiply-adds.
        for (uint64_t o = 0; o < matrix.outputs; ++o) sums[o] += input * weights[o];
      }
      for (uint64_t o = 0; o < matrix.outputs; ++o) outputs[row * matrix.outputs + o] = sums[o];
    }
  });
}

absl::Status HostOps::AllGather(DeviceSpan<const float> part, DeviceSpan<float> all) {
  const uint32_t world_size = parallel().world_size;
  if (all.size < part.size * world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("parts of ", part.size, " from ", world_size, " ranks into ", all.size));
  }
  return Do([=, this] {
    if (options_.ranks == nullptr) {
      std::memcpy(all.data, part.data, part.size * sizeof(float));
      return;
    }
    options_.ranks->Exchange(options_.rank, part.data, [&](const std::vector<const void*>& parts) {
      for (uint64_t rank = 0; rank < world_size; ++rank) {
        std::memcpy(all.data + rank * part.size, parts[rank], part.size * sizeof(float));
      }
    });
  });
}

absl::Status HostOps::Broadcast(void* data, uint64_t num_bytes) {
  return Do([=, this] {
    if (options_.ranks == nullptr) return;
    options_.ranks->Exchange(options_.rank, data, [&](const std::vector<const void*>& parts) {
      if (options_.rank != 0) std::memcpy(data, parts[0], num_bytes);
    });
  });
}

absl::Status HostOps::BeginCapture() {
  if (is_recording_) return absl::FailedPreconditionError("a graph within a graph");
  is_recording_ = true;
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> HostOps::EndCapture() {
  if (!is_recording_) return absl::FailedPreconditionError("no graph is being recorded");
  is_recording_ = false;
  graphs_.push_back(std::make_shared<const Work>(std::exchange(recorded_, {})));
  return static_cast<uint32_t>(graphs_.size() - 1);
}

absl::Status HostOps::Replay(uint32_t graph) {
  if (graph >= graphs_.size()) return absl::InvalidArgumentError(absl::StrCat("there is no graph ", graph));
  ++num_replays_;
  asked_.push_back([work = graphs_[graph]] {
    for (const auto& step : *work) step();
  });
  return absl::OkStatus();
}

}  // namespace tandem
