#include "common/engine/cuda/rank_links.h"

#ifdef TANDEM_NCCL
#include <nccl.h>
#endif

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"

namespace tandem {

#ifdef TANDEM_NCCL
namespace {

constexpr absl::Duration kLongestWait = absl::Minutes(5);
constexpr absl::Duration kPollPeriod = absl::Milliseconds(50);

absl::Status NcclStatus(ncclResult_t result, absl::string_view what) {
  if (result == ncclSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(what, ": ", ncclGetErrorString(result)));
}

absl::Status Leave(const ncclUniqueId& id, const std::string& path) {
  if (std::filesystem::exists(path)) {
    return absl::AlreadyExistsError(absl::StrCat(path, " already exists: remove the file of an earlier run"));
  }
  const std::string unfinished = absl::StrCat(path, ".unfinished");
  std::ofstream file(unfinished, std::ios::binary);
  file.write(id.internal, sizeof(id.internal));
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(unfinished, path, error);
  if (!file || error) return absl::UnavailableError(absl::StrCat("cannot write ", path));
  return absl::OkStatus();
}

absl::StatusOr<ncclUniqueId> Find(const std::string& path) {
  const absl::Time deadline = absl::Now() + kLongestWait;
  ncclUniqueId id;
  while (!std::filesystem::exists(path)) {
    if (absl::Now() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat("rank 0 has not written ", path));
    }
    absl::SleepFor(kPollPeriod);
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, sizeof(id.internal)));
  if (bytes.size() != sizeof(id.internal)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has ", bytes.size(), " bytes, expected ", sizeof(id.internal)));
  }
  std::memcpy(id.internal, bytes.data(), bytes.size());
  return id;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankLinks>> RankLinks::Join(const TensorParallel& parallel,
                                                           const std::string& rendezvous) {
  if (rendezvous.empty()) {
    return absl::InvalidArgumentError("several ranks need a rendezvous file (--gpu-rendezvous)");
  }
  ncclUniqueId id;
  if (parallel.rank == 0) {
    TANDEM_RETURN_IF_ERROR(NcclStatus(ncclGetUniqueId(&id), "opening NCCL"));
    TANDEM_RETURN_IF_ERROR(Leave(id, rendezvous));
  } else {
    TANDEM_ASSIGN_OR_RETURN(id, Find(rendezvous));
  }
  std::unique_ptr<RankLinks> links(new RankLinks);
  const ncclResult_t result = ncclCommInitRank(&links->communicator_, static_cast<int>(parallel.world_size),
                                               id, static_cast<int>(parallel.rank));
  if (parallel.rank == 0) std::remove(rendezvous.c_str());
  TANDEM_RETURN_IF_ERROR(NcclStatus(result, "joining the other ranks"));
  return links;
}

RankLinks::~RankLinks() {
  if (communicator_ != nullptr) ncclCommDestroy(communicator_);
}

absl::Status RankLinks::AllGather(const float* part, float* all, uint64_t count, const CudaStream& stream) {
  return NcclStatus(ncclAllGather(part, all, count, ncclFloat32, communicator_, stream.get()),
                    "gathering from all ranks");
}

absl::Status RankLinks::Broadcast(void* data, uint64_t num_bytes, const CudaStream& stream) {
  return NcclStatus(ncclBroadcast(data, data, num_bytes, ncclUint8, 0, communicator_, stream.get()),
                    "sending to all ranks");
}

#else

absl::StatusOr<std::unique_ptr<RankLinks>> RankLinks::Join(const TensorParallel& /*parallel*/,
                                                           const std::string& /*rendezvous*/) {
  return absl::UnimplementedError(
      "the CUDA module was built without NCCL, which several GPUs need: see docs/operate/gpu.md");
}

RankLinks::~RankLinks() = default;

absl::Status RankLinks::AllGather(const float* /*part*/, float* /*all*/, uint64_t /*count*/,
                                  const CudaStream& /*stream*/) {
  return absl::UnimplementedError("no NCCL");
}

absl::Status RankLinks::Broadcast(void* /*data*/, uint64_t /*num_bytes*/, const CudaStream& /*stream*/) {
  return absl::UnimplementedError("no NCCL");
}

#endif

}  // namespace tandem
