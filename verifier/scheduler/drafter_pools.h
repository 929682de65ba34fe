#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "verifier/session/session.h"

namespace tandem {

// Of a name that stands for several drafters; never 0.
using PoolId = uint64_t;

// A link that there never is: of sessions whose pool has no members.
inline constexpr LinkId kNoLink = UINT64_MAX;

// Which drafter of a pool each session drafts with. A session goes where the fewest sessions are for the
// speed that the drafter has; those of other verifiers count too, as drafters report them. Sessions move when
// drafters come and go, and when some have more than their share.
//
//   Place --> on a member --more there than its share--> on another
//                |                                          ^
//                '---- the member is down or gone ----------'
//
// Verifiers that share a pool do not speak with one another. That they do not all move their sessions at once
// is left to chance: each moves its part of what is too much, so that together they move about as much as
// that.
//
// Protocol logic: no I/O, no threads; time and chance are passed in (law 4).
class DrafterPools {
 public:
  struct Options {
    // Between two looks at who has too much, and how old a report may be before another is asked for.
    absl::Duration period = absl::Milliseconds(500);
    // Reports of a drafter with which the verifier has no session count for so long.
    absl::Duration longest_trust = absl::Seconds(5);
    // Two drafters are left as they are while they are less than so many sessions apart.
    double tolerance = 2.0;
  };
  // Why a session moves: its drafter is down or gone, to one that has come and has less than its share, or
  // from one that has more than its share to another that was there before.
  enum class MoveReason { kLeft, kJoined, kBalanced };
  static constexpr size_t kNumMoveReasons = 3;
  struct Move {
    SessionId session = 0;
    DrafterBinding to;
    MoveReason reason = MoveReason::kBalanced;
  };
  struct Plan {
    std::vector<Move> moves;
    std::vector<LinkId> queries;  // Links on which to ask for a LoadReport.
  };

  // `uniform`: draws from [0, 1).
  DrafterPools(const Options& options, std::function<double()> uniform)
      : options_(options), uniform_(std::move(uniform)) {}

  // The links of a pool, all that were there before and are not among them have gone.
  void SetMembers(PoolId pool, std::vector<LinkId> members);
  // The pool is not kept up any more; its sessions stay where they are.
  void Forget(PoolId pool) { pools_.erase(pool); }
  void OnLinkUp(LinkId link) { links_[link].up = true; }
  void OnLinkDown(LinkId link);
  void OnLinkGone(LinkId link) { links_.erase(link); }
  void OnResponse(LinkId link, const DraftResponse& response, absl::Time now);

  // A session begins: where its request names pools, members of them take their places, and other members
  // become alternates of the drafter.
  void Place(SessionId session, SessionRequest* request, absl::Time now);
  // As Place, for a drafter that a session is to go over to.
  void PlaceSwap(SessionId session, DrafterBinding* to, absl::Time now) const;
  void OnDrafterChanged(SessionId session, const DrafterBinding& binding);
  void OnFinished(SessionId session) { sessions_.erase(session); }

  // What to do now: nothing before NextPlan. `may_move`: whether the session drafts and is not about to go
  // over to somebody; those whose drafter is down or gone are moved whatever it says.
  Plan MakePlan(absl::Time now, const std::function<bool(SessionId)>& may_move);
  // The infinite future while no session is on a pool.
  absl::Time NextPlan() const { return sessions_.empty() ? absl::InfiniteFuture() : next_plan_; }

 private:
  struct Link {
    bool up = false;
    bool is_new = true;                // Until it has its share.
    std::optional<uint32_t> reported;  // Sessions of all verifiers,
    uint32_t own_at_report = 0;        // this one's own when the report came,
    absl::Time reported_at = absl::InfinitePast();
    double step_seconds = 0.0;  // Of a growth step, recently; 0: not known.
  };
  // A member that is up, as a plan or a choice sees it.
  struct Member {
    LinkId link = 0;
    double sessions = 0.0;  // Of all verifiers.
    uint32_t own = 0;
    double speed = 1.0;  // Relative to the fastest.
    double Fill() const { return sessions / speed; }
  };

  uint32_t NumOwn(LinkId link) const;
  std::vector<Member> MembersOf(PoolId pool, absl::Time now) const;
  Member* Emptiest(std::vector<Member>& members) const;
  void Bind(DrafterBinding* binding, absl::Time now) const;
  void PlanPool(PoolId pool, absl::Time now, const std::function<bool(SessionId)>& may_move,
                std::vector<Move>* moves);

  const Options options_;
  const std::function<double()> uniform_;
  absl::btree_map<PoolId, std::vector<LinkId>> pools_;
  absl::flat_hash_map<LinkId, Link> links_;
  absl::btree_map<SessionId, DrafterBinding> sessions_;  // Those whose drafter is one of a pool.
  absl::Time next_plan_ = absl::InfinitePast();
};

}  // namespace tandem
