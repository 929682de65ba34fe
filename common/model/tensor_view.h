#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace tandem {

// One tensor as it lies in the mapped file: not converted, not copied.
struct TensorView {
  enum class DType { kF32, kF16, kBF16 };
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // Row-major, as in the file.
  const void* data = nullptr;  // May be unaligned. Never null for a tensor that exists, even an empty one.

  bool exists() const { return data != nullptr; }

  // Never overflows for a view that a safetensors file handed out.
  int64_t num_elements() const {
    int64_t count = 1;
    for (int64_t size : shape) count *= size;
    return count;
  }
  // num_elements() times the element size.
  uint64_t num_bytes() const {
    return static_cast<uint64_t>(num_elements()) * (dtype == DType::kF32 ? 4 : 2);
  }
};

// "[2, 3]", for messages.
inline std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

}  // namespace tandem
