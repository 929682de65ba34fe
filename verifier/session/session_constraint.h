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
#include "common/base/node_index.h"
#include "common/base/token.h"
#include "common/drafting/best_first.h"
#include "common/drafting/draft_source.h"
#include "common/grammar/compiled.h"
#include "common/grammar/constraint_cursor.h"
#include "common/speculation/round_tree.h"
#include "common/tokenizer/tokenizer.h"
#include "verifier/session/forced_spellings.h"

namespace tandem {

// A candidate that a constraint does not allow. It is in no tree, so the tokens above it say where it would
// be.
struct ForbiddenNode {
  TokenIds above;  // From the root's child down to its parent.
  RoundNode node;
};

// The cost of the masks of one round's rows.
struct MaskWork {
  absl::Duration time;  // To make them, and to apply them.
  uint32_t masks = 0;   // That were made.
  // From the first mask to the last. If the walk makes them, this includes the choices between them.
  absl::Time start;
  absl::Time end;
};

// The constraint of one request: follows the output, drops forbidden candidates from trees, and masks the
// target's logits. The tokens that a round commits depend only on the output's tokens (law 2).
//
//   Replay -> [ DropForbidden, Forced ... -> (MaskAhead) -> BeginWalk -> Mask ... -> EndWalk -> Commit ... ]*
//
// Not thread-safe.
class SessionConstraint {
 public:
  // `state`: before any output. Its vocabulary has `vocab_size` tokens.
  SessionConstraint(std::unique_ptr<ConstraintState> state, std::shared_ptr<const Tokenizer> tokenizer,
                    int32_t vocab_size);

  // Where the output may end, gives the end-of-text token `end` the probabilities of all tokens that the
  // constraint does not allow there (StructuralTags.only_tags).
  void EndWhereOthersWould(TokenId end) { end_ = end; }
  // Whether Mask moves probabilities, which needs the logits.
  bool moves_probabilities() const { return end_.has_value(); }

  // Advances over output that was generated elsewhere. InvalidArgument names the token that is not allowed.
  absl::Status Replay(absl::Span<const TokenId> emitted);

  // Measures the time of masks by this clock, which outlives the constraint. Without a clock it counts as
  // zero.
  void TimeBy(const Clock* clock) { clock_ = clock; }
  // Spells forced bytes as the target did before under constraints with this salt, and records how it spells
  // them now. `spellings` outlive the constraint.
  void SpellBy(ForcedSpellings* spellings, uint64_t salt) {
    spellings_ = spellings;
    salt_ = salt;
  }

  // Removes from a tree the nodes that the constraint forbids and all nodes below them, and the last ones if
  // they or their masks would take too many steps. Returns how many. `forbidden`, unless null, gets the
  // forbidden ones whose parent is the root or an allowed node.
  uint32_t DropForbidden(RoundTree* tree, std::vector<ForbiddenNode>* forbidden = nullptr);
  // The forced tokens: the bytes that must come, spelled as the target spelled them before or, if they never
  // came, as the tokenizer does after the output so far. Each token has as score the probability that the
  // target spells the bytes so.
  std::vector<ProposedNode> Forced(const ProposalLimits& limits);

  // Makes the masks of the rows of the round's tree, for Mask to use: of the root and of the first nodes, all
  // unless that takes too many steps. Returns for how many rows. This is free while a device computes.
  // Without it, each mask is made when the walk reaches its row, which needs fewer masks.
  size_t MaskAhead(absl::Span<const RoundNode> nodes);
  // These masks until EndWalk; empty without MaskAhead.
  absl::Span<const std::vector<uint32_t>> masks_ahead() const {
    return absl::MakeConstSpan(masks_ahead_).first(num_masks_ahead_);
  }
  // Starts the walk over the round's tree. `nodes` must exist until EndWalk.
  void BeginWalk(absl::Span<const RoundNode> nodes) { walked_ = nodes; }
  // Masks the logits after a node, or after kRootNode, to the tokens allowed there. Again it changes nothing.
  // `logits`: [vocab_size].
  void Mask(uint32_t node, absl::Span<float> logits);
  void EndWalk();
  // Appends `token` to the output. False if it is forbidden; then no token was allowed.
  bool Commit(TokenId token);
  // Whether that was because the output has too many readings to be followed.
  bool gave_up() const { return cursor_.gave_up(); }

  // Candidates dropped so far.
  uint32_t num_dropped() const { return num_dropped_; }
  // For how many rows of a round masks may be made, by what they cost lately. Drafts that were drawn cannot
  // be dropped one by one: they are cut at a depth that no draw decides.
  uint32_t most_masks() const;
  // Steps (ConstraintState) that the last round took, which say what the next one may take.
  uint64_t round_steps() const { return round_steps_; }
  // The cost of masks since the last call.
  MaskWork TakeMaskWork() { return std::exchange(mask_work_, {}); }

 private:
  // The progress of a spelling of forced bytes.
  struct Spelled {
    size_t bytes = 0;
    TokenIds path;
    TokenIds rest;  // The tokenizer's spelling of the rest, if known.
  };
  // The tokens that may come next in `forced`, as far as the constraint allows them.
  std::vector<GrowthBranch<Spelled>> NextForced(absl::string_view forced, const Spelled& spelled);
  void LearnSpelling(TokenId token);

  absl::Time Now() const { return clock_ == nullptr ? absl::UnixEpoch() : clock_->Now(); }
  // The mask after one of `nodes` or after kRootNode.
  void FillMask(absl::Span<const RoundNode> nodes, uint32_t node, absl::Span<uint32_t> mask);
  bool HasStepsLeft(uint64_t start) const;
  // Masks were made, since `start`.
  void CountMasks(uint32_t masks, absl::Time start);

  ConstraintCursor cursor_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  TokenIds last_tokens_;  // Of the output, as many as the spelling of the next ones may depend on.
  ForcedSpellings* spellings_ = nullptr;
  uint64_t salt_ = 0;
  std::string forced_;          // Bytes that must come now, as far as it is known.
  std::optional<TokenId> end_;  // Of EndWhereOthersWould.
  std::vector<uint32_t> mask_;
  std::vector<std::vector<uint32_t>>
      masks_ahead_;  // Of the root and of each node; kept to reuse their memory.
  size_t num_masks_ahead_ = 0;
  absl::Span<const RoundNode> walked_;  // From BeginWalk to EndWalk.
  uint32_t num_dropped_ = 0;
  const Clock* clock_ = nullptr;
  MaskWork mask_work_;
  uint64_t mask_steps_ = 0;   // That a mask took lately.
  uint64_t round_start_ = 0;  // Steps at the start of this round.
  uint64_t round_steps_ = 0;
};

}  // namespace tandem
