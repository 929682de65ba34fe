#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "common/base/node_index.h"
#include "common/base/token.h"
#include "common/speculation/draft_messages.h"

namespace tandem {

// The origins of a session's guesses: its drafter, its partner, its constraint (forced tokens), the request's
// prediction, and the verifier's own source. Earlier ones have priority: a token that several guessed is
// credited to the first, so that each other one is credited with what it adds.
enum class DraftOrigin : uint8_t { kDrafter, kPartner, kGrammar, kPrediction, kLocal };
inline constexpr size_t kNumDraftOrigins = 5;

// A candidate's scores by DraftOrigin; 0 from origins that did not guess it.
struct Guesses {
  std::array<float, kNumDraftOrigins> scores = {};

  static Guesses Of(DraftOrigin origin, float score) {
    Guesses guesses;
    guesses.scores[static_cast<size_t>(origin)] = score;
    return guesses;
  }
  float by(DraftOrigin origin) const { return scores[static_cast<size_t>(origin)]; }
  bool IsBy(DraftOrigin origin) const { return by(origin) > 0.0f; }
  // The origin that is credited with the candidate. At least one must have guessed it.
  DraftOrigin credited() const;
};

// A candidate of a round.
struct RoundNode {
  uint32_t parent = kRootNode;  // The index of its parent, which comes before it.
  TokenId token = 0;
  uint32_t depth = 1;       // 1 for children of the root.
  float score = 0.0f;       // The credited origin's probability that it is right, given that its parent is.
  float path_score = 0.0f;  // The calibrated probability of the path from the root to it.
  Guesses guesses;
  NodeId id = 0;  // The drafter's, in a tree of one drafter; 0 otherwise.
};

// The candidates for one round, below the last committed token: of one origin, or merged. Nodes are known by
// their index, and a parent comes before its children, so that selection, rows, masks, choices, the walk and
// the accounts take the same index.
class RoundTree {
 public:
  uint32_t size() const { return static_cast<uint32_t>(nodes_.size()); }
  bool empty() const { return nodes_.empty(); }
  const RoundNode& operator[](size_t index) const { return nodes_[index]; }
  absl::Span<const RoundNode> nodes() const { return nodes_; }
  auto begin() const { return nodes_.begin(); }
  auto end() const { return nodes_.end(); }

  void Reserve(size_t num_nodes) { nodes_.reserve(num_nodes); }
  // Its parent must be there.
  void Add(const RoundNode& node);
  // Keeps the first `num_nodes`.
  void Truncate(size_t num_nodes) { nodes_.resize(num_nodes); }
  // Keeps the nodes at `indices`: increasing, and with every node its parent.
  void Keep(absl::Span<const uint32_t> indices);
  // Keeps the nodes that are wanted and whose parents are kept; returns how many it removes. `is_wanted` gets
  // a node's old index and the node as it would be kept, which it may change: nodes() begins with those that
  // are kept so far, its parent among them.
  uint32_t KeepIf(absl::FunctionRef<bool(uint32_t index, RoundNode& node)> is_wanted);

 private:
  std::vector<RoundNode> nodes_;
};

// The child of `parent`, which may be kRootNode, with the token.
std::optional<uint32_t> FindChild(absl::Span<const RoundNode> nodes, uint32_t parent, TokenId token);
// The tokens from the root's child down to node `index`; none for kRootNode.
void CollectPath(absl::Span<const RoundNode> nodes, uint32_t index, TokenIds* path);

}  // namespace tandem
