#include "verifier/session/draft_peer.h"

#include <algorithm>
#include <cassert>
#include <variant>

#include "verifier/session/drafter_record.h"

namespace tandem {
namespace {

// Rounds over which the exposed draft time is averaged; acceptance is estimated from as many.
constexpr size_t kDraftSecondsHistory = 6;
// After so many rounds that waited for nothing, rounds no longer wait until growth arrives again.
constexpr uint32_t kWaitsInVain = 2;
// For how many past commits growth still measures the draft time.
constexpr size_t kAwaitedCommits = 16;
// Rounds with its candidates after which a partner has to have added something, and how many tokens to each.
constexpr uint32_t kTrialRounds = 64;
constexpr double kLeastAdded = 0.03;

// The opening that a message belongs to; nullopt for growth, which the mirror judges, and for reports of
// load, which belong to no session.
std::optional<uint32_t> EpochOf(const DraftResponse& response) {
  if (const auto* opened = std::get_if<SessionOpened>(&response.event)) return opened->epoch;
  if (const auto* resync = std::get_if<ResyncNeeded>(&response.event)) return resync->epoch;
  if (const auto* refused = std::get_if<SessionRefused>(&response.event)) return refused->epoch;
  if (const auto* used = std::get_if<FeaturesUsed>(&response.event)) return used->epoch;
  return std::nullopt;
}

}  // namespace

DraftPeer::DraftPeer(SessionId draft_id, DrafterBinding binding, DrafterRecord* record, int32_t vocab_size,
                     absl::Time now)
    : draft_id_(draft_id),
      binding_(std::move(binding)),
      record_(record),
      bound_at_(now),
      mirror_(vocab_size),
      seconds_per_level_(kDraftSecondsHistory) {}

OpenSession DraftPeer::Open(OpenSession open) {
  assert(!lost());
  state_ = State::kOpening;
  grown_ = false;
  retry_at_.reset();
  awaited_commits_.clear();
  features_.Reset();
  budget_ = open.budget;
  open.epoch = mirror_.Open(open.commit_no, open.prefix_hash, open.sampled_drafts);
  open.draft_model = binding_.draft_model;
  return open;
}

Commit DraftPeer::AddCommit(Commit commit, absl::Time now) {
  assert(drafting());
  commit.new_root = mirror_.Commit(commit.tokens, commit.commit_no, commit.prefix_hash);
  commit.epoch = mirror_.epoch();
  budget_ = commit.budget;
  // A commit that left no tree: growth below it shows how long a draft takes from the start. The first growth
  // of an opening does not, because the drafter may have had the whole text to read before.
  if (mirror_.tree().empty() && budget_.depth > 0 && grown_) {
    awaited_commits_.emplace_back(commit.commit_no, now);
    if (awaited_commits_.size() > kAwaitedCommits) awaited_commits_.pop_front();
  }
  return commit;
}

void DraftPeer::End(State state) {
  if (lost()) return;
  state_ = state;
  budget_ = DraftBudget{};
  retry_at_.reset();
  awaited_commits_.clear();
}

DraftPeer::Outcome DraftPeer::OnResponse(const DraftResponse& response, absl::Time received) {
  if (!drafting() || EpochOf(response).value_or(mirror_.epoch()) != mirror_.epoch()) return {};
  if (const auto* grow = std::get_if<Grow>(&response.event)) return OnGrow(*grow, received);
  if (const auto* opened = std::get_if<SessionOpened>(&response.event)) {
    state_ = State::kAnswered;
    mirror_.OnOpened(opened->predicts_acceptance);
    return {.event = Event::kOpened,
            .needs = opened->features.has_value() ? &opened->features.value() : nullptr};
  }
  if (std::holds_alternative<ResyncNeeded>(response.event)) return OnResync({});
  if (const auto* refused = std::get_if<SessionRefused>(&response.event)) {
    End(absl::IsResourceExhausted(refused->status) ? State::kIdle : State::kLost);
    return {.event = Event::kRefused, .refusal = refused->status};
  }
  if (const auto* used = std::get_if<FeaturesUsed>(&response.event); used != nullptr && features_.started()) {
    features_.OnUsed(used->position);
    return {.event = Event::kUsed};
  }
  return {};
}

DraftPeer::Outcome DraftPeer::OnGrow(const Grow& grow, absl::Time received) {
  DraftMirror::GrowReport report = mirror_.OnGrow(grow);
  Outcome outcome{.added = report.added, .stale = report.stale};
  switch (report.result) {
    case DraftMirror::GrowResult::kAccepted:
    case DraftMirror::GrowResult::kStale:
      if (grow.epoch == mirror_.epoch()) ObserveTimes(grow, received);
      break;
    case DraftMirror::GrowResult::kDuplicate:
      break;
    case DraftMirror::GrowResult::kResyncNeeded:
      return OnResync(std::move(outcome));
    case DraftMirror::GrowResult::kInvalid:
      outcome.event = Event::kViolation;
      outcome.violation = std::move(report.violation);
      return outcome;
  }
  if (report.added > 0) {
    state_ = State::kAnswered;
    grown_ = true;
    resyncs_in_a_row_ = 0;
    waits_in_vain_ = 0;
    retry_delay_ = absl::ZeroDuration();
  }
  return outcome;
}

DraftPeer::Outcome DraftPeer::OnResync(Outcome outcome) {
  outcome.event = ++resyncs_in_a_row_ > kMaxResyncs ? Event::kResyncLimit : Event::kResync;
  return outcome;
}

void DraftPeer::ObserveTimes(const Grow& grow, absl::Time received) {
  // Until a round has measured the wait, the drafter's own figure counts; it may be anything.
  if (seconds_per_level_.empty() && grow.step_seconds > 0.0f && grow.step_seconds < 1.0f) {
    seconds_per_level_.Add(grow.step_seconds);
  }
  record_->times.ObserveLevel(grow.step_seconds);
  while (!awaited_commits_.empty() && awaited_commits_.front().first <= grow.seen_commit) {
    if (awaited_commits_.front().first == grow.seen_commit) {
      record_->times.ObserveFirstGrowth(absl::ToDoubleSeconds(received - awaited_commits_.front().second));
    }
    awaited_commits_.pop_front();
  }
}

void DraftPeer::Postpone(absl::Time now, absl::Duration first, absl::Duration longest) {
  retry_delay_ = retry_delay_ == absl::ZeroDuration() ? first : std::min(2 * retry_delay_, longest);
  retry_at_ = now + retry_delay_;
}

bool DraftPeer::LacksDrafts() const {
  return answered() && budget_.depth > 0 && mirror_.tree().empty() && !mirror_.exhausted() &&
         waits_in_vain_ < kWaitsInVain;
}

bool DraftPeer::HasAwaited(uint32_t depth, double stop_below) const {
  // Of an EAGLE-2 tree only the last nodes say which are the best.
  if (mirror_.exhausted() || budget_.shape == TreeShape::kEagle2) return mirror_.exhausted();
  if (stop_below > 0.0 && mirror_.StopDepth(stop_below).has_value()) return true;
  return mirror_.tree().size() >= budget_.nodes || mirror_.depth() >= depth;
}

void DraftPeer::ObserveRound(const RoundOutcome& outcome) {
  acceptance_.Observe(outcome);
  record_->acceptance.Observe(outcome);
}

void DraftPeer::ObserveWait(double seconds, uint32_t depth) {
  seconds_per_level_.Add(seconds / std::max<uint32_t>(depth, 1));
}

double DraftPeer::ExpectedAccepted(uint32_t depth) const {
  return acceptance_.ExpectedAccepted(depth, &record_->acceptance);
}

double DraftPeer::FirstLevelAcceptance() const {
  return acceptance_.Levels(&record_->acceptance)[0];
}

void DraftPeer::ObserveAdded(uint32_t added) {
  // What it did long ago says less than what it does now.
  if (rounds_added_ >= 2 * kTrialRounds) {
    rounds_added_ /= 2;
    tokens_added_ /= 2.0;
  }
  ++rounds_added_;
  tokens_added_ += added;
}

bool DraftPeer::adds() const {
  return rounds_added_ < kTrialRounds || tokens_added_ >= kLeastAdded * rounds_added_;
}

}  // namespace tandem
