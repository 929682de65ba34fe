#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/drafting/draft_source.h"
#include "common/grammar/compiled.h"
#include "common/speculation/candidate_tree.h"
#include "common/tokenizer/tokenizer.h"

namespace tandem {

// The constraint of one request, as its session needs it: where the output stands, which candidates may come
// below there, and what a row of the target's logits may be chosen from. What a round commits depends on the
// output's tokens alone (law 2).
//
//   Replay -> [ DropForbidden, WithForced ... -> (MaskAhead) -> BeginWalk -> Mask ... -> EndWalk -> Commit
//   ... ]*
//
// Not thread-safe.
class SessionConstraint {
 public:
  // `state`: before any output. Its vocabulary has `vocab_size` tokens.
  SessionConstraint(std::unique_ptr<ConstraintState> state, std::shared_ptr<const Tokenizer> tokenizer,
                    int32_t vocab_size);

  // Takes in the output that was generated elsewhere. InvalidArgument says which token is not allowed.
  absl::Status Replay(absl::Span<const TokenId> emitted);

  // Takes out of a tree, a parent before its children, the nodes that the constraint forbids, with all that
  // is below them, and returns how many. Ids stay.
  uint32_t DropForbidden(std::vector<TreeNode>* nodes);
  // A proposal without what is forbidden, and with what the constraint leaves no choice about: the bytes that
  // must come, as the tokenizer spells them after the output so far, each token at the score that a guess of
  // the target's spelling is worth.
  std::vector<ProposedNode> WithForced(absl::Span<const ProposedNode> proposal, const ProposalLimits& limits);

  // Makes the masks of all rows of the round's tree, which Mask then takes: while a device computes this
  // costs nobody any time. Without it each is made when the walk comes by, which is at fewer rows.
  void MaskAhead(absl::Span<const TreeNode> nodes);
  // Of the round's tree, until EndWalk. `nodes` stay.
  void BeginWalk(absl::Span<const TreeNode> nodes);
  // Leaves a chance, of the tokens after a node or after the root, to those that may come there.
  // `logits` [vocab_size].
  void Mask(std::optional<uint32_t> node, absl::Span<float> logits);
  void EndWalk();
  // The output goes on with `token`. False if it may not: then no token had a chance.
  bool Commit(TokenId token);

  // Candidates dropped so far.
  uint32_t num_dropped() const { return num_dropped_; }

 private:
  static constexpr int32_t kRoot = -1;
  struct Link {
    int32_t parent = kRoot;  // Index of an earlier one.
    TokenId token = 0;
  };

  // The places from the root's child down to `place`.
  std::vector<int32_t> PathTo(int32_t place) const;
  // Moves the state behind the node at `place`, to which every token above is allowed; false, leaving it
  // behind the node's parent, if this one's is not.
  bool MoveTo(int32_t place);
  // For every link whether the constraint allows it and what is above it.
  std::vector<bool> Allowed();
  void LeaveTree();
  void FillMask(int32_t place, absl::Span<uint32_t> mask);

  const std::unique_ptr<ConstraintState> state_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  TokenIds last_tokens_;  // Of the output, as many as the spelling of the next ones may depend on.
  std::vector<uint32_t> mask_;
  std::vector<std::vector<uint32_t>>
      masks_ahead_;  // Of the root and of each node; kept to reuse their memory.
  size_t num_masks_ahead_ = 0;
  std::vector<Link> links_;    // The tree we are in.
  std::vector<int32_t> path_;  // Places in it whose tokens the state has taken.
  uint32_t num_dropped_ = 0;
};

// A session's own source of drafts under a constraint: another one's guesses, if there is one, without what
// is forbidden, and what is forced. `constraint` outlives it.
class ConstrainedSource final : public DraftSource {
 public:
  ConstrainedSource(std::unique_ptr<DraftSource> source, SessionConstraint* constraint)
      : source_(std::move(source)), constraint_(constraint) {}

  void Start(absl::Span<const TokenId> tokens, uint32_t prompt_length) override {
    if (source_ != nullptr) source_->Start(tokens, prompt_length);
  }
  void Read(absl::Span<const TokenId> prompt) override {
    if (source_ != nullptr) source_->Read(prompt);
  }
  void Observe(absl::Span<const TokenId> committed) override {
    if (source_ != nullptr) source_->Observe(committed);
  }
  std::vector<ProposedNode> Propose(const ProposalLimits& limits) const override {
    return constraint_->WithForced(
        source_ != nullptr ? source_->Propose(limits) : std::vector<ProposedNode>(), limits);
  }

 private:
  const std::unique_ptr<DraftSource> source_;
  SessionConstraint* const constraint_;
};

}  // namespace tandem
