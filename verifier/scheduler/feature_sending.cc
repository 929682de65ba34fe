// What a Scheduler sends to draft heads: the target's hidden states behind committed text
// (docs/reference/protocol.md, Features).
//
//   Open --Opened names states--> the store keeps them --rows computed--> in the commit, or in messages of
//   their own
//
// A drafter that asks for features gets those that the store has, then each round's. What a link has no room
// for stays in the store, which costs nothing, and goes out when there is room: the engine waits for nobody.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "verifier/scheduler/scheduler.h"

namespace tandem {
namespace {

uint64_t RoomBelow(uint64_t limit, uint64_t used) {
  return used < limit ? limit - used : 0;
}

}  // namespace

Session::FeatureReader Session::DrafterReader() {
  return {
      .stream = &features_, .link = request_.drafter->link, .draft_id = draft_id(), .epoch = mirror_.epoch()};
}

Session::FeatureReader Session::StandbyReader() {
  return {.stream = &standby_->features,
          .link = standby_->binding.link,
          .draft_id = standby_->draft_id,
          .epoch = standby_->mirror.epoch()};
}

Session::FeatureReader Session::PartnerReader() {
  return {.stream = &partner_->features,
          .link = partner_->binding.link,
          .draft_id = partner_->draft_id,
          .epoch = partner_->mirror.epoch()};
}

std::vector<Session::FeatureReader> Session::FeatureReaders() {
  std::vector<FeatureReader> readers;
  if (finished_) return readers;
  if (drafting_ && features_.started()) readers.push_back(DrafterReader());
  if (standby_ != nullptr && standby_->features.started()) readers.push_back(StandbyReader());
  if (partner_ != nullptr && partner_->features.started()) readers.push_back(PartnerReader());
  return readers;
}

void Scheduler::SendOpen(LinkId link, SessionId draft_id, OpenSession open, FeatureStream& features) {
  features.Reset();
  if (features_ != nullptr) {
    open.target_hidden_size = features_->hidden_size();
    open.target_layers = features_->num_layers();
    open.target_fingerprint = options_.target_fingerprint;
  }
  listener_->OnDraftRequest(link, {.session = draft_id, .event = std::move(open)});
}

// Of the opening that is in force. InvalidArgument: the drafter was told better.
absl::Status Scheduler::StartFeatures(const SessionOpened& opened, FeatureStream& stream) {
  if (!opened.features.has_value() || stream.started()) return absl::OkStatus();
  if (features_ == nullptr) return absl::InvalidArgumentError("features of a target that has none to send");
  TANDEM_ASSIGN_OR_RETURN(const bool grown, features_->Keep(*opened.features));
  // A prompt that is found there would never have its features.
  forget_prefixes_ = forget_prefixes_ || grown;
  stream.Start(*opened.features);
  SendFeatures();
  return absl::OkStatus();
}

void Scheduler::OnDraftOpened(LinkId link, Session& session, const SessionOpened& opened) {
  session.OnDraftOpened(opened);
  if (opened.epoch != session.draft_epoch()) return;
  const absl::Status features = StartFeatures(opened, session.features());
  if (features.ok()) return;
  CloseDraft(session);
  LoseDraft(session, absl::StrCat("no hidden states for its head: ", features.message()), /*for_good=*/true);
  if (absl::IsInvalidArgument(features)) RecordViolation(link, features.message());
}

// `epoch`: of the opening that is in force at this drafter.
void Scheduler::OnFeaturesUsed(const FeaturesUsed& used, uint32_t epoch, FeatureStream& stream) {
  if (used.epoch != epoch || !stream.started()) return;
  stream.OnUsed(used.position);
  SendFeatures();
}

// `copies`: those of the session's accepted nodes.
void Scheduler::KeepAccepted(const Session& session, absl::Span<const KvCopy> copies) {
  const absl::Span<const uint32_t> accepted = session.accepted();
  for (size_t i = 0; i < accepted.size(); ++i) {
    feature_step_.Keep(session.first_row() + 1 + accepted[i], copies[i].to, features_.get());
  }
}

// With the features of the round, if the drafter has all before them and they fit.
void Scheduler::SendCommit(const Session& session, const Session::FeatureReader& reader, Commit commit) {
  FeatureStream& stream = *reader.stream;
  if (stream.started()) {
    // Of the round's rows, all but the bonus token's are computed.
    const FeatureText text{.store = features_.get(), .kv = &session.kv(), .computed = session.num_planned()};
    const uint32_t waiting = stream.NumWaiting(text);
    const SchedulerListener::Backlog backlog = listener_->BacklogOf(reader.link);
    const uint64_t num_sent = links_[reader.link].num_feature_messages;
    const uint64_t num_left = num_sent - std::min(num_sent, backlog.feature_messages);
    if (waiting > 0 && waiting <= commit.tokens.size() && stream.NumAllowed(text) == waiting &&
        waiting * stream.RowBytes(text) <= options_.feature_limits.chunk_bytes &&
        stream.BytesInFlight(num_left) == 0 &&
        backlog.other_bytes <= options_.feature_limits.backlog_of_commit) {
      commit.features = stream.Take(text, reader.epoch, waiting);
    }
  }
  listener_->OnDraftRequest(reader.link, {.session = reader.draft_id, .event = std::move(commit)});
}

// False if there is nothing to send, or no room for it.
bool Scheduler::SendChunk(const Session& session, const Session::FeatureReader& reader) {
  FeatureStream& stream = *reader.stream;
  const FeatureText text{
      .store = features_.get(), .kv = &session.kv(), .computed = session.kv().num_computed()};
  const uint32_t allowed = stream.NumAllowed(text);
  if (allowed == 0) return false;
  Link& link = links_[reader.link];
  const SchedulerListener::Backlog backlog = listener_->BacklogOf(reader.link);
  const uint64_t num_left =
      link.num_feature_messages - std::min(link.num_feature_messages, backlog.feature_messages);
  const uint64_t room =
      std::min({RoomBelow(options_.feature_limits.link_bytes, backlog.feature_bytes),
                RoomBelow(options_.feature_limits.session_bytes, stream.BytesInFlight(num_left)),
                options_.feature_limits.chunk_bytes});
  uint64_t rows = std::min<uint64_t>(allowed, room / stream.RowBytes(text));
  // A row may be larger than a chunk; it goes when nothing else does.
  if (rows == 0 && backlog.feature_messages == 0) rows = 1;
  if (rows == 0) return false;
  Features features = stream.Take(text, reader.epoch, static_cast<uint32_t>(rows));
  stream.CountSent(++link.num_feature_messages, features.states.size());
  listener_->OnDraftRequest(reader.link, {.session = reader.draft_id, .event = std::move(features)});
  return true;
}

// A chunk to each, as long as there is room, and another session first the next time.
void Scheduler::SendFeatures() {
  if (features_ == nullptr || features_->empty()) return;
  std::vector<std::pair<Session*, Session::FeatureReader>> turns;
  const auto add = [&](auto from, auto to) {
    for (; from != to; ++from) {
      for (const Session::FeatureReader& reader : from->second->FeatureReaders()) {
        turns.emplace_back(from->second.get(), reader);
      }
    }
  };
  const auto first = running_.upper_bound(feature_turn_);
  add(first, running_.end());
  add(running_.begin(), first);
  if (turns.empty()) return;
  feature_turn_ = turns.front().first->id();
  while (!turns.empty()) {
    std::erase_if(turns, [this](const auto& turn) { return !SendChunk(*turn.first, turn.second); });
  }
}

uint64_t Scheduler::WaitingFeatureBytes() {
  uint64_t bytes = 0;
  if (features_ == nullptr || features_->empty()) return bytes;
  for (const auto& [id, session] : running_) {
    const FeatureText text{
        .store = features_.get(), .kv = &session->kv(), .computed = session->kv().num_computed()};
    for (const Session::FeatureReader& reader : session->FeatureReaders()) {
      bytes += reader.stream->NumWaiting(text) * reader.stream->RowBytes(text);
    }
  }
  return bytes;
}

}  // namespace tandem
