#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace tandem {

// Follows the frames of an HTTP/2 connection as its bytes come in, to find header lists that are longer, or
// come in more pieces, than any that a server takes (RFC 9113, sections 4.1, 4.3 and 6.10). gRPC
// before 1.56.2 finds the first out only when the list has ended, and looks at an unfinished string again
// from its beginning with every piece (CVE-2023-33953).
//
//   PREFACE (24 bytes) --> FRAME HEADER (9 bytes) --> PAYLOAD --> FRAME HEADER ...
//
// Nothing is decoded and nothing else is checked: that is gRPC's. Plain logic, not thread-safe.
class HeaderBounds {
 public:
  // Twice what kMaxMetadataBytes allows, whatever the coding.
  static constexpr size_t kMostBytes = 32 << 10;
  static constexpr size_t kMostFrames = 32;

  // What came next. False when a header list is beyond its bounds; the connection is to be cut.
  bool Take(absl::Span<const uint8_t> bytes);
  // Calls that the peer has begun, less those that it has reset.
  uint64_t num_calls() const { return num_begun_ - std::min(num_begun_, num_reset_); }

 private:
  bool TakeFrameHeader();

  static constexpr size_t kPrefaceBytes = 24;
  static constexpr size_t kFrameHeaderBytes = 9;

  size_t skip_ = kPrefaceBytes;  // Of the preface, or of a payload.
  std::array<uint8_t, kFrameHeaderBytes> frame_{};
  size_t frame_bytes_ = 0;    // Of it, so far.
  size_t list_bytes_ = 0;     // Of the header list that has not ended,
  size_t list_frames_ = 0;    // and its frames.
  uint32_t last_stream_ = 0;  // That a call was begun on.
  uint64_t num_begun_ = 0;
  uint64_t num_reset_ = 0;
};

}  // namespace tandem
