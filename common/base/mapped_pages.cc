#include "common/base/mapped_pages.h"

#include <sys/mman.h>
#include <unistd.h>

namespace tandem {

void DropMappedPages(const void* begin, uint64_t num_bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const uintptr_t first = (address + page - 1) / page * page;
  const uintptr_t end = (address + num_bytes) / page * page;
  // Where it fails, memory is held that could be free, and nothing else.
  if (first < end) (void)madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
}

void FetchMappedPages(const void* begin, uint64_t num_bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const uintptr_t first = address / page * page;
  if (num_bytes > 0)
    (void)madvise(reinterpret_cast<void*>(first), address + num_bytes - first, MADV_WILLNEED);
}

}  // namespace tandem
