#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/tracing/trace_context.h"
#include "tandem/v1/drafter.pb.h"

namespace tandem::router {

// A drafter to ask for a score.
struct FeedbackDrafter {
  std::string name;
  std::string endpoint;
  std::string draft_model;
};

// Asks drafters for scores. Thread-safe.
class Scorer {
 public:
  using Done = std::function<void(absl::StatusOr<v1::ScoreResponse>)>;

  // Cancels all scores in flight and waits until every Done has been called.
  virtual ~Scorer() = default;
  // Returns at once. `done` is called exactly once, from any thread, possibly before this returns. The
  // drafter gets `trace`, if it is valid.
  virtual void Score(const FeedbackDrafter& drafter, v1::ScoreRequest request, const TraceContext& trace,
                     absl::Time deadline, Done done) = 0;
};

}  // namespace tandem::router
