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

// What the live page is told, each as one line of JSON; docs/operate/live.md lists the fields. Whatever a
// verifier, a tenant or a model says, the line is valid JSON of bounded size: bytes that are no UTF-8 become
// U+FFFD, and what is beyond these limits is left out, and the line says so.
inline constexpr int kMaxLiveTokens = 256;                // Of a round.
inline constexpr int kMaxLiveNodes = 256;                 // Of a round's tree.
inline constexpr size_t kMaxLiveText = size_t{16} << 10;  // Bytes of a round's text, or of a prompt's end.
inline constexpr size_t kMaxLiveTokenText = 64;           // Bytes of a node's.
inline constexpr size_t kMaxLiveMessage = 1024;           // Bytes of a status message.
inline constexpr int kMaxLiveCandidates = 32;             // Of a choice.
inline constexpr size_t kMaxLiveTenants = 200;            // Rows of the table.

// How a generation begins.
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
// `encoder` tells what the tokens of the tree say.
std::string RoundJson(uint64_t generation, uint64_t round, const v1::GenerationChunk& chunk,
                      const PromptEncoder& encoder);
// Something to know about a generation, in words.
std::string NoteJson(uint64_t generation, absl::string_view note);
// `finished` is empty when the generation failed before.
std::string EndJson(uint64_t generation, const absl::Status& status, const v1::GenerationFinished& finished);
// The table of tenants: those of `table`, and those that are gone but have been counted.
std::string TenantsJson(const RoutingTable& table, const std::map<std::string, TenantTally>& tallies);
// What a browser is told first.
std::string HelloJson(const LiveFeed::Options& options, const std::string& instance);
std::string GapJson(uint64_t missed);

}  // namespace tandem::router
