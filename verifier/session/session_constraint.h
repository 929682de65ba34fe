#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/token.h"
#include "common/drafting/best_first.h"
#include "common/drafting/draft_source.h"
#include "common/grammar/compiled.h"
#include "common/grammar/constraint_cursor.h"
#include "common/speculation/candidate_tree.h"
#include "common/tokenizer/tokenizer.h"
#include "verifier/session/forced_spellings.h"

namespace tandem {

// A candidate that a constraint does not allow.
struct ForbiddenNode {
  TokenIds path;  // From the root's child down, its own token last.
  float score = 0.0f;
};

// What the masks of one round's rows took.
struct MaskWork {
  absl::Duration time;  // To make them, and to apply them.
  uint32_t masks = 0;   // That were made.
  // From the first to the last that was made: where the walk makes them, choices lie in between.
  absl::Time start;
  absl::Time end;
};

// The constraint of one request, as its session needs it: where the output stands, which candidates may come
// below there, and what a row of the target's logits may be chosen from. What a round commits depends on the
// output's tokens alone (law 2).
//
//   Replay -> [ DropForbidden, Forced ... -> (MaskAhead) -> BeginWalk -> Mask ... -> EndWalk -> Commit ... ]*
//
// Not thread-safe.
class SessionConstraint {
 public:
  // `state`: before any output. Its vocabulary has `vocab_size` tokens.
  SessionConstraint(std::unique_ptr<ConstraintState> state, std::shared_ptr<const Tokenizer> tokenizer,
                    int32_t vocab_size);

  // Takes in the output that was generated elsewhere. InvalidArgument says which token is not allowed.
  absl::Status Replay(absl::Span<const TokenId> emitted);

  // Times masks by this clock, which outlives the constraint; without one they count as no time.
  void TimeBy(const Clock* clock) { clock_ = clock; }
  // Spells what is forced as the target has done before, for constraints with this salt, and takes down how
  // it does. `spellings` outlive the constraint.
  void SpellBy(ForcedSpellings* spellings, uint64_t salt) {
    spellings_ = spellings;
    salt_ = salt;
  }

  // Takes out of a tree, a parent before its children, the nodes that the constraint forbids, with all that
  // is below them, and returns how many. Ids stay. `forbidden`, unless null, gets those of them below the
  // root or below what is allowed.
  uint32_t DropForbidden(std::vector<TreeNode>* nodes, std::vector<ForbiddenNode>* forbidden = nullptr);
  // The same of a proposal.
  uint32_t DropForbidden(std::vector<ProposedNode>* nodes);
  // What the constraint leaves no choice about: the bytes that must come, as the target spelled them before
  // or, where they never came, as the tokenizer does after the output so far, each token at the score that a
  // guess of the target's spelling is worth.
  std::vector<ProposedNode> Forced(const ProposalLimits& limits);

  // Makes the masks of all rows of the round's tree, which Mask then takes: while a device computes this
  // costs nobody any time. Without it each is made when the walk comes by, which is at fewer rows.
  void MaskAhead(absl::Span<const TreeNode> nodes);
  // These masks, of the root and of each node, until EndWalk; none without MaskAhead.
  absl::Span<const std::vector<uint32_t>> masks_ahead() const {
    return absl::MakeConstSpan(masks_ahead_).first(num_masks_ahead_);
  }
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
  // What the masks of rows have taken since it was asked last.
  MaskWork TakeMaskWork() { return std::exchange(mask_work_, {}); }

 private:
  static constexpr int32_t kRoot = -1;
  struct Link {
    int32_t parent = kRoot;  // Index of an earlier one.
    TokenId token = 0;
  };

  // How far a spelling of forced bytes has come.
  struct Spelled {
    size_t bytes = 0;
    TokenIds path;
    TokenIds rest;  // The tokenizer's spelling of what is left, if it is known.
  };
  // What may come next of `forced`, as the constraint allows it.
  std::vector<GrowthBranch<Spelled>> NextForced(absl::string_view forced, const Spelled& spelled);
  void LearnSpelling(TokenId token);

  // The tokens from the root's child down to `place`.
  TokenIds PathTo(int32_t place) const;
  // For every link whether the constraint allows it and what is above it.
  std::vector<bool> Allowed();
  void SetLinks(absl::Span<const TreeNode> nodes);
  absl::Time Now() const { return clock_ == nullptr ? absl::UnixEpoch() : clock_->Now(); }
  void FillMask(int32_t place, absl::Span<uint32_t> mask);
  // Masks were made, since `start`.
  void CountMasks(uint32_t masks, absl::Time start);

  ConstraintCursor cursor_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  TokenIds last_tokens_;  // Of the output, as many as the spelling of the next ones may depend on.
  ForcedSpellings* spellings_ = nullptr;
  uint64_t salt_ = 0;
  std::string forced_;  // Bytes that must come now, as far as it is known.
  std::vector<uint32_t> mask_;
  std::vector<std::vector<uint32_t>>
      masks_ahead_;  // Of the root and of each node; kept to reuse their memory.
  size_t num_masks_ahead_ = 0;
  std::vector<Link> links_;  // The tree we are in.
  uint32_t num_dropped_ = 0;
  const Clock* clock_ = nullptr;
  MaskWork mask_work_;
};

}  // namespace tandem
