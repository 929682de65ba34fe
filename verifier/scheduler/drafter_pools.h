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

// The id of a pool: a name that stands for several drafters. Never 0.
using PoolId = uint64_t;

// A link that never exists, for sessions whose pool has no members.
inline constexpr LinkId kNoLink = UINT64_MAX;

// Assigns sessions to the drafters of a pool. A session goes to the drafter with the fewest sessions relative
// to its speed; sessions of other verifiers count too, as drafters report them. Sessions move when drafters
// come and go, and when some drafters have more than their share.
//
//   Place --> on a member --more there than its share--> on another
//                |                                          ^
//                '---- the member is down or gone ----------'
//
// Verifiers that share a pool do not communicate. So that they do not all move the same excess, each moves a
// part in proportion to its own sessions there, rounded at random; together they move about the whole excess.
//
// Protocol logic: no I/O, no threads; time and chance are passed in (law 4).
class DrafterPools {
 public:
  struct Options {
    // Time between two balancing plans, and the age at which a new report is requested.
    absl::Duration period = absl::Milliseconds(500);
    // How long the report of a drafter without sessions of this verifier stays valid.
    absl::Duration longest_trust = absl::Seconds(5);
    // Two drafters are not balanced while they differ by fewer sessions than this.
    double tolerance = 2.0;
  };
  // Why a session moves: kLeft, its drafter is down or gone; kJoined, to a new drafter that has less than its
  // share; kBalanced, from a drafter with more than its share to another old one.
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

  // Sets the links of a pool. Earlier links that are not among them are gone.
  void SetMembers(PoolId pool, std::vector<LinkId> members);
  // Stops managing the pool; its sessions stay where they are.
  void Forget(PoolId pool) { pools_.erase(pool); }
  void OnLinkUp(LinkId link) { links_[link].up = true; }
  void OnLinkDown(LinkId link);
  void OnLinkGone(LinkId link) { links_.erase(link); }
  void OnResponse(LinkId link, const DraftResponse& response, absl::Time now);

  // A session starts: replaces pools in its request by members, and adds other members as alternates of the
  // drafter.
  void Place(SessionId session, SessionRequest* request, absl::Time now);
  // As Place, for a drafter to which a session is swapped.
  void PlaceSwap(SessionId session, DrafterBinding* to, absl::Time now) const;
  void OnDrafterChanged(SessionId session, const DrafterBinding& binding);
  void OnFinished(SessionId session) { sessions_.erase(session); }

  // What to do now; nothing before NextPlan. `may_move`: whether the session drafts and is not being swapped.
  // Sessions whose drafter is down or gone move in any case.
  Plan MakePlan(absl::Time now, const std::function<bool(SessionId)>& may_move);
  // When to call MakePlan next; the infinite future while no session is on a pool.
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
  // A member that is up, as input of a plan or a choice.
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
