#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

namespace tandem {

// Zeroed memory that starts on a cache line, or on a huge page if it is large: weights and the KV cache
// are read from end to end, and with ordinary pages this would cost address translations. Pages of a large
// buffer are allocated at the first touch, on the NUMA node of the touching thread.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;

  // ResourceExhausted if `num_elements` * `element_bytes` overflows or the system does not have the memory.
  // `what`: the purpose, for the message.
  static absl::StatusOr<AlignedBuffer> Allocate(uint64_t num_elements, uint64_t element_bytes,
                                                const char* what);

  // Asks the system to place the pages of a large buffer on all NUMA nodes in turn, as they are touched: for
  // what all threads read, and one of them writes. Call it before the buffer is written. A hint: where the
  // system refuses, pages go to the node of the thread that touches them first.
  void SpreadOverNodes();

  template <typename T>
  T* data() {
    return reinterpret_cast<T*>(data_.get());
  }
  template <typename T>
  const T* data() const {
    return reinterpret_cast<const T*>(data_.get());
  }
  size_t num_bytes() const { return num_bytes_; }

 private:
  struct Free {
    Free() : Free(0) {}
    explicit Free(size_t bytes) : num_mapped(bytes) {}
    size_t num_mapped;  // Bytes; 0 for memory of the heap.
    void operator()(void* data) const;
  };

  std::unique_ptr<void, Free> data_;
  size_t num_bytes_ = 0;
};

}  // namespace tandem
