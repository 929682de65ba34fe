#include "router/relay.h"

#include <limits>

#include "absl/strings/str_cat.h"

namespace tandem::router {

void Relay::OnAttempt(absl::string_view endpoint) {
  endpoint_ = std::string(endpoint.data(), endpoint.size());
  attempt_started_ = false;
}

absl::StatusOr<bool> Relay::OnEvent(v1::GenerateResponse& event) {
  if (finished_) return ProtocolError("an event after finished");
  switch (event.event_case()) {
    case v1::GenerateResponse::kStarted: {
      if (attempt_started_) return ProtocolError("started twice");
      attempt_started_ = true;
      if (started_) return false;
      started_ = true;
      event.mutable_started()->set_model(names_.model);
      event.mutable_started()->set_drafter(names_.drafter);
      return true;
    }
    case v1::GenerateResponse::kChunk: {
      const v1::GenerationChunk& chunk = event.chunk();
      if (!attempt_started_) return ProtocolError("a chunk before started");
      if (chunk.offset() != num_tokens_) {
        return ProtocolError(absl::StrCat("a chunk at offset ", chunk.offset(), ", expected ", num_tokens_));
      }
      num_tokens_ += static_cast<uint32_t>(chunk.tokens_size());
      return true;
    }
    case v1::GenerateResponse::kFinished:
      if (!attempt_started_) return ProtocolError("finished before started");
      finished_ = true;
      return true;
    case v1::GenerateResponse::EVENT_NOT_SET:
      // An event of a later protocol version, which clients of this one do not know either.
      return false;
  }
  return false;
}

Relay::End Relay::OnEnd(const absl::Status& status) const {
  // Everything was delivered; how the connection ended afterwards does not matter to the client.
  if (finished_) return {.status = absl::OkStatus()};
  const std::string verifier = absl::StrCat("verifier ", endpoint_);
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return {.status = ProtocolError("the end of the stream without finished")};
    case absl::StatusCode::kUnavailable:
      if (num_tokens_ == 0) {
        return {.retry = true,
                .status = absl::UnavailableError(absl::StrCat(verifier, ": ", status.message()))};
      }
      return {.status = absl::UnavailableError(
                  absl::StrCat(verifier, " was lost after ", num_tokens_, " tokens: ", status.message()))};
    // What the verifier says about the request is for the client, details included.
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kDeadlineExceeded:
      return {.status = status};
    // The client did not cancel, or nobody would listen: the verifier gave the request up.
    case absl::StatusCode::kCancelled:
      return {.status = absl::UnavailableError(absl::StrCat(verifier, " gave the request up after ",
                                                            num_tokens_, " tokens: ", status.message()))};
    default:
      return {.status = absl::InternalError(absl::StrCat(verifier, " failed with ",
                                                         absl::StatusCodeToString(status.code()), " after ",
                                                         num_tokens_, " tokens: ", status.message()))};
  }
}

absl::Status Relay::ProtocolError(absl::string_view what) const {
  return absl::InternalError(
      absl::StrCat("verifier ", endpoint_, " broke the protocol: ", what, " after ", num_tokens_, " tokens"));
}

}  // namespace tandem::router
