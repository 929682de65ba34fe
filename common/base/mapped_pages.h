#pragma once

#include <cstdint>

namespace tandem {

// Lets go of the memory that holds the whole pages of a range of a MappedFile. Reading them again brings them
// back, from the file or the system's cache of it. Only for mapped files: other memory would lose its
// content.
void DropMappedPages(const void* begin, uint64_t num_bytes);

}  // namespace tandem
