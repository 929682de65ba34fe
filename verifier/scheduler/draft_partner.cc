// A session's second drafter, its partner: it drafts along with the first one, its tree is merged with the
// first one's, and it is credited with what it adds. It holds a session of its own at its drafter, opened
// after the first drafter's and closed with it:
//
//   drafting --first drafter opened--> with a partner --refused, lost, useless--> without, for good or until
//   the link is up
//                                            '-- first drafter lost: the partner takes its place

#include <algorithm>
#include <utility>
#include <variant>

#include "verifier/scheduler/scheduler.h"
#include "verifier/session/drafter_record.h"
#include "verifier/session/session.h"

namespace tandem {
namespace {

// A partner that asks to be opened again more often than this, without growth in between, does not draft
// along.
constexpr uint32_t kPartnerResyncs = 4;
// Rounds with its candidates after which a partner has to have added something, and how many tokens to each.
constexpr uint32_t kPartnerTrial = 64;
constexpr double kLeastAdded = 0.03;

}  // namespace

OpenSession Session::OpenPartner(DrafterRecord* record, uint64_t vocabulary_fingerprint) {
  partner_ = std::make_unique<Partner>(Partner{.binding = *request_.partner,
                                               .record = record,
                                               .mirror = DraftMirror(vocab_size_),
                                               .draft_id = DraftId(++last_generation_)});
  return ReopenPartner(vocabulary_fingerprint);
}

OpenSession Session::ReopenPartner(uint64_t vocabulary_fingerprint) {
  return MakeOpen(partner_->mirror.Open(commit_no_, prefix_hash_, /*sampled=*/false),
                  partner_->binding.draft_model, vocabulary_fingerprint, budget_);
}

void Session::DropPartner(bool for_good) {
  partner_.reset();
  if (for_good) request_.partner.reset();
}

bool Session::partner_adds() const {
  return partner_ == nullptr || partner_->rounds < kPartnerTrial ||
         partner_->added >= kLeastAdded * partner_->rounds;
}

void Session::ObservePartner(const OriginOutcome& guessed) {
  if (partner_ == nullptr || partner_->record != round_partner_record_) return;
  std::vector<JudgedNode> judged;
  ObserveScores(DraftOrigin::kPartner, &partner_->record->calibration, &judged);
  partner_->record->acceptance.Observe(
      {.depth = guessed.depth, .accepted = guessed.accepted, .rejected = guessed.rejected});
  if (guessed.guessed == 0) return;
  // What it did long ago says less than what it does now.
  if (partner_->rounds >= 2 * kPartnerTrial) {
    partner_->rounds /= 2;
    partner_->added /= 2.0;
  }
  ++partner_->rounds;
  partner_->added += guessed.credited_accepted;
}

// Beside a first drafter that drafts; nothing happens if it is open already or cannot be.
void Scheduler::OpenPartner(Session& session) {
  const std::optional<DrafterBinding>& partner = session.request().partner;
  if (!partner.has_value() || session.partner() != nullptr || !session.drafting() ||
      session.samples_drafts() || !LinkUsable(partner->link)) {
    return;
  }
  const LinkId link = partner->link;
  OpenSession open = session.OpenPartner(RecordOf(*partner), options_.vocabulary_fingerprint);
  SendOpen(link, session.partner()->draft_id, std::move(open), session.partner()->features);
}

void Scheduler::ClosePartner(Session& session, bool for_good) {
  if (session.partner() != nullptr) {
    listener_->OnDraftRequest(session.partner()->binding.link,
                              {.session = session.partner()->draft_id, .event = CloseSession{}});
  }
  session.DropPartner(for_good);
}

// The first drafter is lost: the partner is the next to take its place.
void Scheduler::OfferPartner(Session& session) {
  if (session.partner() == nullptr) return;
  DrafterBinding binding = session.partner()->binding;
  ClosePartner(session, /*for_good=*/true);
  session.alternates().insert(session.alternates().begin(), std::move(binding));
}

void Scheduler::OnPartnerResponse(LinkId link, Session& session, const DraftResponse& response) {
  Session::Partner& partner = *session.partner();
  if (partner.binding.link != link || !LinkUsable(link)) return;
  const uint32_t epoch = partner.mirror.epoch();
  if (const auto* grow = std::get_if<Grow>(&response.event)) {
    const DraftMirror::GrowReport report = partner.mirror.OnGrow(*grow);
    if (report.stale > 0) listener_->OnStaleNodes(link, report.stale);
    if (report.added > 0) partner.resyncs = 0;
    if (report.result == DraftMirror::GrowResult::kResyncNeeded) ReopenPartner(link, session);
    if (report.result == DraftMirror::GrowResult::kInvalid) RecordViolation(link, report.violation);
  } else if (const auto* opened = std::get_if<SessionOpened>(&response.event)) {
    if (opened->epoch != epoch) return;
    const absl::Status features = StartFeatures(*opened, partner.features);
    if (features.ok()) return;
    ClosePartner(session, /*for_good=*/true);
    if (absl::IsInvalidArgument(features)) RecordViolation(link, features.message());
  } else if (const auto* resync = std::get_if<ResyncNeeded>(&response.event)) {
    if (resync->epoch == epoch) ReopenPartner(link, session);
  } else if (const auto* refused = std::get_if<SessionRefused>(&response.event)) {
    // One that has no room is asked again when its link comes up anew; any other reason stays.
    if (refused->epoch == epoch) session.DropPartner(!absl::IsResourceExhausted(refused->status));
  } else if (const auto* used = std::get_if<FeaturesUsed>(&response.event)) {
    OnFeaturesUsed(*used, epoch, partner.features);
  }
}

void Scheduler::ReopenPartner(LinkId link, Session& session) {
  if (++session.partner()->resyncs > kPartnerResyncs) {
    ClosePartner(session, /*for_good=*/true);
    return;
  }
  SendOpen(link, session.partner()->draft_id, session.ReopenPartner(options_.vocabulary_fingerprint),
           session.partner()->features);
}

}  // namespace tandem
