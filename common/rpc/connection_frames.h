#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/types/span.h"

namespace tandem {

// Finds the frames in the bytes of one direction of an HTTP/2 connection (RFC 9113, section 4.1), however the
// bytes are cut into pieces. Decodes no payloads. Plain logic. Not thread-safe.
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

  // `preface`: the number of bytes before the first frame.
  explicit FrameHeaders(size_t preface) : skip_(preface) {}

  // Takes the next bytes. Calls `see` for each frame whose header is complete now; stops and returns false as
  // soon as `see` does.
  bool Take(absl::Span<const uint8_t> bytes, absl::FunctionRef<bool(const Header&)> see);

 private:
  static constexpr size_t kBytes = 9;

  size_t skip_;  // Of the preface, or of a payload.
  std::array<uint8_t, kBytes> frame_{};
  size_t frame_bytes_ = 0;  // Of it, so far.
};

// Counts, on a server's connection, the client's unanswered calls, header lists that are longer or come in
// more pieces than a server accepts (RFC 9113, sections 4.3 and 6.10), and frames that carry nothing. gRPC
// before 1.56.2 checks a header list only at its end, and scans an unfinished string again from its beginning
// with every piece (CVE-2023-33953). gRPC enforces its limit of calls only after the client has acknowledged
// it.
//
// Plain logic. Not thread-safe. Memory: some bytes for each open call.
class ConnectionFrames {
 public:
  // Twice kMaxMetadataBytes, in any encoding.
  static constexpr size_t kMostBytes = 32 << 10;
  static constexpr size_t kMostFrames = 32;

  // The next bytes from the client. False if a header list exceeds its bounds, or more than `most_calls`
  // calls are open; then cut the connection.
  bool Receive(absl::Span<const uint8_t> bytes, size_t most_calls);
  // The next bytes to the client.
  void Send(absl::Span<const uint8_t> bytes);

  // Calls that the client has begun, and that the server has not ended and neither side has reset.
  size_t num_calls() const { return calls_.size(); }
  // Whether the last Receive() failed because of calls, not because of a header list.
  bool too_many_calls() const { return too_many_calls_; }
  // Frames that cost work and carry nothing: pings and settings that are no acknowledgements, resets,
  // priorities, empty data before a stream's end, and frames of unknown types.
  uint64_t num_idle_frames() const { return num_idle_; }
  // Data frames sent to the client.
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
