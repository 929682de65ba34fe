#include "common/engine/cpu/aligned_buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/checked_math.h"

namespace tandem {
namespace {

constexpr uint64_t kCacheLine = 64;
constexpr uint64_t kHugePage = uint64_t{2} << 20;

}  // namespace

absl::StatusOr<AlignedBuffer> AlignedBuffer::Allocate(uint64_t num_elements, uint64_t element_bytes,
                                                      const char* what) {
  const std::optional<uint64_t> wanted = CheckedMultiply(num_elements, element_bytes);
  const uint64_t alignment = wanted.has_value() && *wanted >= kHugePage ? kHugePage : kCacheLine;
  AlignedBuffer buffer;
  if (wanted == 0u) return buffer;
  const std::optional<uint64_t> padded =
      wanted.has_value() ? CheckedAdd(*wanted, alignment - 1) : std::nullopt;
  if (padded.has_value()) {
    buffer.num_bytes_ = *padded / alignment * alignment;
    buffer.data_.reset(std::aligned_alloc(alignment, buffer.num_bytes_));
  }
  if (buffer.data_ == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for ", num_elements, " * ", element_bytes, " bytes of ", what));
  }
  // A hint: without huge pages everything works, more slowly.
  if (alignment == kHugePage) (void)madvise(buffer.data_.get(), buffer.num_bytes_, MADV_HUGEPAGE);
  std::memset(buffer.data_.get(), 0, buffer.num_bytes_);
  return buffer;
}

void AlignedBuffer::Free::operator()(void* data) const {
  std::free(data);
}

}  // namespace tandem
