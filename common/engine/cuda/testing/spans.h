#pragma once

#include <vector>

#include "common/engine/cuda/kernels/block.h"

namespace tandem {

// All of a vector, as the device memory of an emulated kernel.
template <typename T>
DeviceSpan<T> SpanOf(std::vector<T>& values) {
  return {values.data(), values.size()};
}
template <typename T>
DeviceSpan<const T> SpanOf(const std::vector<T>& values) {
  return {values.data(), values.size()};
}
template <typename T>
DeviceSpan<const T> ConstSpanOf(const std::vector<T>& values) {
  return {values.data(), values.size()};
}

}  // namespace tandem
