// A Scheduler's sessions go over from one drafter to another: because somebody says so (SwapDrafter), or
// because the one they had is lost and the request names alternates.
//
//   drafting --SwapDrafter--> drafting, standby opened --its candidates--> drafting with the new one
//                                '-- refused, lost, too slow --> drafting as before
//   drafting --lost--> the standby if there is one, or else the next alternate that is connected, or nothing

#include <algorithm>
#include <cassert>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "verifier/scheduler/scheduler.h"

namespace tandem {
namespace {

// A standby that asks to be opened again more often than this is not going to take over.
constexpr uint32_t kStandbyResyncs = 4;

}  // namespace

void Session::Rebind(DrafterBinding to, DrafterRecord* record) {
  assert(!drafting_ && standby_ == nullptr);
  request_.drafter = std::move(to);
  record_ = record;
  generation_ = ++last_generation_;
  draft_refused_ = false;
  draft_retry_at_.reset();
  ResetDrafterState();
}

// What was learned about the drafter before is not true of the next one.
void Session::ResetDrafterState() {
  acceptance_ = LevelAcceptance();
  draft_seconds_per_level_ = RecentMean(kDraftSecondsHistory);
  waits_in_vain_ = 0;
  resyncs_in_a_row_ = 0;
  draft_retry_delay_ = absl::ZeroDuration();
  awaited_commits_.clear();
  wait_until_ = absl::InfinitePast();
  hold_until_ = absl::InfinitePast();
  summary_.drafter = request_.drafter->name;
  summary_.drafter_accepted_tokens = 0;
  summary_.drafter_rejections = 0;
}

OpenSession Session::OpenStandby(DrafterBinding to, DrafterRecord* record, uint64_t vocabulary_fingerprint,
                                 absl::Time deadline) {
  assert(drafting_ && standby_ == nullptr);
  standby_ = std::make_unique<Standby>(Standby{.binding = std::move(to),
                                               .record = record,
                                               .mirror = DraftMirror(vocab_size_),
                                               .draft_id = DraftId(++last_generation_),
                                               .deadline = deadline,
                                               .budget = budget_});
  return ReopenStandby(vocabulary_fingerprint);
}

OpenSession Session::ReopenStandby(uint64_t vocabulary_fingerprint) {
  standby_->opened = false;
  return MakeOpen(standby_->mirror.Open(commit_no_, prefix_hash_, samples_drafts()),
                  standby_->binding.draft_model, vocabulary_fingerprint, standby_->budget);
}

void Session::PromoteStandby() {
  request_.drafter = std::move(standby_->binding);
  record_ = standby_->record;
  mirror_ = std::move(standby_->mirror);
  features_ = std::move(standby_->features);
  generation_ = static_cast<uint32_t>(standby_->draft_id >> kGenerationShift);
  drafting_ = true;
  draft_opened_ = standby_->opened || standby_->grown;
  draft_refused_ = false;
  draft_suspended_ = false;
  draft_retry_at_.reset();
  budget_ = standby_->budget;
  standby_.reset();
  summary_.drafter_lost.clear();
  ResetDrafterState();
}

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
  const std::optional<DrafterBinding>& bound = session->request().drafter;
  if (!bound.has_value()) return absl::FailedPreconditionError("the request has no drafter");
  if (!from.empty() && bound->name != from) {
    return absl::FailedPreconditionError(
        absl::StrCat("the request's drafter is \"", bound->name, "\", expected \"", from, "\""));
  }
  GiveUpSwap(*session, absl::AbortedError("another swap was requested"), /*close=*/true);
  if (session->samples_drafts() && !to.trusted) {
    listener_->OnSwapEnded(id, UntrustedDrafter(options_.verification_rule));
    return absl::OkStatus();
  }
  if (bound->link == to.link && bound->draft_model == to.draft_model && bound->name == to.name) {
    listener_->OnSwapEnded(id, absl::OkStatus());
  } else if (!session->drafting()) {
    // There are no drafts that could break off.
    const bool suspended = session->draft_suspended();
    session->alternates().insert(session->alternates().begin(), *bound);
    Bind(*session, std::move(to));
    session->ForgetRebinds();
    listener_->OnSwapEnded(id, absl::OkStatus());
    if (running_.contains(id) && !suspended) OpenDraft(*session);
  } else if (!LinkUsable(to.link)) {
    listener_->OnSwapEnded(id, absl::UnavailableError("the drafter is disconnected or quarantined"));
  } else {
    DrafterRecord* const record = RecordOf(to);
    const LinkId link = to.link;
    OpenSession open = session->OpenStandby(std::move(to), record, options_.vocabulary_fingerprint,
                                            clock_->Now() + options_.swap_timeout);
    SendOpen(link, session->standby()->draft_id, std::move(open), session->standby()->features);
  }
  return absl::OkStatus();
}

void Scheduler::Bind(Session& session, DrafterBinding to) {
  DrafterRecord* const record = RecordOf(to);
  session.Rebind(std::move(to), record);
  listener_->OnDrafterChanged(session.id(), *session.request().drafter);
}

// The drafter that the session was bound to drafts no more; it has been told, if it can be.
void Scheduler::LoseDraft(Session& session, absl::string_view reason, bool for_good) {
  session.StopDraft(reason, for_good);
  if (session.standby() != nullptr) {
    FinishSwap(session);
  } else {
    OfferPartner(session);
    TakeAlternate(session, /*drop_current=*/for_good);
  }
}

// In their order, and whoever was lost goes to the end. One whose connection is only being tried counts as
// connected; when that fails, the next is taken then.
bool Scheduler::TakeAlternate(Session& session, bool drop_current) {
  std::vector<DrafterBinding>& alternates = session.alternates();
  // Each of them once, and then whoever comes up: they might all refuse, for ever.
  if (alternates.empty() || session.CountRebind() > alternates.size()) return false;
  const auto next = std::find_if(alternates.begin(), alternates.end(),
                                 [&](const DrafterBinding& binding) { return LinkUsable(binding.link); });
  if (next == alternates.end()) return false;
  DrafterBinding to = std::move(*next);
  alternates.erase(next);
  if (!drop_current) alternates.push_back(*session.request().drafter);
  Bind(session, std::move(to));
  OpenDraft(session);
  return true;
}

void Scheduler::CloseDraft(const Session& session) {
  listener_->OnDraftRequest(session.request().drafter->link,
                            {.session = session.draft_id(), .event = CloseSession{}});
}

void Scheduler::SuspendDraft(Session& session) {
  if (session.standby() != nullptr) FinishSwap(session);
  ClosePartner(session, /*for_good=*/false);
  if (session.drafting()) CloseDraft(session);
  session.SuspendDraft();
}

void Scheduler::FinishSwap(Session& session) {
  if (session.drafting()) CloseDraft(session);
  session.PromoteStandby();
  session.ForgetRebinds();
  listener_->OnDrafterChanged(session.id(), *session.request().drafter);
  listener_->OnSwapEnded(session.id(), absl::OkStatus());
}

void Scheduler::GiveUpSwap(Session& session, const absl::Status& reason, bool close) {
  const Session::Standby* const standby = session.standby();
  if (standby == nullptr) return;
  if (close) {
    listener_->OnDraftRequest(standby->binding.link, {.session = standby->draft_id, .event = CloseSession{}});
  }
  session.DropStandby();
  listener_->OnSwapEnded(session.id(), reason);
}

// Between steps: what is being verified is the old drafter's.
void Scheduler::SettleSwaps(absl::Time now) {
  for (auto& [id, session] : running_) {
    const Session::Standby* const standby = session->standby();
    if (standby == nullptr) continue;
    if (standby->Ready() || (standby->opened && now >= standby->deadline)) {
      FinishSwap(*session);
    } else if (now >= standby->deadline) {
      GiveUpSwap(*session,
                 absl::DeadlineExceededError(absl::StrCat("the drafter did not answer within ",
                                                          absl::FormatDuration(options_.swap_timeout))),
                 /*close=*/true);
    }
  }
}

void Scheduler::OnStandbyResponse(LinkId link, Session& session, const DraftResponse& response) {
  Session::Standby& standby = *session.standby();
  if (standby.binding.link != link || !LinkUsable(link)) return;
  const uint32_t epoch = standby.mirror.epoch();
  if (const auto* grow = std::get_if<Grow>(&response.event)) {
    const DraftMirror::GrowReport report = standby.mirror.OnGrow(*grow);
    if (report.stale > 0) listener_->OnStaleNodes(link, report.stale);
    if (report.added > 0) standby.grown = true;
    if (report.result == DraftMirror::GrowResult::kResyncNeeded) ReopenStandby(link, session);
    if (report.result == DraftMirror::GrowResult::kInvalid) RecordViolation(link, report.violation);
  } else if (const auto* opened = std::get_if<SessionOpened>(&response.event)) {
    if (opened->epoch == epoch) {
      standby.opened = true;
      standby.mirror.OnOpened(opened->predicts_acceptance);
      const absl::Status features = StartFeatures(*opened, standby.features);
      if (features.ok()) return;
      GiveUpSwap(session, features, /*close=*/true);
      if (absl::IsInvalidArgument(features)) RecordViolation(link, features.message());
    }
  } else if (const auto* resync = std::get_if<ResyncNeeded>(&response.event)) {
    if (resync->epoch == epoch) ReopenStandby(link, session);
  } else if (const auto* refused = std::get_if<SessionRefused>(&response.event)) {
    if (refused->epoch == epoch) GiveUpSwap(session, refused->status, /*close=*/false);
  } else if (const auto* used = std::get_if<FeaturesUsed>(&response.event)) {
    OnFeaturesUsed(*used, epoch, standby.features);
  }
}

void Scheduler::ReopenStandby(LinkId link, Session& session) {
  Session::Standby& standby = *session.standby();
  if (++standby.resyncs > kStandbyResyncs) {
    GiveUpSwap(session, absl::AbortedError("the drafter keeps asking for a resync"), /*close=*/true);
    return;
  }
  SendOpen(link, standby.draft_id, session.ReopenStandby(options_.vocabulary_fingerprint), standby.features);
}

}  // namespace tandem
