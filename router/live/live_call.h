#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "router/generation/generation_facts.h"
#include "router/generation/generation_observer.h"
#include "router/live/live_feed.h"
#include "router/live/live_json.h"
#include "router/live/tenant_tally.h"
#include "router/models/served_model.h"
#include "tandem/v1/generation.pb.h"
#include "tandem/v1/verifier.pb.h"

namespace tandem::router {

// What a router's calls use to report to the live page.
struct LiveView {
  LiveView(const LiveFeed::Options& options, std::string instance) : feed(options, std::move(instance)) {}

  LiveFeed feed;
  TenantTallies tallies;
};

// Reports one call to the live page. Every call that is admitted counts in its tenant's tally. A call that is
// shown also publishes its events: "start", "started", "round", "note" and "end". To see rounds, it asks the
// verifier for more fields than the client did, and removes them from the client's events. Not thread-safe.
class LiveCall final : public GenerationObserver {
 public:
  // `view` outlives this. Null: does nothing.
  explicit LiveCall(LiveView* view) : view_(view) {}

  // Before OnPrepared: shows the call, which begins with `start`. `encoder`: of the model.
  void Show(LiveStart start, std::shared_ptr<const PromptEncoder> encoder);

  void OnStage(Stage stage, const GenerationFacts& facts, absl::Time now) override;
  void OnPrepared(const GenerationFacts& facts, v1::VerifierGenerateRequest& request,
                  absl::Time now) override;
  void OnEvent(const GenerationFacts& facts, v1::GenerateResponse& event, absl::Time now) override;
  void OnTurn(Turn turn, const absl::Status& reason, const GenerationFacts& facts, absl::Time now) override;
  void OnEnded(const GenerationFacts& facts, const absl::Status& status, absl::Time now) override;

 private:
  void OnChunk(v1::GenerationChunk& chunk);

  LiveView* const view_;
  std::string tenant_;  // Empty before kAdmit.
  uint64_t num_tokens_ = 0;
  v1::GenerationFinished finished_;
  // Of calls that are shown.
  std::shared_ptr<const PromptEncoder> encoder_;
  LiveStart start_;  // Until OnPrepared.
  uint64_t generation_ = 0;
  uint64_t num_rounds_ = 0;
  bool client_wants_trace_ = false;
  bool client_wants_tree_ = false;
};

}  // namespace tandem::router
