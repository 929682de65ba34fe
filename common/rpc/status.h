#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
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

// The same error with another code and message. Payloads stay.
absl::Status Restated(const absl::Status& status, absl::StatusCode code, absl::string_view message);

// Attaches google.rpc.ErrorInfo: which error it is, for programs, as an upper-case name such as
// kContextLengthExceeded. An OK status stays as it is.
absl::Status WithReason(absl::Status status, absl::string_view reason);

// The reason of an attached google.rpc.ErrorInfo; empty: none.
std::string ReasonOf(const absl::Status& status);

// Prompt and output do not fit into the context together.
inline constexpr absl::string_view kContextLengthExceeded = "CONTEXT_LENGTH_EXCEEDED";

}  // namespace tandem
