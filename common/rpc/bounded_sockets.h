#pragma once

#include <cstdint>
#include <functional>

namespace tandem {

// Bounds what the peer of a server's connection without TLS may send: what gRPC reads from this socket, and
// writes to it, goes through ConnectionFrames, and a read that brings too much of a header list, or more
// calls than `most_calls` whose answers have not been written, or too many frames that carry nothing, finds
// the end of the connection, and `on_cut` is called on the reader's thread. Call before gRPC has the socket.
//
// Frames that carry nothing may be as many at once as calls, twice as many a second, and one more for each
// message that was written: some clients (grpc-go) answer each with a ping, to find out how much the network
// holds.
//
// gRPC has no place to look at bytes before it parses them, but reads with recvmsg and writes with sendmsg,
// which this library defines for the whole process in terms of the system calls. For every other socket that
// changes nothing. With TLS the bytes are encrypted.
void BoundSocket(int descriptor, uint64_t most_calls, std::function<void()> on_cut);

// How many connections were cut since this was last asked, by what for.
struct CutSockets {
  int header_lists = 0;
  int calls = 0;
  int idle_frames = 0;
};
CutSockets TakeCutSockets();

}  // namespace tandem
