#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/token.h"
#include "common/speculation/sampling_parameters.h"

namespace tandem {

// The draft protocol's messages as protocol logic sees them; meanings are those of
// proto/tandem/v1/drafter.proto. Converted from and to the wire in common/rpc/draft_wire.h.

using SessionId = uint64_t;
using NodeId = uint32_t;  // 0 is the root as of the last commit seen.

// The order in which a drafter tries candidates.
enum class TreeShape {
  kBestFirst,  // The best candidate by path score is next, wherever it is.
  kChain,      // One node for each level.
  kEagle2,  // Level by level: the best nodes of each are expanded, then the best of all are kept (EAGLE-2).
};

struct DraftBudget {
  uint32_t depth = 0;
  uint32_t nodes = 0;
  uint32_t branching = 1;
  uint32_t lookahead = 0;
  TreeShape shape = TreeShape::kBestFirst;
  // Nodes to draft ahead beyond `nodes`, and the most children of a node there. 0 nodes: in proportion to
  // what `lookahead` adds, with `branching`.
  uint32_t ahead_nodes = 0;
  uint32_t ahead_branching = 0;

  friend bool operator==(const DraftBudget&, const DraftBudget&) = default;
};

struct OpenSession {
  uint32_t epoch = 0;
  std::string draft_model;
  uint64_t vocabulary_fingerprint = 0;
  uint32_t commit_no = 0;
  TokenIds tokens;
  uint64_t prefix_hash = 0;
  SamplingParameters sampling;
  uint32_t prompt_length = 0;
  uint64_t cache_salt = 0;
  DraftBudget budget;
  bool sampled_drafts = false;      // Draw children, and send their draft distributions.
  bool predict_acceptance = false;  // Predictions of a stop head are wanted.
  // Identify the request in traces and logs, and have no other effect. In the format of the W3C headers; may
  // be empty.
  std::string traceparent;
  std::string tracestate;
  std::string request_id;
  // What the target offers to draft heads; 0 and 0: nothing. The fingerprint is 0 if unknown.
  uint32_t target_hidden_size = 0;
  uint32_t target_layers = 0;
  uint64_t target_fingerprint = 0;
  bool text_drafting = false;  // A drafter of an entirely different vocabulary may draft.
  // The request's constraint as written on the wire (proto/tandem/v1/types.proto, Constraint); null: none.
  std::shared_ptr<const std::string> constraint;
};

// The number format of features on the wire.
enum class FeatureType {
  kBf16,  // Two bytes each, little endian.
  kInt8,  // Every state: a float32 scale, then one signed byte for each number.
};

// The target's hidden states for committed tokens, for draft heads: rows of [FeatureNeeds::num_states(),
// target_hidden_size], in order of position and without gaps.
struct Features {
  uint32_t epoch = 0;
  uint32_t first_position = 0;
  FeatureType type = FeatureType::kBf16;
  std::string states;  // As written on the wire; see FeatureRowBytes.
};

// Which states a draft head reads.
struct FeatureNeeds {
  std::vector<uint32_t> layers;  // As in FeatureRequest.
  bool final_norm = false;
  FeatureType type = FeatureType::kBf16;
  uint32_t first_position = 0;  // Nothing before it is of use.
  // Most rows sent beyond those that FeaturesUsed has reported; 0: no limit.
  uint32_t window = 0;

  uint32_t num_states() const { return static_cast<uint32_t>(layers.size()) + (final_norm ? 1 : 0); }
};

// Bytes of one row of features.
inline uint64_t FeatureRowBytes(FeatureType type, uint32_t num_states, uint32_t hidden_size) {
  const uint64_t state =
      type == FeatureType::kInt8 ? sizeof(float) + uint64_t{hidden_size} : 2 * uint64_t{hidden_size};
  return num_states * state;
}

struct Commit {
  uint32_t epoch = 0;
  uint32_t commit_no = 0;
  TokenIds tokens;
  std::optional<NodeId> new_root;
  uint32_t committed_len = 0;
  uint64_t prefix_hash = 0;
  DraftBudget budget;
  std::optional<Features> features;  // Of the old root and the accepted nodes, for a head.
};

struct CloseSession {};

// Asks for a LoadReport; of no session.
struct LoadQuery {};

struct DraftRequest {
  SessionId session = 0;
  std::variant<OpenSession, Commit, CloseSession, LoadQuery, Features> event;
};

struct SessionOpened {
  uint32_t epoch = 0;
  uint32_t context_length = 0;
  bool predicts_acceptance = false;
  std::optional<FeatureNeeds> features;  // Of a draft head.
};

// The distribution from which a node's children are drawn, without replacement and in the order of their
// ids. Probabilities are relative to their sum, which is 1 up to rounding: both sides divide by it.
struct DraftDistribution {
  NodeId parent = 0;
  TokenIds tokens;  // Distinct.
  std::vector<float> probabilities;
};

// A stop head's prediction for a node that the draft model has computed.
struct NodePrediction {
  NodeId node = 0;
  float acceptance = 0.0f;
};

struct Grow {
  static constexpr size_t kUsualNodes = 4;  // Of a step; more take memory of their own.

  uint32_t epoch = 0;
  uint32_t seen_commit = 0;
  uint64_t prefix_hash = 0;
  NodeId first_id = 0;
  absl::InlinedVector<NodeId, kUsualNodes> parents;
  absl::InlinedVector<TokenId, kUsualNodes> tokens;
  absl::InlinedVector<float, kUsualNodes> scores;
  bool exhausted = false;
  float step_seconds = 0.0f;
  std::vector<DraftDistribution>
      distributions;                        // Where asked for: one for each parent, with its first child.
  std::vector<NodePrediction> predictions;  // Where asked for.
};

struct ResyncNeeded {
  uint32_t epoch = 0;
  std::string reason;
};

struct SessionRefused {
  uint32_t epoch = 0;
  absl::Status status;
};

// The head has used the features before the position.
struct FeaturesUsed {
  uint32_t epoch = 0;
  uint32_t position = 0;
};

// Empty: the report is DraftResponse::drafter_sessions.
struct LoadReport {};

struct DraftResponse {
  SessionId session = 0;
  std::variant<SessionOpened, Grow, ResyncNeeded, SessionRefused, LoadReport, FeaturesUsed> event;
  // Open sessions of the drafter, over all its verifiers; nullopt if it does not report them.
  std::optional<uint32_t> drafter_sessions = std::nullopt;
  // When the transport received it; the infinite past means the time when it was passed on.
  absl::Time received = absl::InfinitePast();
};

// Bounds on what one message may carry; more is a protocol violation.
inline constexpr uint32_t kMaxGrowNodes = 256;
inline constexpr uint32_t kMaxTreeNodes = 1024;
inline constexpr uint32_t kMaxTreeDepth = 128;
inline constexpr uint32_t kMaxDraftSupport = 128;  // Tokens of one draft distribution.
inline constexpr uint32_t kMaxFeatureLayers = 8;
inline constexpr size_t kMaxFeatureBytes = 1 << 20;
inline constexpr size_t kMaxOpenConstraintBytes = 1 << 20;  // A larger one is not heeded.

}  // namespace tandem
