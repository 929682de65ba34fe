#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

namespace tandem {

// A range of zeroed memory that costs nothing until it is written: the system provides a page at the first
// write to it. For tables of known size that may be little used.
class ReservedMemory {
 public:
  // ResourceExhausted when the system has no room for `num_bytes` in its address space; 0 bytes are none.
  static absl::StatusOr<ReservedMemory> Reserve(uint64_t num_bytes);
  ReservedMemory() = default;
  ~ReservedMemory();
  ReservedMemory(ReservedMemory&& other) noexcept;
  ReservedMemory& operator=(ReservedMemory&& other) noexcept;

  // Aligned to a page.
  void* data() { return data_; }
  const void* data() const { return data_; }
  uint64_t size() const { return size_; }

 private:
  ReservedMemory(void* data, uint64_t size) : data_(data), size_(size) {}

  void* data_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace tandem
