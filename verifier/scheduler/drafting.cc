// What a Scheduler and drafters say to one another. All roles of drafters have the same openings, answers,
// lost links and violations; what the loss of a drafter means to a session follows from its role.

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "verifier/scheduler/scheduler.h"

namespace tandem {
namespace {

// The pause before opening a session that must wait for others' openings.
constexpr absl::Duration kOpeningPause = absl::Milliseconds(10);
constexpr uint32_t kViolationsToQuarantine = 3;

}  // namespace

bool Scheduler::LinkUsable(LinkId link) const {
  const auto found = links_.find(link);
  return found != links_.end() && found->second.up && !IsQuarantined(link);
}

bool Scheduler::IsQuarantined(LinkId link) const {
  const auto found = links_.find(link);
  return found != links_.end() && clock_->Now() < found->second.quarantined_until;
}

// Each opening carries all tokens of its session. All sessions of a drafter that has come back, or that
// others are swapped to, would not fit into the link's queue at once. A single one always may.
bool Scheduler::MayOpen(const Session& session, const DraftPeer& peer) const {
  if (peer.drafting()) return true;
  uint64_t opening = 0;
  for (const auto& [id, other] : running_) {
    for (const DraftRole role : kDraftRoles) {
      const DraftPeer* const open = other->open_peer(role);
      if (open != nullptr && !open->answered() && open->link() == peer.link()) {
        opening += other->opening_tokens();
      }
    }
  }
  return opening == 0 || opening + session.opening_tokens() <= options_.max_opening_tokens;
}

// Also opens again, after a resync. Nothing happens if the session has no drafter in the role.
void Scheduler::OpenDraft(Session& session, DraftRole role) {
  DraftPeer* const peer = session.peer(role);
  if (peer == nullptr || peer->lost()) return;
  // The others draft beside a drafter only.
  if (role != DraftRole::kDrafter && !session.drafting()) return;
  if (IsQuarantined(peer->link())) return LoseDraft(session, role, Quarantined());
  if (!LinkUsable(peer->link())) {
    return LoseDraft(session, role, {.reason = absl::UnavailableError("the drafter is not connected")});
  }
  if (session.samples_drafts() && !peer->binding().trusted) {
    return LoseDraft(
        session, role,
        {.reason = UntrustedDrafter(options_.verification_rule), .for_good = true, .refused = true});
  }
  const RoundCosts costs = CostsOf(session);
  if (role == DraftRole::kDrafter && !session.WantsDrafts(costs)) {
    // A drafter that asks for a resync holds the session all the same.
    return SuspendDraft(session);
  }
  if (!MayOpen(session, *peer)) return peer->RetryAt(clock_->Now() + kOpeningPause);
  SendOpen(*peer, session.OpenAt(role, options_.vocabulary_fingerprint, costs));
  const DraftPeer* const partner = session.peer(DraftRole::kPartner);
  if (role == DraftRole::kDrafter && partner != nullptr && !partner->drafting() &&
      partner->retry_at().value_or(absl::InfinitePast()) <= clock_->Now()) {
    OpenDraft(session, DraftRole::kPartner);
  }
}

void Scheduler::CloseDraft(DraftPeer& peer) {
  if (peer.drafting()) {
    listener_->OnDraftRequest(peer.link(), {.session = peer.draft_id(), .event = CloseSession{}});
  }
  peer.Close();
}

// For as long as there is nothing to draft.
void Scheduler::SuspendDraft(Session& session) {
  if (session.peer(DraftRole::kStandby) != nullptr) FinishSwap(session);
  for (const DraftRole role : kDraftRoles) {
    if (session.peer(role) != nullptr) CloseDraft(*session.peer(role));
  }
  session.peer(DraftRole::kDrafter)->Suspend();
}

void Scheduler::RetryDrafts(absl::Time now) {
  for (auto& [id, session] : running_) {
    for (const DraftRole role : kDraftRoles) {
      const DraftPeer* const peer = session->peer(role);
      if (peer == nullptr || peer->retry_at().value_or(absl::InfiniteFuture()) > now) continue;
      if (role == DraftRole::kDrafter) session->ForgetRebinds();
      OpenDraft(*session, role);
    }
  }
}

void Scheduler::OnLinkUp(LinkId link) {
  links_[link].up = true;
  if (IsQuarantined(link)) return;
  for (auto& [id, session] : running_) {
    const DraftPeer* const drafter = session->peer(DraftRole::kDrafter);
    if (drafter == nullptr) continue;
    if (!drafter->lost() && drafter->link() == link) {
      session->ForgetRebinds();
      if (!drafter->drafting()) OpenDraft(*session, DraftRole::kDrafter);
    } else if (!drafter->drafting() && !drafter->suspended() && !drafter->retry_at().has_value()) {
      session->ForgetRebinds();
      TakeAlternate(*session, /*drop_current=*/drafter->lost());
    }
    const DraftPeer* const partner = session->peer(DraftRole::kPartner);
    if (partner != nullptr && !partner->drafting() && partner->link() == link) {
      OpenDraft(*session, DraftRole::kPartner);
    }
  }
}

// The link may have a new connection by now, on which what was sent last has arrived: it is closed there.
// Sessions that stay are opened there again, but the request may end before that.
void Scheduler::OnLinkDown(LinkId link, const absl::Status& reason) {
  links_[link].up = false;
  LoseAllOn(link,
            {.reason = absl::UnavailableError(absl::StrCat("the connection was lost: ", reason.message()))});
}

Scheduler::Loss Scheduler::Quarantined() {
  return {.reason = absl::FailedPreconditionError("the drafter is quarantined"), .for_good = true};
}

void Scheduler::RecordViolation(LinkId link, absl::string_view what) {
  Link& state = links_[link];
  if (IsQuarantined(link)) return;
  const bool quarantine = ++state.violations >= kViolationsToQuarantine;
  if (quarantine) {
    state.violations = 0;
    state.quarantined_until = clock_->Now() + state.next_quarantine;
    state.next_quarantine = std::min(2 * state.next_quarantine, kLongestQuarantine);
    LoseAllOn(link, Quarantined());
  }
  listener_->OnProtocolViolation(link, what, quarantine);
}

// A session's drafter comes last, so that nothing takes its place that is on the same link.
void Scheduler::LoseAllOn(LinkId link, const Loss& loss) {
  for (auto& [id, session] : running_) {
    for (auto role = kDraftRoles.rbegin(); role != kDraftRoles.rend(); ++role) {
      const DraftPeer* const peer = session->open_peer(*role);
      if (peer != nullptr && peer->link() == link) LoseDraft(*session, *role, loss);
    }
  }
}

void Scheduler::OnDraftResponse(LinkId link, const DraftResponse& response) {
  const SessionId id = Session::IdOfDraft(response.session);
  const auto found = running_.find(id);
  if (found == running_.end()) {
    // Most have finished meanwhile, and their close is on the way.
    if (id <= highest_session_) return;
    return RecordViolation(link, absl::StrCat("session ", response.session, " was never opened"));
  }
  Session& session = *found->second;
  const std::optional<DraftRole> role = session.RoleOf(response.session);
  if (!role.has_value()) return;  // Of a drafter that it is no longer bound to.
  DraftPeer& peer = *session.peer(*role);
  if (peer.link() != link || !LinkUsable(link)) return;
  const bool stamped = response.received != absl::InfinitePast();
  const DraftPeer::Outcome outcome =
      session.OnDraftResponse(*role, response, stamped ? response.received : clock_->Now());
  if (outcome.stale > 0) listener_->OnStaleNodes(link, outcome.stale);
  switch (outcome.event) {
    case DraftPeer::Event::kNone:
      return;
    case DraftPeer::Event::kOpened:
      if (outcome.needs != nullptr) StartFeatures(session, *role, *outcome.needs);
      return;
    case DraftPeer::Event::kResync:
      return OpenDraft(session, *role);
    case DraftPeer::Event::kResyncLimit:
      LoseDraft(session, *role,
                {.reason = absl::AbortedError("the drafter keeps asking for a resync"), .for_good = true});
      return RecordViolation(link, "repeated resyncs without growth in between");
    case DraftPeer::Event::kRefused:
      return LoseDraft(session, *role, {.reason = outcome.refusal, .for_good = peer.lost(), .refused = true});
    case DraftPeer::Event::kUsed:
      return SendFeatures();
    case DraftPeer::Event::kViolation:
      return RecordViolation(link, outcome.violation);
  }
}

}  // namespace tandem
