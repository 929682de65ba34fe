#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/types/span.h"

namespace tandem {

// Finds the frames in the bytes of one direction of an HTTP/2 connection (RFC 9113, section 4.1), in whatever
// pieces they come. Nothing is decoded. Plain logic, not thread-safe.
//
//   PREFACE --> FRAME HEADER (9 bytes) --> PAYLOAD --> FRAME HEADER ...
class FrameHeaders {
 public:
  struct Header {
    size_t size = 0;  // Of the payload.
    uint8_t type = 0;
    uint8_t flags = 0;
    uint32_t stream = 0;
  };

  // Frames begin behind so many bytes.
  explicit FrameHeaders(size_t preface) : skip_(preface) {}

  // What came next. Shows each frame whose header is complete now; false as soon as `see` says so.
  bool Take(absl::Span<const uint8_t> bytes, absl::FunctionRef<bool(const Header&)> see);

 private:
  static constexpr size_t kBytes = 9;

  size_t skip_;  // Of the preface, or of a payload.
  std::array<uint8_t, kBytes> frame_{};
  size_t frame_bytes_ = 0;  // Of it, so far.
};

// What the client of a server's connection has begun and not yet been answered, and what it sends besides:
// header lists that are longer, or come in more pieces, than any that a server takes (RFC 9113, sections 4.3
// and 6.10), and frames that carry nothing. gRPC before 1.56.2 finds out about the first only when the list
// has ended, and looks at an unfinished string again from its beginning with every piece (CVE-2023-33953); it
// holds clients to its limit of calls only when they have acknowledged it.
//
// Plain logic, not thread-safe. Memory: some bytes for each call that is open.
class ConnectionFrames {
 public:
  // Twice what kMaxMetadataBytes allows, whatever the coding.
  static constexpr size_t kMostBytes = 32 << 10;
  static constexpr size_t kMostFrames = 32;

  // What came next from the client. False when a header list is beyond its bounds, or more calls are open
  // than `most_calls`; the connection is to be cut.
  bool Receive(absl::Span<const uint8_t> bytes, size_t most_calls);
  // What went next to it.
  void Send(absl::Span<const uint8_t> bytes);

  // Begun by the client, and neither ended by the server nor reset by either.
  size_t num_calls() const { return calls_.size(); }
  // Whether the last Receive() failed for calls, and not for a header list.
  bool too_many_calls() const { return too_many_calls_; }
  // Frames that make work and carry nothing: pings and settings that are no acknowledgements, resets,
  // priorities, empty data before a stream's end, and frames of types that nobody knows.
  uint64_t num_idle_frames() const { return num_idle_; }
  // Frames with data that went to the client.
  uint64_t num_sent_messages() const { return num_sent_; }

 private:
  bool Received(const FrameHeaders::Header& frame, size_t most_calls);
  void Sent(const FrameHeaders::Header& frame);

  FrameHeaders received_{24};
  FrameHeaders sent_{0};
  size_t list_bytes_ = 0;     // Of the header list that has not ended,
  size_t list_frames_ = 0;    // and its frames.
  uint32_t last_stream_ = 0;  // That a call was begun on.
  absl::flat_hash_set<uint32_t> calls_;
  bool too_many_calls_ = false;
  uint64_t num_idle_ = 0;
  uint64_t num_sent_ = 0;
};

}  // namespace tandem
