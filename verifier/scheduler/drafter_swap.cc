// Which drafters a Scheduler's sessions have: another one on request (SwapDrafter), or because the drafter is
// lost, or one that drafts along (the partner).
//
//   drafting --SwapDrafter--> drafting, standby opened --its candidates--> drafting with the new one
//                                '-- refused, lost, too slow --> drafting as before
//   drafting --lost--> the standby if there is one, or else the partner if it drafts, or else the next
//                      alternate that is connected, or nothing
//   with a partner --refused, lost, useless--> without one, for good or until it is tried again

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "verifier/scheduler/scheduler.h"

namespace tandem {

Session* Scheduler::Find(SessionId id) {
  if (const auto running = running_.find(id); running != running_.end()) return running->second.get();
  const auto waiting =
      std::find_if(waiting_.begin(), waiting_.end(),
                   [&](const std::unique_ptr<Session>& session) { return session->id() == id; });
  return waiting == waiting_.end() ? nullptr : waiting->get();
}

absl::Status Scheduler::SwapDrafter(SessionId id, absl::string_view from, DrafterBinding to) {
  Session* const session = Find(id);
  if (session == nullptr) return absl::NotFoundError(absl::StrCat("no session ", id));
  const DraftPeer* const drafter = session->peer(DraftRole::kDrafter);
  if (drafter == nullptr) return absl::FailedPreconditionError("the request has no drafter");
  const DrafterBinding& bound = drafter->binding();
  if (!from.empty() && bound.name != from) {
    return absl::FailedPreconditionError(
        absl::StrCat("the request's drafter is \"", bound.name, "\", expected \"", from, "\""));
  }
  GiveUpSwap(*session, absl::AbortedError("another swap was requested"));
  if (session->samples_drafts() && !to.trusted) {
    listener_->OnSwapEnded(id, UntrustedDrafter(options_.verification_rule));
  } else if (bound.link == to.link && bound.draft_model == to.draft_model && bound.name == to.name) {
    listener_->OnSwapEnded(id, absl::OkStatus());
  } else if (!drafter->drafting()) {
    // There are no drafts that could break off.
    const bool suspended = drafter->suspended();
    session->alternates().insert(session->alternates().begin(), bound);
    Bind(*session, std::move(to));
    if (suspended) session->peer(DraftRole::kDrafter)->Suspend();
    session->ForgetRebinds();
    listener_->OnSwapEnded(id, absl::OkStatus());
    if (running_.contains(id) && !suspended) OpenDraft(*session, DraftRole::kDrafter);
  } else if (!LinkUsable(to.link)) {
    listener_->OnSwapEnded(id, absl::UnavailableError("the drafter is disconnected or quarantined"));
  } else {
    DrafterRecord* const record = RecordOf(to);
    session->Bind(DraftRole::kStandby, std::move(to), record, clock_->Now());
    OpenDraft(*session, DraftRole::kStandby);
  }
  return absl::OkStatus();
}

void Scheduler::Bind(Session& session, DrafterBinding to) {
  DrafterRecord* const record = RecordOf(to);
  session.Bind(DraftRole::kDrafter, std::move(to), record, clock_->Now());
  listener_->OnDrafterChanged(session.id(), session.peer(DraftRole::kDrafter)->binding());
}

// The session stops drafting with its peer in the role, which is told unless it knows.
void Scheduler::LoseDraft(Session& session, DraftRole role, const Loss& loss) {
  DraftPeer& peer = *session.peer(role);
  CloseDraft(peer);
  if (loss.for_good) {
    peer.Lose();
  } else if (loss.refused) {
    peer.Postpone(clock_->Now(), options_.first_draft_retry, options_.longest_draft_retry);
  }
  switch (role) {
    case DraftRole::kDrafter:
      session.LoseDrafter(loss.refused ? absl::StrCat("refused: ", loss.reason.ToString())
                                       : std::string(loss.reason.message()));
      ReplaceDrafter(session);
      break;
    case DraftRole::kStandby:
      session.Drop(DraftRole::kStandby);
      listener_->OnSwapEnded(session.id(), loss.reason);
      break;
    case DraftRole::kPartner:
      if (loss.for_good) session.Drop(DraftRole::kPartner);
      break;
  }
}

// Others that draft already come first.
void Scheduler::ReplaceDrafter(Session& session) {
  const DraftPeer& lost = *session.peer(DraftRole::kDrafter);
  if (session.peer(DraftRole::kStandby) != nullptr) {
    FinishSwap(session);
  } else if (session.open_peer(DraftRole::kPartner) != nullptr) {
    if (!lost.lost()) session.alternates().push_back(lost.binding());
    session.Promote(DraftRole::kPartner);
    listener_->OnDrafterChanged(session.id(), session.peer(DraftRole::kDrafter)->binding());
  } else {
    TakeAlternate(session, /*drop_current=*/lost.lost());
  }
}

// Takes alternates in their order; a lost one goes to the end. An alternate whose connection is being tried
// counts as connected; if that fails, the next one is taken then.
void Scheduler::TakeAlternate(Session& session, bool drop_current) {
  std::vector<DrafterBinding>& alternates = session.alternates();
  // Tries each of them once, and after that only those whose link comes up, because all might refuse for
  // ever.
  if (alternates.empty() || session.CountRebind() > alternates.size()) return;
  const auto next = std::find_if(alternates.begin(), alternates.end(),
                                 [&](const DrafterBinding& binding) { return LinkUsable(binding.link); });
  if (next == alternates.end()) return;
  DrafterBinding to = std::move(*next);
  alternates.erase(next);
  if (!drop_current) alternates.push_back(session.peer(DraftRole::kDrafter)->binding());
  Bind(session, std::move(to));
  OpenDraft(session, DraftRole::kDrafter);
}

void Scheduler::FinishSwap(Session& session) {
  CloseDraft(*session.peer(DraftRole::kDrafter));
  session.Promote(DraftRole::kStandby);
  session.ForgetRebinds();
  listener_->OnDrafterChanged(session.id(), session.peer(DraftRole::kDrafter)->binding());
  listener_->OnSwapEnded(session.id(), absl::OkStatus());
}

void Scheduler::GiveUpSwap(Session& session, const absl::Status& reason) {
  if (session.peer(DraftRole::kStandby) != nullptr)
    LoseDraft(session, DraftRole::kStandby, {.reason = reason});
}

// Call it between steps, because the nodes being verified are the old drafter's.
void Scheduler::SettleSwaps(absl::Time now) {
  for (auto& [id, session] : running_) {
    const DraftPeer* const standby = session->peer(DraftRole::kStandby);
    if (standby == nullptr) continue;
    const bool late = now >= standby->bound_at() + options_.swap_timeout;
    if (standby->ready() || (late && standby->answered())) {
      FinishSwap(*session);
    } else if (late) {
      GiveUpSwap(*session,
                 absl::DeadlineExceededError(absl::StrCat("the drafter did not answer within ",
                                                          absl::FormatDuration(options_.swap_timeout))));
    }
  }
}

}  // namespace tandem
