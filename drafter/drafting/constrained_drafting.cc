// How a DraftSession drafts under a request's constraint.

#include <memory>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "common/grammar/token_mask.h"
#include "drafter/drafting/draft_session.h"

namespace tandem {
namespace {

// Steps of one call, and of those for the output so far. What takes more holds up drafts for others; drafting
// without the constraint only costs rejected ones.
constexpr uint64_t kMostSteps = 100'000;
constexpr uint64_t kMostReplaySteps = 2'000'000;

}  // namespace

void DraftSession::AwaitConstraint(const OpenSession& open) {
  constraint_.reset();
  level_logits_.clear();
  output_.clear();
  awaits_constraint_ = open.constraint != nullptr;
  if (awaits_constraint_) output_.assign(open.tokens.begin() + open.prompt_length, open.tokens.end());
}

void DraftSession::Constrain(std::unique_ptr<ConstraintState> state, const Clock* clock) {
  if (!std::exchange(awaits_constraint_, false)) return;
  const TokenIds output = std::exchange(output_, {});
  auto constraint = std::make_unique<ConstraintCursor>(std::move(state));
  for (const TokenId token : output) {
    if (!constraint->Commit(token) || constraint->steps() > kMostReplaySteps) return;
  }
  constraint_ = std::move(constraint);
  constraint_steps_ = constraint_->steps();
  mask_clock_ = clock;
  ++counters_->constrained_sessions;
  // A child that has been drawn stays one, whatever it is: the verifier's rule counts on it.
  if (sampled_) return;
  for (std::vector<Candidate>* list : {&candidates_, &held_back_}) {
    counters_->forbidden_candidates += std::erase_if(
        *list, [this](const Candidate& candidate) { return !MayCome(candidate.parent, candidate.token); });
  }
  RescoreCandidates();
}

void DraftSession::FollowConstraint(absl::Span<const TokenId> committed) {
  if (awaits_constraint_) output_.insert(output_.end(), committed.begin(), committed.end());
  if (constraint_ == nullptr) return;
  for (const TokenId token : committed) {
    if (constraint_->Commit(token)) continue;
    // The verifier has another one; it drops what that forbids.
    constraint_.reset();
    return;
  }
}

// Looks at what has been done since it was called last.
void DraftSession::LeaveExpensiveConstraint() {
  if (constraint_ == nullptr) return;
  const uint64_t before = std::exchange(constraint_steps_, constraint_->steps());
  if (constraint_steps_ - before > kMostSteps) constraint_.reset();
}

// False if a token on the path to `parent` may not come, or there is nothing below.
bool DraftSession::MoveBelow(NodeId parent) {
  TokenIds path;
  for (const NodeId id : tree_.Path(parent)) path.push_back(tree_.Find(id)->token);
  return constraint_->MoveTo(path);
}

bool DraftSession::MayCome(NodeId parent, TokenId token) {
  LeaveExpensiveConstraint();
  if (constraint_ == nullptr) return true;
  TokenIds path;
  for (const NodeId id : tree_.Path(parent)) path.push_back(tree_.Find(id)->token);
  path.push_back(token);
  return constraint_->MoveTo(path);
}

// Masks the tokens below `parent` to the allowed ones. False if none is allowed: after the end of the output,
// and below forbidden nodes.
bool DraftSession::MaskBelow(NodeId parent, absl::Span<float> logits) {
  LeaveExpensiveConstraint();
  if (constraint_ == nullptr) return true;
  const absl::Time start = mask_clock_->Now();
  ++counters_->masked_rows;
  bool any = MoveBelow(parent);
  if (any) {
    const auto vocab_size = static_cast<int32_t>(logits.size());
    mask_.resize(MaskWords(vocab_size));
    constraint_->FillMask(absl::MakeSpan(mask_));
    any = CountAllowed(mask_, vocab_size, 1) > 0;
    if (any) ApplyMask(mask_, logits);
  }
  counters_->mask_seconds += absl::ToDoubleSeconds(mask_clock_->Now() - start);
  return any;
}

}  // namespace tandem
