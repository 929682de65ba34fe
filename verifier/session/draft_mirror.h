#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/speculation/candidate_tree.h"
#include "common/speculation/draft_messages.h"
#include "common/speculation/round_tree.h"
#include "common/speculation/rules/verification_rule.h"

namespace tandem {

// The verifier's copy of one session's tree (DESIGN section 3): takes growth from the drafter, selects nodes
// to verify, prunes to the new root on commit, and fences off messages that crossed a commit or belong to an
// earlier opening. Every message is checked: the worst that a faulty drafter can cause here is that its
// growth is dropped.
//
//   Open() ---> growing --- Commit() ---> growing below the new root (a hit) or below a fresh root
//     ^                                       |
//     '------------- resync ------------------'
//
// Plain state, no I/O.
class DraftMirror {
 public:
  // `vocab_size`: the width of the logits, the bound of token ids.
  explicit DraftMirror(int32_t vocab_size) : vocab_size_(vocab_size) {}

  // Starts a new epoch at commit `commit_no`, whose committed tokens have `prefix_hash`. Returns the epoch.
  // With `sampled`, every child must be drawn from a draft distribution that the drafter has sent; without,
  // there are no distributions.
  uint32_t Open(uint32_t commit_no, uint64_t prefix_hash, bool sampled = false);

  enum class GrowResult {
    kAccepted,      // At least one node was added, or every node was stale or known.
    kStale,         // The whole message belongs to another epoch or a forgotten commit.
    kDuplicate,     // Seen before.
    kResyncNeeded,  // The drafter's prefix is not ours: open again.
    kInvalid,       // Breaks the protocol; `violation` says how. Nothing was added.
  };
  struct GrowReport {
    GrowResult result = GrowResult::kAccepted;
    uint32_t added = 0;
    uint32_t stale = 0;     // Nodes dropped because their parent was pruned.
    std::string violation;  // For kInvalid and kResyncNeeded.
  };
  GrowReport OnGrow(const Grow& grow);
  // The drafter has opened the session. `predicts_acceptance`: whether it sends predictions.
  void OnOpened(bool predicts_acceptance) { predicts_ = predicts_acceptance; }

  // The worth of a node: the probability, at most 1, that it is right if its parent is.
  using Worth = absl::FunctionRef<double(const TreeNode&)>;

  // Selects the nodes to verify: the best by path score, at most `max_nodes`, not deeper than `max_depth`,
  // and at most the best `max_children` of each node. The parent of a selected node is selected. A path score
  // is the product of the nodes' worth. `origin`: the drafter's role.
  struct Selection {
    uint32_t max_nodes = UINT32_MAX;
    uint32_t max_depth = UINT32_MAX;
    uint32_t max_children = UINT32_MAX;
  };
  RoundTree Select(const Selection& limits, DraftOrigin origin, Worth worth) const;
  // The number of levels of the tree.
  uint32_t depth() const;
  // The first level whose probability of acceptance, on the most likely path, is below `least`, by the
  // drafter's predictions or, if it sends none, by its scores. nullopt if there is no such level yet.
  std::optional<uint32_t> StopDepth(double least) const;
  // The draws of the children of the root and of `selected` nodes, where at least one child is selected.
  // `selected`: of a tree by Select. Empty if drafts are not sampled.
  std::vector<DrawGroup> DrawsOf(absl::Span<const RoundNode> selected) const;

  // Applies the round's outcome: the committed tokens, of which the last is the target's own. If they are a
  // path of the tree, even of nodes that were not verified, the node at its end becomes the root. Otherwise
  // the root is fresh, without children.
  std::optional<NodeId> Commit(absl::Span<const TokenId> tokens, uint32_t commit_no, uint64_t prefix_hash);

  const CandidateTree& tree() const { return tree_; }
  uint32_t epoch() const { return epoch_; }
  // Whether the drafter has said that it sends nothing more before the next commit.
  bool exhausted() const { return exhausted_; }

 private:
  struct KnownCommit {
    uint32_t commit_no = 0;
    uint64_t prefix_hash = 0;
  };

  // Why the message is malformed, independent of the state; empty if it is well-formed.
  std::string FindViolation(const Grow& grow) const;
  std::string FindDistributionViolation(const Grow& grow) const;
  // What to do with a node: add it, drop it as stale, or report a protocol violation.
  enum class NodeFate { kAdd, kStale, kInvalid };
  NodeFate Judge(NodeId parent, TokenId token, bool current_commit) const;
  NodeId Canonical(NodeId parent) const { return parent == tree_.root_id() ? 0 : parent; }
  // The draft distribution of a parent, which may be in `grow` itself.
  const DraftDistribution* TakeDistribution(const Grow& grow, NodeId parent, std::vector<NodeId>* added);
  // Why a child may not be added; empty if it may.
  std::string JudgeDraw(const Grow& grow, uint32_t index, std::vector<NodeId>* added);
  void PruneDistributions(NodeId new_root);

  int32_t vocab_size_;
  CandidateTree tree_;
  uint32_t epoch_ = 0;
  NodeId next_id_ = 1;  // The lowest id that this epoch has not used.
  bool exhausted_ = false;
  std::deque<KnownCommit> commits_;  // The most recent ones; the last is current.
  bool sampled_ = false;
  absl::flat_hash_map<NodeId, std::shared_ptr<const DraftDistribution>> distributions_;  // 0: of the root.
  bool predicts_ = false;
  absl::flat_hash_map<NodeId, float> predictions_;  // Of nodes of the tree.
};

}  // namespace tandem
