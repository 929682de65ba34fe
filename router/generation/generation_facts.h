#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "router/config/config.h"
#include "router/drafters/choice/drafter_chooser.h"
#include "router/drafters/selection.h"
#include "router/state/routing_snapshot.h"
#include "tandem/v1/generation.pb.h"
#include "tandem/v1/verifier.pb.h"

namespace tandem::router {

// The stages of preparation, in their order. serving/preparation.h says what each does.
enum class Stage : size_t {
  kReceive,   // Who calls, and the request.
  kRoute,     // The request's model, adapter and id.
  kAdmit,     // Its tenant's choice of a drafter; a place in flight, or in the queue for one.
  kPlace,     // It holds the place, and a worker has it.
  kEncode,    // Its prompt is tokens.
  kChoose,    // Its drafter is chosen.
  kComplete,  // Its tokens are reserved, and the verifier's request is complete.
};
inline constexpr size_t kNumStages = 7;

// What is known of a generation. Each stage of preparation adds to it; from then on only Generation changes
// it. Observers read it.
struct GenerationFacts {
  // From the beginning.
  std::shared_ptr<const RoutingSnapshot> routing;
  std::string trace_id;  // As it appears in logs.

  // kReceive.
  const Tenant* tenant = nullptr;                    // In `routing`. Null: the caller is not authenticated.
  std::shared_ptr<const v1::GenerateRequest> asked;  // By the client. Until the first attempt.
  // kRoute.
  size_t model = 0;
  std::string model_name;
  std::string adapter;  // Empty: none.
  std::string request_id;
  // kAdmit. The drafter and its reason are final after kChoose.
  DrafterSelection selection;
  bool queued = false;  // It had to wait for its place.
  // kChoose.
  PromptHandle prompt;  // Of requests that may be drafted.
  DrafterDecision decision;
  // kComplete: the request for the verifier, as the next attempt sends it.
  v1::VerifierGenerateRequest request;

  // When each stage was over; those after the one reached are not set.
  std::array<absl::Time, kNumStages> reached = {};
  absl::Time ReachedAt(Stage stage) const { return reached[static_cast<size_t>(stage)]; }

  // Tokens for the client, or that it already has if it resumes a stream; and those that this generation
  // queued for it. A client that leaves does not take all of them.
  size_t num_output = 0;
  uint32_t num_sent = 0;

  const std::string& drafter() const { return request.drafter().name(); }  // Empty: none.
  // Whether the prompt is scored and nothing is generated: then there is nothing to learn from.
  bool OnlyScores() const {
    return request.stopping().has_max_tokens() && request.stopping().max_tokens() == 0;
  }
};

}  // namespace tandem::router
