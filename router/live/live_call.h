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

// What a router's calls tell the live page.
struct LiveView {
  LiveView(const LiveFeed::Options& options, std::string instance) : feed(options, std::move(instance)) {}

  LiveFeed feed;
  TenantTallies tallies;
};

// One call's part in it:
//
//   OnAdmitted -> [Show -> OnEvent, OnNote ...] -> OnEnded
//
// Of every call its tenant's tally; of those that are shown every event, as a "start", "started", "round",
// "note" or "end". To see rounds it asks the verifier for more than the client did, and takes that out again
// of what the client is sent. Not thread-safe.
class LiveCall {
 public:
  // `view` outlives this; none: nothing is told and nothing done.
  explicit LiveCall(LiveView* view) : view_(view) {}

  void OnAdmitted(const std::string& tenant);
  // From now on the call is shown. `output`: what the verifier is to be asked for, which is changed.
  // `encoder` is the model's.
  void Show(const LiveStart& start, std::shared_ptr<const PromptEncoder> encoder, v1::OutputOptions& output);
  // An event on its way to the client. Call it for every one.
  void OnEvent(v1::GenerateResponse& event);
  // For people who watch, in words.
  void OnNote(absl::string_view note);
  // Once, after OnAdmitted or without it.
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
