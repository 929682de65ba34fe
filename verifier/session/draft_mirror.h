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
#include "common/speculation/rules/verification_rule.h"

namespace tandem {

// The verifier's half of one session's mirrored tree (DESIGN section 3): takes growth from the drafter,
// chooses what to verify, prunes to the new root on commit, and fences messages that crossed a commit or
// belong to an earlier opening. Nothing a drafter sends is trusted; the worst it can do here is to have its
// growth dropped.
//
//   Open() ---> growing --- Commit() ---> growing below the new root (a hit) or below a fresh root
//     ^                                       |
//     '------------- resync ------------------'
//
// Plain state, no I/O.
class DraftMirror {
 public:
  // `vocab_size`: the logits width that token ids are checked against.
  explicit DraftMirror(int32_t vocab_size) : vocab_size_(vocab_size) {}

  // Starts a new epoch at commit `commit_no`, whose committed tokens have `prefix_hash`. Returns the epoch.
  // With `sampled`, every child must come from a draft distribution that has been sent; without, there is
  // none.
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
  // The drafter has opened the session, and says whether it predicts acceptance.
  void OnOpened(bool predicts_acceptance) { predicts_ = predicts_acceptance; }

  // What a node's score is worth: the probability that it is right if its parent is, at most 1.
  using Worth = absl::FunctionRef<double(const TreeNode&)>;

  // The nodes to verify: the best by path score, at most `max_nodes`, not deeper than `max_depth` and the
  // best `max_children` of each node, parents before children. With every node its parent is selected too.
  // Path scores are the products of what the nodes are worth; without `worth`, of their scores.
  struct Selection {
    uint32_t max_nodes = UINT32_MAX;
    uint32_t max_depth = UINT32_MAX;
    uint32_t max_children = UINT32_MAX;
  };
  std::vector<TreeNode> Select(const Selection& limits, Worth worth) const;
  std::vector<TreeNode> Select(uint32_t max_nodes, uint32_t max_depth) const;
  // Levels of the tree.
  uint32_t depth() const;
  // The first level that is reached with a probability below `least`, on the path that is most likely to be
  // accepted that far, as the drafter predicts; of a drafter that predicts nothing, as its scores say. None
  // if there is no such level, or not yet.
  std::optional<uint32_t> StopDepth(double least) const;
  // How the children of the root and of `selected` were drawn, as far as any is among `selected`, whose ids
  // increase. None when drafts are not sampled.
  std::vector<DrawGroup> DrawsOf(absl::Span<const TreeNode> selected) const;

  // The round's outcome: the tokens it committed, the last of them the target's own. If they are a path of
  // the tree, whether or not its nodes were the ones verified, the node at its end becomes the root; else the
  // root is fresh.
  std::optional<NodeId> Commit(absl::Span<const TokenId> tokens, uint32_t commit_no, uint64_t prefix_hash);

  const CandidateTree& tree() const { return tree_; }
  uint32_t epoch() const { return epoch_; }
  // The drafter has said that it sends nothing more until the next commit.
  bool exhausted() const { return exhausted_; }

 private:
  struct KnownCommit {
    uint32_t commit_no = 0;
    uint64_t prefix_hash = 0;
  };

  // Why the message is not well-formed, whatever the state; empty if it is.
  std::string FindViolation(const Grow& grow) const;
  std::string FindDistributionViolation(const Grow& grow) const;
  // What to do with one node: add it, drop it as stale, or blame the drafter.
  enum class NodeFate { kAdd, kStale, kInvalid };
  NodeFate Judge(NodeId parent, TokenId token, bool current_commit) const;
  NodeId Canonical(NodeId parent) const { return parent == tree_.root_id() ? 0 : parent; }
  // The distribution of a parent, which it may have got just now, in `grow`.
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
