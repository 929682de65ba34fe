// Sends features to draft heads: the target's hidden states of committed text (docs/reference/protocol.md,
// Features).
//
//   Open --Opened names states--> the store keeps them --rows computed--> in the commit, or in own messages
//
// A drafter that requests features gets those in the store, then each round's. Features for which a link has
// no room stay in the store, at no cost, and are sent when there is room, so the engine never waits.

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

absl::InlinedVector<DraftPeer*, kNumDraftRoles> Scheduler::FeatureReaders(Session& session) {
  absl::InlinedVector<DraftPeer*, kNumDraftRoles> readers;
  if (session.finished()) return readers;
  for (const DraftRole role : kDraftRoles) {
    DraftPeer* const peer = session.open_peer(role);
    if (peer != nullptr && peer->features().started()) readers.push_back(peer);
  }
  return readers;
}

void Scheduler::SendOpen(const DraftPeer& peer, OpenSession open) {
  if (features_ != nullptr) {
    open.target_hidden_size = features_->hidden_size();
    open.target_layers = features_->num_layers();
    open.target_fingerprint = options_.target_fingerprint;
  }
  listener_->OnDraftRequest(peer.link(), {.session = peer.draft_id(), .event = std::move(open)});
}

// InvalidArgument if the drafter's needs contradict what it was told.
absl::Status Scheduler::KeepFeatures(const FeatureNeeds& needs) {
  if (features_ == nullptr) return absl::InvalidArgumentError("features of a target that has none to send");
  TANDEM_ASSIGN_OR_RETURN(const bool grown, features_->Keep(needs));
  // A prompt that is found there would never have its features.
  forget_prefixes_ = forget_prefixes_ || grown;
  return absl::OkStatus();
}

// For the current opening of the peer.
void Scheduler::StartFeatures(Session& session, DraftRole role, const FeatureNeeds& needs) {
  DraftPeer& peer = *session.peer(role);
  if (peer.features().started()) return;
  const absl::Status kept = KeepFeatures(needs);
  if (kept.ok()) {
    peer.features().Start(needs);
    return SendFeatures();
  }
  const LinkId link = peer.link();
  LoseDraft(
      session, role,
      {.reason = absl::Status(kept.code(), absl::StrCat("no hidden states for its head: ", kept.message())),
       .for_good = true});
  if (absl::IsInvalidArgument(kept)) RecordViolation(link, kept.message());
}

// `copies`: those of the session's accepted nodes.
void Scheduler::KeepAccepted(const Session& session, absl::Span<const KvCopy> copies) {
  const absl::Span<const uint32_t> accepted = session.accepted();
  for (size_t i = 0; i < accepted.size(); ++i) {
    feature_step_.Keep(session.first_row() + 1 + accepted[i], copies[i].to, features_.get());
  }
}

// With the features of the round, if the drafter has all before them and they fit.
void Scheduler::SendCommit(const Session& session, DraftPeer& peer, Commit commit) {
  FeatureStream& stream = peer.features();
  if (stream.started()) {
    // Of the round's rows, all but the bonus token's are computed.
    const FeatureText text{.store = features_.get(), .kv = &session.kv(), .computed = session.num_planned()};
    const uint32_t waiting = stream.NumWaiting(text);
    const SchedulerListener::Backlog backlog = listener_->BacklogOf(peer.link());
    const uint64_t num_sent = links_[peer.link()].num_feature_messages;
    const uint64_t num_left = num_sent - std::min(num_sent, backlog.feature_messages);
    if (waiting > 0 && waiting <= commit.tokens.size() && stream.NumAllowed(text) == waiting &&
        waiting * stream.RowBytes(text) <= options_.feature_limits.chunk_bytes &&
        stream.BytesInFlight(num_left) == 0 &&
        backlog.other_bytes <= options_.feature_limits.backlog_of_commit) {
      commit.features = stream.Take(text, peer.mirror().epoch(), waiting);
    }
  }
  listener_->OnDraftRequest(peer.link(), {.session = peer.draft_id(), .event = std::move(commit)});
}

// False if there is nothing to send, or no room for it.
bool Scheduler::SendChunk(const Session& session, DraftPeer& peer) {
  FeatureStream& stream = peer.features();
  const FeatureText text{
      .store = features_.get(), .kv = &session.kv(), .computed = session.kv().num_computed()};
  const uint32_t allowed = stream.NumAllowed(text);
  if (allowed == 0) return false;
  Link& link = links_[peer.link()];
  const SchedulerListener::Backlog backlog = listener_->BacklogOf(peer.link());
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
  Features features = stream.Take(text, peer.mirror().epoch(), static_cast<uint32_t>(rows));
  stream.CountSent(++link.num_feature_messages, features.states.size());
  listener_->OnDraftRequest(peer.link(), {.session = peer.draft_id(), .event = std::move(features)});
  return true;
}

// A chunk to each, as long as there is room, and another session first the next time.
void Scheduler::SendFeatures() {
  if (features_ == nullptr || features_->empty()) return;
  std::vector<std::pair<Session*, DraftPeer*>> turns;
  const auto add = [&](auto from, auto to) {
    for (; from != to; ++from) {
      for (DraftPeer* const peer : FeatureReaders(*from->second))
        turns.emplace_back(from->second.get(), peer);
    }
  };
  const auto first = running_.upper_bound(feature_turn_);
  add(first, running_.end());
  add(running_.begin(), first);
  if (turns.empty()) return;
  feature_turn_ = turns.front().first->id();
  while (!turns.empty()) {
    std::erase_if(turns, [this](const auto& turn) { return !SendChunk(*turn.first, *turn.second); });
  }
}

uint64_t Scheduler::WaitingFeatureBytes() {
  uint64_t bytes = 0;
  if (features_ == nullptr || features_->empty()) return bytes;
  for (const auto& [id, session] : running_) {
    const FeatureText text{
        .store = features_.get(), .kv = &session->kv(), .computed = session->kv().num_computed()};
    for (DraftPeer* const peer : FeatureReaders(*session)) {
      bytes += peer->features().NumWaiting(text) * peer->features().RowBytes(text);
    }
  }
  return bytes;
}

}  // namespace tandem
