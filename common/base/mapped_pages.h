#pragma once

#include <cstdint>

namespace tandem {

// Lets go of the memory that holds the whole pages of a range of a MappedFile. Reading them again brings them
// back, from the file or the system's cache of it. Only for mapped files: other memory would lose its
// content.
void DropMappedPages(const void* begin, uint64_t num_bytes);

// Has the system begin to read the pages of a range of a MappedFile that it does not have in memory: all of
// them at once, where touching them one by one would wait for each. A hint; other memory stays as it is.
void FetchMappedPages(const void* begin, uint64_t num_bytes);

}  // namespace tandem
