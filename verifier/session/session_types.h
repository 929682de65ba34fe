#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/hash.h"
#include "common/base/token.h"
#include "common/drafting/draft_source.h"
#include "common/speculation/merged_tree.h"
#include "common/speculation/sampling_parameters.h"
#include "common/speculation/target_sampler.h"
#include "verifier/session/held_adapters.h"
#include "verifier/session/output_assembler.h"
#include "verifier/session/round_report.h"
#include "verifier/session/session_constraint.h"

namespace tandem {

// A stream to a drafter. As wide as the drafter's own type, so that a simulation can hold both sides.
using LinkId = uint64_t;

struct DrafterBinding {
  LinkId link = 0;
  std::string name;         // For statistics.
  std::string draft_model;  // To open there.
  bool trusted = false;     // Whether what it says of its distributions may be believed.
  uint64_t pool = 0;        // That the link is one of (drafter_pool.h); 0: none.
};

// A request for the scheduler: checked, with defaults filled in.
struct SessionRequest {
  TokenIds prompt;   // At least one token.
  TokenIds emitted;  // Already generated and delivered elsewhere.
  // Of output, `emitted` included; prompt + max_tokens fit the context. 0: the prompt is described, and
  // nothing drafts.
  uint32_t max_tokens = 0;
  SamplingParameters sampling;
  int num_logprobs = -1;
  int num_prompt_logprobs = -1;             // Likewise of the prompt's tokens, which are all computed then.
  std::unique_ptr<OutputAssembler> output;  // Has replayed `emitted`,
  std::optional<OutputEnd> replayed_end;    // and has found this, if they already end the output.
  std::unique_ptr<SessionConstraint>
      constraint;  // What the output may be, `emitted` taken in; none: anything.
  // The end-of-text token that the output ends with where the target would rather have what the constraint
  // does not allow (StructuralTags.only_tags); none: it has to choose the end by itself.
  std::optional<TokenId> end_instead;
  std::shared_ptr<const std::string> wire_constraint;  // The same, for drafters: OpenSession.
  uint64_t cache_salt = 0;
  AdapterHandle adapter;    // That computes it, or none,
  uint64_t arithmetic = 0;  // and how its output is computed, the adapter included; 0: not known.
  std::string tenant;       // Whose waiting requests
  int32_t priority = 0;     // go by this, the lowest first.
  absl::Time deadline = absl::InfiniteFuture();
  std::optional<DrafterBinding> drafter;
  std::vector<DrafterBinding> alternates;  // In whose stead to take them; only with a drafter.
  std::optional<DrafterBinding> partner;   // Drafts along with the drafter; another one than that.
  bool text_drafting = false;              // Whether any of them may draft by text.
  bool speculate = true;                   // Whether to draft locally where the drafter does not.
  std::unique_ptr<DraftSource>
      prediction;             // Drafts what the request predicts, `emitted` taken in; none: nothing.
  std::string window_policy;  // Empty: the scheduler's.
  uint32_t max_window = 0;    // 0: the scheduler's.
  std::string policy_state;   // What the policy is to begin with, as WindowPolicy exports it.
  bool trace_rounds = false;
  bool trace_trees = false;  // With trace_rounds.
};

// The salt that separates texts in the memory of drafters and sources: by tenant, and by the tenant's
// adapters, because their outputs and features differ.
inline uint64_t DraftSalt(const SessionRequest& request) {
  return request.adapter == nullptr ? request.cache_salt
                                    : HashCombine(request.cache_salt, request.adapter->fingerprint);
}

// A part of a prompt with its log probabilities. The prompt's first token has none.
struct PromptPart {
  uint32_t offset = 0;  // In the prompt.
  std::vector<TokenChoice> tokens;
};
inline constexpr size_t kMostPromptPart = 1024;

struct CommittedToken {
  TokenId token = 0;
  std::optional<DraftOrigin> drafted_by;  // Of an accepted draft token; else it is the target's own.
  uint32_t text_bytes = 0;                // Of the chunk's text, how many became certain with this token.
  TokenChoice choice;
};

// A drafter's message with new candidates.
struct GrowthTrace {
  absl::Time received;
  uint32_t nodes = 0;
  double step_seconds = 0.0;
};
inline constexpr size_t kMaxTracedGrowth = 64;  // Of one round.

// A record of how a round went, for requests that ask for it.
struct RoundTrace {
  RoundReport report;
  absl::Time verify_start;
  absl::Duration verify_time;
  std::vector<GrowthTrace> growth;  // Since the round before.
  // Of requests that ask for it: the tree, which nodes were accepted, and the candidates below its nodes that
  // the constraint does not allow.
  RoundTree tree;
  std::vector<uint32_t> accepted;
  std::vector<RoundNode> masked;
};
inline constexpr size_t kMaxTracedMasked = 64;  // Of one round.

struct CommittedTokens {
  uint32_t offset = 0;  // In the output.
  std::vector<CommittedToken> tokens;
  std::string text;
  RoundKind kind = RoundKind::kUndrafted;
  uint32_t depth = 0;  // Of the tree that was verified,
  uint32_t nodes = 0;  // and its nodes.
  RoundDrafters drafters;
  std::array<OriginShare, kNumDraftOrigins> shares;
  std::optional<RoundTrace> trace;
};

// An origin's statistics in a session, while a certain drafter was bound.
struct OriginSummary {
  DraftOrigin origin = DraftOrigin::kDrafter;
  std::string drafter;  // RoundDrafters::NameOf.
  uint32_t rounds = 0;  // With at least one node of it.
  uint32_t draft_tokens = 0;
  uint32_t accepted_tokens = 0;
  std::vector<uint32_t> accepted_per_position;
  uint32_t rejections = 0;
  double wait_seconds = 0.0;
};
// If a session is swapped to more drafters than this, the others are reported under kOtherDrafters.
inline constexpr size_t kMostOriginSummaries = 16;
inline constexpr char kOtherDrafters[] = "other";

// The statistics of a finished session.
struct SessionSummary {
  OutputEnd end;
  uint32_t prompt_tokens = 0;
  uint32_t cached_prompt_tokens = 0;
  uint32_t output_tokens = 0;
  std::string drafter;
  std::string drafter_lost;
  uint32_t preemptions = 0;  // How often it gave up its keys and values to others and computed them again.
  uint32_t rounds = 0;
  uint32_t drafted_rounds = 0;
  uint32_t hits = 0;
  uint32_t misses = 0;
  uint32_t draft_tokens = 0;
  uint32_t accepted_tokens = 0;
  bool constrained = false;
  uint32_t masked_draft_tokens = 0;  // Candidates that the constraint forbids.
  std::vector<uint32_t> accepted_per_position;
  std::vector<uint32_t> window_histogram;
  std::vector<OriginSummary> by_origin;
  uint32_t merged_rounds = 0;  // With nodes of several origins.
  // Of the last bound drafter: accepted tokens, and walks that ended with a rejection of its candidates.
  uint32_t drafter_accepted_tokens = 0;
  uint32_t drafter_rejections = 0;
  // The costs of rounds at the end; negative without a drafter.
  double exposed_level_seconds = -1.0;
  double hidden_level_seconds = -1.0;
  std::vector<double> verify_seconds;  // By window.
  // Tokens of rounds that directly followed another one, and the time of these rounds.
  uint32_t decode_tokens = 0;
  double decode_seconds = 0.0;
  std::string policy_state;  // What the window policy has learned.
};

// Totals of one kind of origin for a session.
struct DraftTotals {
  uint32_t draft_tokens = 0;
  uint32_t accepted_tokens = 0;
};
DraftTotals TotalsBy(const SessionSummary& summary, SourceKind source);

}  // namespace tandem
