#include "common/base/reserved_memory.h"

#include <sys/mman.h>

#include <cstddef>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tandem {

absl::StatusOr<ReservedMemory> ReservedMemory::Reserve(uint64_t num_bytes) {
  if (num_bytes == 0) return ReservedMemory();
  void* data = MAP_FAILED;
  if (num_bytes <= std::numeric_limits<size_t>::max()) {
    // Without a reservation of swap: what is never written never has to be found.
    data = mmap(nullptr, static_cast<size_t>(num_bytes), PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the system cannot reserve ", num_bytes, " bytes of memory"));
  }
  return ReservedMemory(data, num_bytes);
}

ReservedMemory::~ReservedMemory() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(size_));
}

ReservedMemory::ReservedMemory(ReservedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

ReservedMemory& ReservedMemory::operator=(ReservedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace tandem
