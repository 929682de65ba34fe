#pragma once

namespace tandem {

// Bounds header lists on a server's connection without TLS: what gRPC reads from this socket goes through
// HeaderBounds first, and a read that brings too much of a list finds the end of the connection. Call before
// gRPC has the socket.
//
// gRPC has no place to look at bytes before it parses them, but reads with recvmsg, which this library
// defines for the whole process in terms of the system call. For every other socket, and for those of gRPCs
// that bound header lists by themselves, that changes nothing. With TLS the bytes are encrypted.
void BoundHeaderLists(int descriptor);

// How many connections were cut for that since this was last asked.
int TakeNumCutHeaderLists();

}  // namespace tandem
