#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "router/config/config.h"
#include "router/live/live_feed.h"
#include "router/live/tenant_tally.h"
#include "router/models/served_model.h"
#include "tandem/v1/generation.pb.h"
#include "tandem/v1/routing.pb.h"

namespace tandem::router {

// The live page's events, each as one line of JSON; docs/operate/live.md lists the fields. Whatever a
// verifier, tenant or model sends, a line is valid JSON of bounded size: bytes that are not UTF-8 become
// U+FFFD, and content beyond these limits is left out, which the line says.
inline constexpr int kMaxLiveTokens = 256;                // Of a round.
inline constexpr int kMaxLiveNodes = 256;                 // Of a round's tree.
inline constexpr size_t kMaxLiveText = size_t{16} << 10;  // Bytes of a round's text, or of a prompt's end.
inline constexpr size_t kMaxLiveTokenText = 64;           // Bytes of a node's.
inline constexpr size_t kMaxLiveMessage = 1024;           // Bytes of a status message.
inline constexpr int kMaxLiveCandidates = 32;             // Of a choice.
inline constexpr size_t kMaxLiveTenants = 200;            // Rows of the table.

// The start of a generation.
struct LiveStart {
  std::string request_id;
  std::string tenant;
  std::string model;
  std::string drafter;  // Empty for none.
  std::string reason;   // As of DrafterSelection.
  std::string window_policy;
  bool has_prompt = false;  // Prompts may be shown.
  std::string prompt;
  v1::ChoiceExplanation explanation;
};

// `generation` is LiveFeed::NextGeneration's, `round` counts its rounds from 0.
std::string StartJson(uint64_t generation, const LiveStart& start);
std::string StartedJson(uint64_t generation, const v1::GenerationStarted& started);
// `encoder` gives the text of the tree's tokens.
std::string RoundJson(uint64_t generation, uint64_t round, const v1::GenerationChunk& chunk,
                      const PromptEncoder& encoder);
// A note about a generation, in words.
std::string NoteJson(uint64_t generation, absl::string_view note);
// `finished` is empty if the generation failed before.
std::string EndJson(uint64_t generation, const absl::Status& status, const v1::GenerationFinished& finished);
// The table of tenants: those of `table`, and earlier tenants that have tallies.
std::string TenantsJson(const RoutingTable& table, const std::map<std::string, TenantTally>& tallies);
// The first event for a browser.
std::string HelloJson(const LiveFeed::Options& options, const std::string& instance);
std::string GapJson(uint64_t missed);

}  // namespace tandem::router
