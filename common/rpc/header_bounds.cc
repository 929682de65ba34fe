#include "common/rpc/header_bounds.h"

#include <algorithm>

namespace tandem {
namespace {

constexpr uint8_t kHeaders = 1;
constexpr uint8_t kResetStream = 3;
constexpr uint8_t kContinuation = 9;
constexpr uint8_t kEndHeaders = 4;

}  // namespace

bool HeaderBounds::Take(absl::Span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    if (skip_ > 0) {
      const size_t skipped = std::min(skip_, bytes.size());
      skip_ -= skipped;
      bytes.remove_prefix(skipped);
      continue;
    }
    const size_t taken = std::min(kFrameHeaderBytes - frame_bytes_, bytes.size());
    std::copy_n(bytes.begin(), taken, frame_.begin() + static_cast<ptrdiff_t>(frame_bytes_));
    frame_bytes_ += taken;
    bytes.remove_prefix(taken);
    if (frame_bytes_ == kFrameHeaderBytes && !TakeFrameHeader()) return false;
  }
  return true;
}

bool HeaderBounds::TakeFrameHeader() {
  frame_bytes_ = 0;
  skip_ = size_t{frame_[0]} << 16 | size_t{frame_[1]} << 8 | frame_[2];
  const uint8_t type = frame_[3];
  if (type == kResetStream) ++num_reset_;
  if (type == kHeaders) {
    uint32_t stream = 0;
    for (size_t i = 5; i < kFrameHeaderBytes; ++i) stream = stream << 8 | frame_[i];
    // Otherwise it has trailers.
    if (stream > last_stream_) {
      last_stream_ = stream;
      ++num_begun_;
    }
  }
  if (type != kHeaders && type != kContinuation) return true;
  list_bytes_ += skip_;
  ++list_frames_;
  if (list_bytes_ > kMostBytes || list_frames_ > kMostFrames) return false;
  if ((frame_[4] & kEndHeaders) != 0) list_bytes_ = list_frames_ = 0;
  return true;
}

}  // namespace tandem
