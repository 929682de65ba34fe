#include "common/rpc/connection_frames.h"

#include <algorithm>

namespace tandem {
namespace {

// RFC 9113, section 6.
constexpr uint8_t kData = 0;
constexpr uint8_t kHeaders = 1;
constexpr uint8_t kResetStream = 3;
constexpr uint8_t kSettings = 4;
constexpr uint8_t kPing = 6;
constexpr uint8_t kGoAway = 7;
constexpr uint8_t kWindowUpdate = 8;
constexpr uint8_t kContinuation = 9;
constexpr uint8_t kEndStream = 1;
constexpr uint8_t kAcknowledges = 1;
constexpr uint8_t kEndHeaders = 4;

bool IsIdle(const FrameHeaders::Header& frame) {
  switch (frame.type) {
    case kData:
      return frame.size == 0 && (frame.flags & kEndStream) == 0;
    case kSettings:
    case kPing:
      return (frame.flags & kAcknowledges) == 0;
    case kHeaders:
    case kGoAway:
    case kWindowUpdate:
    case kContinuation:
      return false;
    default:
      return true;
  }
}

}  // namespace

bool FrameHeaders::Take(absl::Span<const uint8_t> bytes, absl::FunctionRef<bool(const Header&)> see) {
  while (!bytes.empty()) {
    if (skip_ > 0) {
      const size_t skipped = std::min(skip_, bytes.size());
      skip_ -= skipped;
      bytes.remove_prefix(skipped);
      continue;
    }
    const size_t taken = std::min(kBytes - frame_bytes_, bytes.size());
    std::copy_n(bytes.begin(), taken, frame_.begin() + static_cast<ptrdiff_t>(frame_bytes_));
    frame_bytes_ += taken;
    bytes.remove_prefix(taken);
    if (frame_bytes_ < kBytes) continue;
    frame_bytes_ = 0;
    skip_ = size_t{frame_[0]} << 16 | size_t{frame_[1]} << 8 | frame_[2];
    Header header = {.size = skip_, .type = frame_[3], .flags = frame_[4]};
    // Its highest bit is reserved.
    for (size_t i = 5; i < kBytes; ++i) header.stream = header.stream << 8 | frame_[i];
    header.stream &= 0x7fffffff;
    if (!see(header)) return false;
  }
  return true;
}

bool ConnectionFrames::Receive(absl::Span<const uint8_t> bytes, size_t most_calls) {
  return received_.Take(bytes,
                        [&](const FrameHeaders::Header& frame) { return Received(frame, most_calls); });
}

void ConnectionFrames::Send(absl::Span<const uint8_t> bytes) {
  sent_.Take(bytes, [&](const FrameHeaders::Header& frame) {
    Sent(frame);
    return true;
  });
}

bool ConnectionFrames::Received(const FrameHeaders::Header& frame, size_t most_calls) {
  if (IsIdle(frame)) ++num_idle_;
  if (frame.type == kResetStream) calls_.erase(frame.stream);
  // Otherwise it has trailers.
  if (frame.type == kHeaders && frame.stream > last_stream_) {
    last_stream_ = frame.stream;
    calls_.insert(frame.stream);
    too_many_calls_ = calls_.size() > most_calls;
    if (too_many_calls_) return false;
  }
  if (frame.type != kHeaders && frame.type != kContinuation) return true;
  list_bytes_ += frame.size;
  ++list_frames_;
  if (list_bytes_ > kMostBytes || list_frames_ > kMostFrames) return false;
  if ((frame.flags & kEndHeaders) != 0) list_bytes_ = list_frames_ = 0;
  return true;
}

void ConnectionFrames::Sent(const FrameHeaders::Header& frame) {
  if (frame.type == kData && frame.size > 0) ++num_sent_;
  const bool ends = (frame.type == kData || frame.type == kHeaders) && (frame.flags & kEndStream) != 0;
  if (ends || frame.type == kResetStream) calls_.erase(frame.stream);
}

}  // namespace tandem
