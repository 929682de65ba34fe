#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "router/live/live_feed.h"
#include "router/live/live_json.h"
#include "router/live/tenant_tally.h"
#include "router/models/served_model.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// What a router's calls use to report to the live page.
struct LiveView {
  LiveView(const LiveFeed::Options& options, std::string instance) : feed(options, std::move(instance)) {}

  LiveFeed feed;
  TenantTallies tallies;
};

// Reports one call to the live page:
//
//   OnAdmitted -> [Show -> OnEvent, OnNote ...] -> OnEnded
//
// Every call counts in its tenant's tally. A call that is shown also publishes its events: "start",
// "started", "round", "note" and "end". To see rounds, it asks the verifier for more fields than the client
// did, and removes them from the client's events. Not thread-safe.
class LiveCall {
 public:
  // `view` outlives this. Null: does nothing.
  explicit LiveCall(LiveView* view) : view_(view) {}

  void OnAdmitted(const std::string& tenant);
  // Shows the call from now on. Changes `output`, the output options for the verifier. `encoder`: of the
  // model.
  void Show(const LiveStart& start, std::shared_ptr<const PromptEncoder> encoder, v1::OutputOptions& output);
  // An event on its way to the client. Call it for every one.
  void OnEvent(v1::GenerateResponse& event);
  // Publishes a note for viewers, in words.
  void OnNote(absl::string_view note);
  // Call it once, with or without OnAdmitted before.
  void OnEnded(const absl::Status& status);

 private:
  void OnChunk(v1::GenerationChunk& chunk);

  LiveView* const view_;
  std::string tenant_;  // Empty before OnAdmitted.
  uint64_t num_tokens_ = 0;
  v1::GenerationFinished finished_;
  // Of calls that are shown.
  std::shared_ptr<const PromptEncoder> encoder_;
  uint64_t generation_ = 0;
  uint64_t num_rounds_ = 0;
  bool client_wants_trace_ = false;
  bool client_wants_tree_ = false;
};

}  // namespace tandem::router
