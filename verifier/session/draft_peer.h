#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/speculation/acceptance_estimate.h"
#include "common/speculation/draft_messages.h"
#include "common/speculation/level_acceptance.h"
#include "verifier/session/draft_mirror.h"
#include "verifier/session/feature_stream.h"
#include "verifier/session/session_types.h"

namespace tandem {

struct DrafterRecord;

// What a drafter is to a session. A session has at most one drafter in each role.
enum class DraftRole {
  kDrafter,  // Drafts for the session; rounds may wait for it.
  kStandby,  // Drafts beside the drafter until it takes the drafter's place.
  kPartner,  // Drafts beside the drafter for good; their trees are merged.
};
inline constexpr size_t kNumDraftRoles = 3;
// The drafter comes first, because rounds wait for it.
inline constexpr std::array<DraftRole, kNumDraftRoles> kDraftRoles = {
    DraftRole::kDrafter, DraftRole::kStandby, DraftRole::kPartner};

// A session's conversation with one drafter (docs/reference/protocol.md): the mirror of the drafter's tree,
// what the drafter was sent last, what it has been worth, and when to try it again. The role is not part of
// it: a peer that changes its role keeps everything.
//
//   kIdle -----Open----> kOpening ---Opened, or growth---> kAnswered
//   kSuspended              ^                                 |
//     ^                     '---------- Open: a resync -------'
//     |
//     '--- Close, Suspend, or the drafter refuses ---   from both; Lose, from any, leads to kLost for good
//
// Open and AddCommit return the message to send. After Close, Suspend and Lose, the caller sends a
// CloseSession if the drafter still holds the session. OnResponse takes a message of the drafter. No message
// is an error: one that breaks the protocol changes nothing (law 3), and one of an earlier opening, or that
// comes while nothing is open, is dropped.
//
// Plain state, no I/O (law 4); belongs to one session, and to the thread that drives it.
class DraftPeer {
 public:
  // Resyncs in a row, without growth in between, after which the drafter is given up. Each costs a message
  // with the whole text, so a drafter that never gets any further must not be fed for ever.
  static constexpr uint32_t kMaxResyncs = 4;

  enum class State {
    kIdle,       // Not open: not yet, or no longer until it is tried again.
    kSuspended,  // Not open for as long as there is nothing to draft.
    kLost,       // Not open, and never again.
    kOpening,    // Open was sent.
    kAnswered,   // The drafter has answered it.
  };

  // `draft_id`: the session's id at this drafter. `record`: what is known of the drafter; outlives this.
  // `now`: when the session was bound to the drafter.
  DraftPeer(SessionId draft_id, DrafterBinding binding, DrafterRecord* record, int32_t vocab_size,
            absl::Time now);

  SessionId draft_id() const { return draft_id_; }
  const DrafterBinding& binding() const { return binding_; }
  LinkId link() const { return binding_.link; }
  DrafterRecord* record() const { return record_; }
  absl::Time bound_at() const { return bound_at_; }

  State state() const { return state_; }
  // Whether the session is open at the drafter, answered or not.
  bool drafting() const { return state_ == State::kOpening || state_ == State::kAnswered; }
  bool answered() const { return state_ == State::kAnswered; }
  bool suspended() const { return state_ == State::kSuspended; }
  bool lost() const { return state_ == State::kLost; }
  // Whether candidates that were not stale have come since the session was opened.
  bool grown() const { return grown_; }
  // Whether the drafter could take over: it has drafted, or has answered that there is nothing to draft.
  bool ready() const { return grown_ || (answered() && (budget_.depth == 0 || mirror_.exhausted())); }

  const DraftMirror& mirror() const { return mirror_; }
  FeatureStream& features() { return features_; }
  const FeatureStream& features() const { return features_; }
  // The budget that was sent last; none while the session is not open.
  const DraftBudget& budget() const { return budget_; }

  // Completes `open`, which says all about the text, and opens the session with it, or opens it again.
  OpenSession Open(OpenSession open);
  // Likewise for a commit. Only while drafting.
  Commit AddCommit(Commit commit, absl::Time now);
  void Close() { End(State::kIdle); }
  void Suspend() { End(State::kSuspended); }
  void Lose() { End(State::kLost); }

  enum class Event {
    kNone,         // There is nothing to do.
    kOpened,       // The drafter has answered; a head says which states it `needs`.
    kResync,       // The drafter has lost its way: Open again.
    kResyncLimit,  // It has done so too often: give it up.
    kRefused,      // The drafter holds the session no longer, for the reason in `refusal`.
    kUsed,         // The drafter has room for more features.
    kViolation,    // The message breaks the protocol; `violation` says how.
  };
  struct Outcome {
    Event event = Event::kNone;
    uint32_t added = 0;                   // Nodes that the mirror has taken in,
    uint32_t stale = 0;                   // and those that came too late.
    const FeatureNeeds* needs = nullptr;  // Part of the message.
    absl::Status refusal;
    std::string violation;
  };
  // `received`: when the message arrived. A refusal makes the peer idle if the drafter only lacks room, which
  // may come, and lost otherwise, because no other reason passes while the session lives.
  Outcome OnResponse(const DraftResponse& response, absl::Time received);

  // When to open the session again by itself; nullopt while it is open, or if something else must happen
  // first.
  std::optional<absl::Time> retry_at() const { return retry_at_; }
  void RetryAt(absl::Time at) { retry_at_ = at; }
  // Retries after `first`; each time without growth in between, the pause doubles, up to `longest`.
  void Postpone(absl::Time now, absl::Duration first, absl::Duration longest);

  // Whether there is no candidate, but the drafter may send some soon.
  bool LacksDrafts() const;
  // Whether the tree has `depth` levels or all nodes of the budget, or will not get any more. `stop_below`:
  // of the window policy.
  bool HasAwaited(uint32_t depth, double stop_below) const;
  // A round has waited for candidates and got none. After a few of them in a row, none are expected until
  // growth comes.
  void CountVainWait() { ++waits_in_vain_; }

  // What its candidates have been worth. `outcome`: of a round of the session, as far as this drafter's
  // candidates are concerned.
  void ObserveRound(const RoundOutcome& outcome);
  // How long a round with a window waited for `depth` levels.
  void ObserveWait(double seconds, uint32_t depth);
  // Expected accepted tokens of a tree of `depth` levels, and the probability that the first level is right.
  double ExpectedAccepted(uint32_t depth) const;
  double FirstLevelAcceptance() const;
  // The paper's a_q as verification sees it: exposed draft time per level, over the last rounds.
  double seconds_per_level() const { return seconds_per_level_.value(); }
  // A round had candidates of this drafter, of which `added` accepted ones were nobody else's.
  void ObserveAdded(uint32_t added);
  // Whether it adds enough to the tree of another drafter, as far as is known.
  bool adds() const;

 private:
  void End(State state);
  Outcome OnGrow(const Grow& grow, absl::Time received);
  void ObserveTimes(const Grow& grow, absl::Time received);
  Outcome OnResync(Outcome outcome);

  const SessionId draft_id_;
  const DrafterBinding binding_;
  DrafterRecord* const record_;
  const absl::Time bound_at_;
  State state_ = State::kIdle;
  bool grown_ = false;
  DraftMirror mirror_;
  FeatureStream features_;
  DraftBudget budget_;
  uint32_t resyncs_in_a_row_ = 0;
  std::optional<absl::Time> retry_at_;
  absl::Duration retry_delay_;  // The last one; zero once nodes came.
  // Commits that left no tree, and when they were sent. The growth that answers them shows how long drafting
  // takes.
  std::deque<std::pair<uint32_t, absl::Time>> awaited_commits_;
  uint32_t waits_in_vain_ = 0;  // In a row.

  LevelAcceptance acceptance_;
  RecentMean seconds_per_level_;
  uint32_t rounds_added_ = 0;  // Recent rounds with its candidates,
  double tokens_added_ = 0.0;  // and the accepted tokens that it alone had guessed in them.
};

}  // namespace tandem
