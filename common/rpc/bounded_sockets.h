#pragma once

#include <cstdint>
#include <functional>

namespace tandem {

// Bounds what the peer of a server's connection without TLS may send. All bytes that gRPC reads from and
// writes to this socket pass through ConnectionFrames. The connection is cut if a header list is too long, if
// more than `most_calls` calls have no answer written, or if there are too many frames that carry nothing:
// gRPC's read then finds the end of the connection, and `on_cut` is called on the reader's thread. Call it
// before gRPC gets the socket.
//
// Frames that carry nothing: `most_calls` are allowed at once, twice as many per second, and one more for
// each written message, because some clients (grpc-go) answer each message with a ping to estimate the
// bandwidth.
//
// gRPC has no hook for bytes before it parses them, but it reads with recvmsg and writes with sendmsg. This
// library defines both for the whole process, on top of the system calls; nothing changes for other sockets.
// It cannot be used with TLS, where the bytes are encrypted.
void BoundSocket(int descriptor, uint64_t most_calls, std::function<void()> on_cut);

// How many connections were cut since the last call, by reason.
struct CutSockets {
  int header_lists = 0;
  int calls = 0;
  int idle_frames = 0;
};
CutSockets TakeCutSockets();

}  // namespace tandem
