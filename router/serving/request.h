#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "router/models/served_model.h"
#include "tandem/v1/generation.pb.h"
#include "tandem/v1/verifier.pb.h"

namespace tandem::router {

// Bounds on what a client may send, beyond those of tandem.v1.
inline constexpr size_t kMaxPromptBytes = size_t{1} << 20;
inline constexpr int kMaxChatMessages = 4096;
inline constexpr size_t kMaxRequestIdBytes = 128;
inline constexpr int kMaxStopStrings = 16;
inline constexpr size_t kMaxStopBytes = 256;
inline constexpr uint32_t kMaxLogprobs = 20;
inline constexpr size_t kMaxConstraintBytes = size_t{1} << 20;
inline constexpr size_t kMaxPredictionBytes = size_t{1} << 20;
inline constexpr int kMaxPredictionTokens = 262'144;
inline constexpr uint32_t kMaxOutputs = 16;
inline constexpr int32_t kMostPriority = 100;

// The checks that need nothing but the request: request id, that there is a prompt and how long it is, stop
// conditions' shape, output options. Cheap, so done before anything is spent on the request. InvalidArgument
// names the field.
absl::Status ValidateRequest(const v1::GenerateRequest& request);

// Turns a request that ValidateRequest accepts into what the verifier is asked: tokenizes the prompt,
// completes the sampling parameters with the model's defaults and, by `draw`, a seed. InvalidArgument names
// the field. Takes time in proportion to the prompt: not for threads that serve the network.
//
// `tokenized` is set to the number of tokens that were made of the prompt's text, also when the request is
// refused: what it cost, to be charged to its tenant. Of a text that does not fit into the model's context it
// is as many as that has; no more are made.
absl::StatusOr<v1::VerifierGenerateRequest> PrepareRequest(const v1::GenerateRequest& request,
                                                           const ServedModel& model,
                                                           const std::function<uint64_t()>& draw,
                                                           uint64_t& tokenized);

}  // namespace tandem::router
