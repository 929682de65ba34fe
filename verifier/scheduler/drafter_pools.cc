#include "verifier/scheduler/drafter_pools.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <variant>

#include "absl/algorithm/container.h"

namespace tandem {
namespace {

// Of a session's alternates, so many are other members of its drafter's pool.
constexpr size_t kMostPoolAlternates = 7;
// A drafter counts as slower than the fastest one only beyond this: a step takes longer with more sessions
// too.
constexpr double kSlower = 1.5;
constexpr double kLeastSpeed = 0.1;
constexpr double kStepWeight = 0.1;

}  // namespace

void DrafterPools::SetMembers(PoolId pool, std::vector<LinkId> members) {
  absl::c_sort(members);
  members.erase(std::unique(members.begin(), members.end()), members.end());
  std::vector<LinkId>& known = pools_[pool];
  if (known == members) return;
  known = std::move(members);
  next_plan_ = absl::InfinitePast();
}

void DrafterPools::OnLinkDown(LinkId link) {
  const auto found = links_.find(link);
  if (found == links_.end()) return;
  // A drafter that comes back has none of the sessions it had.
  found->second = Link{};
}

void DrafterPools::OnResponse(LinkId link, const DraftResponse& response, absl::Time now) {
  const auto found = links_.find(link);
  if (found == links_.end()) return;
  Link& state = found->second;
  if (response.drafter_sessions.has_value()) {
    state.reported = response.drafter_sessions;
    state.own_at_report = NumOwn(link);
    state.reported_at = now;
  }
  const auto* const grow = std::get_if<Grow>(&response.event);
  if (grow != nullptr && std::isfinite(grow->step_seconds) && grow->step_seconds > 0.0f) {
    const double seconds = grow->step_seconds;
    state.step_seconds = state.step_seconds == 0.0
                             ? seconds
                             : state.step_seconds + kStepWeight * (seconds - state.step_seconds);
  }
}

uint32_t DrafterPools::NumOwn(LinkId link) const {
  return static_cast<uint32_t>(
      absl::c_count_if(sessions_, [link](const auto& session) { return session.second.link == link; }));
}

std::vector<DrafterPools::Member> DrafterPools::MembersOf(PoolId pool, absl::Time now) const {
  std::vector<Member> members;
  const auto found = pools_.find(pool);
  if (found == pools_.end()) return members;
  double fastest = 0.0;
  for (LinkId link : found->second) {
    const auto state = links_.find(link);
    if (state == links_.end() || !state->second.up) continue;
    const double seconds = state->second.step_seconds;
    if (seconds > 0.0 && (fastest == 0.0 || seconds < fastest)) fastest = seconds;
  }
  for (LinkId link : found->second) {
    const auto at = links_.find(link);
    if (at == links_.end() || !at->second.up) continue;
    const Link& state = at->second;
    Member member{.link = link, .own = NumOwn(link)};
    member.sessions = member.own;
    if (state.reported.has_value() && now - state.reported_at <= options_.longest_trust) {
      // What this verifier has done since then is not in the report.
      const double others = static_cast<double>(*state.reported) - state.own_at_report;
      member.sessions += std::max(others, 0.0);
    }
    if (state.step_seconds > kSlower * fastest) {
      member.speed = std::max(fastest / state.step_seconds, kLeastSpeed);
    }
    members.push_back(member);
  }
  return members;
}

// Of several that are as empty, any.
DrafterPools::Member* DrafterPools::Emptiest(std::vector<Member>& members) const {
  Member* emptiest = nullptr;
  double least = 0.0;
  uint32_t ties = 0;
  for (Member& member : members) {
    const double fill = (member.sessions + 1.0) / member.speed;
    if (emptiest == nullptr || fill < least) {
      ties = 0;
    } else if (fill > least) {
      continue;
    }
    ++ties;
    if (uniform_() * ties < 1.0) emptiest = &member;
    least = fill;
  }
  return emptiest;
}

void DrafterPools::Bind(DrafterBinding* binding, absl::Time now) const {
  std::vector<Member> members = MembersOf(binding->pool, now);
  const Member* const member = Emptiest(members);
  binding->link = member == nullptr ? kNoLink : member->link;
}

void DrafterPools::Place(SessionId session, SessionRequest* request, absl::Time now) {
  for (DrafterBinding& alternate : request->alternates) {
    if (alternate.pool != 0) Bind(&alternate, now);
  }
  if (request->partner.has_value() && request->partner->pool != 0) Bind(&*request->partner, now);
  if (!request->drafter.has_value() || request->drafter->pool == 0) return;
  DrafterBinding& drafter = *request->drafter;
  std::vector<Member> members = MembersOf(drafter.pool, now);
  std::vector<DrafterBinding> others;
  while (others.size() <= kMostPoolAlternates) {
    Member* const next = Emptiest(members);
    if (next == nullptr) break;
    others.push_back(drafter);
    others.back().link = next->link;
    members.erase(members.begin() + (next - members.data()));
  }
  drafter.link = others.empty() ? kNoLink : others.front().link;
  if (!others.empty()) {
    request->alternates.insert(request->alternates.begin(), others.begin() + 1, others.end());
  }
  sessions_[session] = drafter;
}

void DrafterPools::PlaceSwap(SessionId session, DrafterBinding* to, absl::Time now) const {
  if (to->pool == 0) return;
  const auto found = sessions_.find(session);
  if (found != sessions_.end() && found->second.pool == to->pool && found->second.link != kNoLink) {
    to->link = found->second.link;
  } else {
    Bind(to, now);
  }
}

void DrafterPools::OnDrafterChanged(SessionId session, const DrafterBinding& binding) {
  if (binding.pool == 0) {
    sessions_.erase(session);
  } else {
    sessions_[session] = binding;
  }
}

void DrafterPools::PlanPool(PoolId pool, absl::Time now, const std::function<bool(SessionId)>& may_move,
                            std::vector<Move>* moves) {
  std::vector<Member> members = MembersOf(pool, now);
  if (members.empty()) return;
  const auto move = [&](SessionId session, const DrafterBinding& from, Member* to, MoveReason reason) {
    ++to->sessions;
    ++to->own;
    moves->push_back({session, from, reason});
    moves->back().to.link = to->link;
  };
  absl::flat_hash_map<LinkId, std::vector<SessionId>> on;
  for (const auto& [session, binding] : sessions_) {
    if (binding.pool != pool) continue;
    const LinkId link = binding.link;
    const bool is_member = absl::c_any_of(members, [&](const Member& member) { return member.link == link; });
    if (!is_member) {
      move(session, binding, Emptiest(members), MoveReason::kLeft);
    } else if (may_move(session)) {
      on[link].push_back(session);
    }
  }

  double sessions = 0.0;
  double speed = 0.0;
  for (const Member& member : members) {
    sessions += member.sessions;
    speed += member.speed;
  }
  for (Member& from : members) {
    std::vector<SessionId>& movable = on[from.link];
    const double excess = from.sessions - sessions * from.speed / speed;
    if (excess <= 0.0 || movable.empty()) continue;
    // This verifier's part of it; the rest of it by chance, so that it comes out right on the average.
    const double part = excess * from.own / from.sessions;
    double count = std::floor(part);
    if (uniform_() < part - count) ++count;
    for (; count > 0.0 && !movable.empty(); --count) {
      // In proportion to what others lack: not all verifiers are to choose the same one.
      double lacking = 0.0;
      const auto lack = [&](const Member& to) {
        if (from.sessions - to.sessions * from.speed / to.speed < options_.tolerance) return 0.0;
        return std::max(sessions * to.speed / speed - to.sessions, 0.0);
      };
      for (const Member& to : members) lacking += lack(to);
      if (lacking <= 0.0) break;
      double drawn = uniform_() * lacking;
      Member* chosen = nullptr;
      for (Member& to : members) {
        if (lack(to) <= 0.0) continue;
        chosen = &to;
        if ((drawn -= lack(to)) < 0.0) break;
      }
      const SessionId session = movable.back();
      movable.pop_back();
      move(session, sessions_.at(session), chosen,
           links_.at(chosen->link).is_new ? MoveReason::kJoined : MoveReason::kBalanced);
      --from.sessions;
      --from.own;
    }
  }
  for (const Member& member : members) {
    if (sessions * member.speed / speed - member.sessions < 1.0) links_.at(member.link).is_new = false;
  }
}

DrafterPools::Plan DrafterPools::MakePlan(absl::Time now, const std::function<bool(SessionId)>& may_move) {
  Plan plan;
  if (now < NextPlan()) return plan;
  // Verifiers that began together do not stay in step.
  next_plan_ = now + options_.period * (0.75 + 0.5 * uniform_());
  for (const auto& [pool, members] : pools_) {
    if (absl::c_none_of(sessions_, [id = pool](const auto& entry) { return entry.second.pool == id; }))
      continue;
    PlanPool(pool, now, may_move, &plan.moves);
    for (LinkId link : members) {
      const auto state = links_.find(link);
      if (state == links_.end() || !state->second.up || !state->second.reported.has_value()) continue;
      if (now - state->second.reported_at >= options_.period / 2) plan.queries.push_back(link);
    }
  }
  return plan;
}

}  // namespace tandem
