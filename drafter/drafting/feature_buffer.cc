#include "drafter/drafting/feature_buffer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace tandem {
namespace {

static_assert(std::endian::native == std::endian::little, "features are read as they lie on the wire");

float FromBf16(const char* bytes) {
  uint16_t half;
  std::memcpy(&half, bytes, sizeof(half));
  return std::bit_cast<float>(uint32_t{half} << 16);
}

}  // namespace

FeatureBuffer::FeatureBuffer(uint32_t num_states, uint32_t hidden_size, FeatureType type, size_t max_bytes)
    : num_states_(num_states),
      hidden_size_(hidden_size),
      type_(type),
      row_bytes_(FeatureRowBytes(type, num_states, hidden_size)),
      max_bytes_(max_bytes) {}

void FeatureBuffer::Restart(uint32_t position) {
  begin_ = end_ = position;
  rows_.clear();
  dropped_bytes_ = 0;
}

absl::Status FeatureBuffer::Add(const Features& features, uint32_t limit) {
  const size_t num_rows = features.states.size() / row_bytes_;
  if (features.type != type_ || num_rows * row_bytes_ != features.states.size() || num_rows == 0) {
    return absl::InvalidArgumentError(absl::StrCat("features: ", features.states.size(), " bytes of type ",
                                                   static_cast<int>(features.type), ", expected rows of ",
                                                   row_bytes_, " bytes of type ", static_cast<int>(type_)));
  }
  // Wider than a position: neither sum overflows.
  const uint64_t first = features.first_position;
  const uint64_t after = first + num_rows;
  if (after > limit) {
    return absl::InvalidArgumentError(absl::StrCat("features: of positions ", first, " to ", after - 1,
                                                   ", expected positions below ", limit));
  }
  if (after <= end_) return absl::OkStatus();
  if (first > end_) Restart(features.first_position);
  const size_t repeated = end_ - static_cast<uint32_t>(first);
  const size_t new_bytes = (num_rows - repeated) * row_bytes_;
  if (num_bytes() + new_bytes > max_bytes_) {
    Restart(begin_);
    return absl::ResourceExhaustedError(
        absl::StrCat("features: more than ", max_bytes_, " bytes wait to be used"));
  }
  rows_.append(features.states, repeated * row_bytes_, new_bytes);
  end_ = static_cast<uint32_t>(after);
  return absl::OkStatus();
}

void FeatureBuffer::DropBefore(uint32_t position) {
  if (position <= begin_) return;
  const uint32_t dropped = std::min(position, end_) - begin_;
  begin_ += dropped;
  dropped_bytes_ += dropped * row_bytes_;
  if (dropped_bytes_ < num_bytes()) return;
  rows_.erase(0, dropped_bytes_);
  dropped_bytes_ = 0;
}

absl::Status FeatureBuffer::Read(uint32_t position, absl::Span<float> row) const {
  const char* bytes = rows_.data() + dropped_bytes_ + (position - begin_) * row_bytes_;
  float* out = row.data();
  for (uint32_t state = 0; state < num_states_; ++state) {
    float scale = 0.0f;
    if (type_ == FeatureType::kInt8) {
      std::memcpy(&scale, bytes, sizeof(scale));
      bytes += sizeof(scale);
    }
    for (uint32_t i = 0; i < hidden_size_; ++i, ++out) {
      if (type_ == FeatureType::kInt8) {
        *out = static_cast<float>(static_cast<signed char>(*bytes++)) * scale;
      } else {
        *out = FromBf16(bytes);
        bytes += 2;
      }
    }
  }
  for (const float number : row) {
    if (std::isfinite(number)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("features: a number at position ", position, " is not finite"));
  }
  return absl::OkStatus();
}

}  // namespace tandem
