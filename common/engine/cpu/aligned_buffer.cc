#include "common/engine/cpu/aligned_buffer.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/checked_math.h"

namespace tandem {
namespace {

constexpr uint64_t kCacheLine = 64;
constexpr uint64_t kHugePage = uint64_t{2} << 20;

// Zeroed pages that begin on a huge page, or null.
void* MapHugePages(uint64_t num_bytes) {
  // A mapping may begin on any page, so the pages before and after the aligned part are unmapped.
  const std::optional<uint64_t> room = CheckedAdd(num_bytes, kHugePage);
  if (!room.has_value() || *room > std::numeric_limits<size_t>::max()) return nullptr;
  void* mapped = mmap(nullptr, *room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  char* begin = static_cast<char*>(mapped);
  const uint64_t before = (kHugePage - reinterpret_cast<uintptr_t>(mapped) % kHugePage) % kHugePage;
  if (before > 0) munmap(begin, before);
  munmap(begin + before + num_bytes, kHugePage - before);
  // A hint: without huge pages everything works, more slowly.
  (void)madvise(begin + before, num_bytes, MADV_HUGEPAGE);
  return begin + before;
}

}  // namespace

absl::StatusOr<AlignedBuffer> AlignedBuffer::Allocate(uint64_t num_elements, uint64_t element_bytes,
                                                      const char* what) {
  const std::optional<uint64_t> wanted = CheckedMultiply(num_elements, element_bytes);
  AlignedBuffer buffer;
  if (wanted == 0u) return buffer;
  const bool is_large = wanted.has_value() && *wanted >= kHugePage;
  const uint64_t alignment = is_large ? kHugePage : kCacheLine;
  const std::optional<uint64_t> padded =
      wanted.has_value() ? CheckedAdd(*wanted, alignment - 1) : std::nullopt;
  if (padded.has_value()) {
    buffer.num_bytes_ = *padded / alignment * alignment;
    if (is_large) {
      buffer.data_ = {MapHugePages(buffer.num_bytes_), Free(buffer.num_bytes_)};
    } else {
      buffer.data_ = {std::aligned_alloc(alignment, buffer.num_bytes_), Free()};
    }
  }
  if (buffer.data_ == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for ", num_elements, " * ", element_bytes, " bytes of ", what));
  }
  if (!is_large) std::memset(buffer.data_.get(), 0, buffer.num_bytes_);
  return buffer;
}

void AlignedBuffer::SpreadOverNodes() {
  if (data_.get_deleter().num_mapped == 0) return;
  // More nodes than Linux can be built for. Of these, the kernel names those that the process may use.
  constexpr unsigned long kMaxNodes = 1024;
  constexpr unsigned long kWordBits = 8 * sizeof(unsigned long);
  std::array<unsigned long, kMaxNodes / kWordBits> nodes{};
  if (syscall(SYS_get_mempolicy, nullptr, nodes.data(), kMaxNodes, nullptr, MPOL_F_MEMS_ALLOWED) != 0) return;
  // The kernel counts one bit less than it is told.
  (void)syscall(SYS_mbind, data_.get(), num_bytes_, MPOL_INTERLEAVE, nodes.data(), kMaxNodes + 1, 0);
}

void AlignedBuffer::Free::operator()(void* data) const {
  if (num_mapped > 0) {
    munmap(data, num_mapped);
  } else {
    std::free(data);
  }
}

}  // namespace tandem
