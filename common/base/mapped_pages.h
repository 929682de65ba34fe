#pragma once

#include <cstdint>

namespace tandem {

// Releases the memory of the whole pages in a range of a MappedFile. A later read loads them again, from the
// file or the page cache. Only for mapped files: other memory would lose its content.
void DropMappedPages(const void* begin, uint64_t num_bytes);

// Makes the system start reading the missing pages in a range of a MappedFile, all at once; touching them one
// by one would wait for each. A hint, without effect on other memory.
void FetchMappedPages(const void* begin, uint64_t num_bytes);

}  // namespace tandem
