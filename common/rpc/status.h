#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/support/status.h"

namespace tandem {

// Converts between absl::Status and grpc::Status. The only place that does.
//
// Payloads of an absl::Status travel as google.rpc.Status details (the trailer `grpc-status-details-bin`),
// each as a google.protobuf.Any of the payload's type URL, and come back as payloads. Messages are cut to
// kMaxStatusMessage bytes on a character border, since trailers over a peer's limit would replace the status
// altogether. Both functions accept anything: a code that gRPC does not know becomes UNKNOWN, details that do
// not parse are dropped.
inline constexpr size_t kMaxStatusMessage = 2048;

grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

// Attaches google.rpc.RetryInfo: the client should wait this long before it retries. A negative delay counts
// as none, an infinite one as ten years. An OK status stays as it is.
absl::Status WithRetryAfter(absl::Status status, absl::Duration delay);

// The delay of an attached google.rpc.RetryInfo, if there is a valid one.
std::optional<absl::Duration> RetryAfter(const absl::Status& status);

}  // namespace tandem
