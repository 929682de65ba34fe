#pragma once

#include <cstdint>

namespace tandem {

// Bounds what the peer of a server's connection without TLS may send: what gRPC reads from this socket goes
// through HeaderBounds first, and a read that brings too much of a header list, or calls beyond `most_calls`
// whose answers have not been written, finds the end of the connection. Call before gRPC has the socket.
//
// How many calls are answered is not known here, but that an answer has kLeastAnswerBytes: whoever keeps to
// the server's limit of calls never has more than that beyond what was written.
//
// gRPC has no place to look at bytes before it parses them, but reads with recvmsg, which this library
// defines for the whole process in terms of the system call. For every other socket that changes nothing.
// With TLS the bytes are encrypted.
void BoundReads(int descriptor, uint64_t most_calls);

// The frames of headers, and of the stream's end, that answer a call.
inline constexpr uint64_t kLeastAnswerBytes = 20;

// How many connections were cut since this was last asked, by what for.
struct CutReads {
  int header_lists = 0;
  int calls = 0;
};
CutReads TakeCutReads();

}  // namespace tandem
