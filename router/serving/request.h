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
inline constexpr int kMaxBadWords = 256;
inline constexpr size_t kMaxBadWordBytes = 256;
inline constexpr size_t kMaxBadWordTokens = 64;
inline constexpr size_t kMaxCacheSaltBytes = 1024;
inline constexpr size_t kMaxConstraintBytes = size_t{1} << 20;
inline constexpr size_t kMaxPredictionBytes = size_t{1} << 20;
inline constexpr int kMaxPredictionTokens = 262'144;
inline constexpr uint32_t kMaxOutputs = 16;
inline constexpr int32_t kMostPriority = 100;

// The checks that need only the request: request id, presence and length of the prompt, stop conditions,
// output options. They are cheap and come before any other work on the request. InvalidArgument names the
// field.
absl::Status ValidateRequest(const v1::GenerateRequest& request);

// Turns a request that ValidateRequest accepts into the verifier's request: tokenizes the prompt, and
// completes the sampling parameters with the model's defaults and a seed from `draw`. InvalidArgument names
// the field. Takes time proportional to the prompt, so do not call it on network threads.
//
// Sets `tokenized` to the number of tokens made from the prompt's text, even if the request is refused; the
// tenant is charged for them. Tokenizing stops at the length of the model's context, so this is the most that
// a text can cost, unless the prompt is to be cut: then all of it is read.
absl::StatusOr<v1::VerifierGenerateRequest> PrepareRequest(const v1::GenerateRequest& request,
                                                           const ServedModel& model,
                                                           const std::function<uint64_t()>& draw,
                                                           uint64_t& tokenized);

}  // namespace tandem::router
