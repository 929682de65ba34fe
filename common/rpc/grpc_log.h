#pragma once

namespace tandem {

// Redirects the logs of gRPC and protobuf to common/base/log.h, as warnings, limited to some lines per
// second. Without it, they write each line to standard error on the thread that serves a peer, and peers
// decide how many lines there are. Call it once.
void TakeGrpcLog();

}  // namespace tandem
