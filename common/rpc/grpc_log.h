#pragma once

namespace tandem {

// From now on what gRPC and protobuf themselves log goes through common/base/log.h, as warnings, and at most
// some lines a second: peers decide how many there are, and they would write each to standard error on the
// thread that serves them. Servers and channels ask for it; again does nothing.
void TakeGrpcLog();

}  // namespace tandem
