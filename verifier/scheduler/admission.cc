// Decides which sessions of a Scheduler have keys and values: admission by the blocks that a session needs
// now, and preemption with recomputation when running sessions outgrow the pool.

#include <algorithm>
#include <cassert>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "verifier/scheduler/scheduler.h"

namespace tandem {
namespace {

// Bounds the spare blocks, per running session, that a repeatedly preempted session needs for admission.
constexpr uint32_t kMostBlocksToSpare = 8;

}  // namespace

bool Scheduler::MayAdmit() const {
  return !waiting_.empty() && running_.size() < options_.max_running && !short_of_memory_;
}

void Scheduler::Enqueue(std::unique_ptr<Session> session) {
  waiting_.push_back(std::move(session));
  size_t at = waiting_.size() - 1;
  const SessionRequest& added = waiting_[at]->request();
  for (size_t i = at; i-- > 0;) {
    const SessionRequest& other = waiting_[i]->request();
    if (other.tenant != added.tenant) continue;
    // One that has run before keeps its place.
    if (other.priority <= added.priority || waiting_[i]->summary().preemptions > 0) break;
    std::swap(waiting_[i], waiting_[at]);
    at = i;
  }
}

void Scheduler::Admit() {
  // First come, first served, but for a tenant's own order (Enqueue): when the first cannot have its memory,
  // those behind it wait as well.
  while (MayAdmit()) {
    // Every running session keeps a spare block to grow into; otherwise the new session would soon be
    // preempted. It needs one more for every time that it was preempted, so that no session recomputes a long
    // prompt again and again for a few tokens each.
    const uint32_t spare = std::min(1 + waiting_.front()->summary().preemptions, kMostBlocksToSpare);
    short_of_memory_ = !waiting_.front()->Start(spare * static_cast<uint32_t>(running_.size())).ok();
    if (short_of_memory_) return;
    const SessionId id = waiting_.front()->id();
    Session& admitted = *running_.emplace(id, std::move(waiting_.front())).first->second;
    waiting_.pop_front();
    if (admitted.summary().preemptions == 0) listener_->OnStarted(id);
    // A drafter that had no room before the session was preempted is not asked any earlier for that.
    const DraftPeer* const drafter = admitted.peer(DraftRole::kDrafter);
    if (drafter != nullptr && !drafter->retry_at().has_value()) OpenDraft(admitted, DraftRole::kDrafter);
  }
}

// Older sessions come first and the youngest is preempted, so the oldest always makes progress; alone it
// fits, because Submit checks that. Trees get the remaining blocks: drafts are optional (law 6).
void Scheduler::ReserveRoots() {
  for (auto next = running_.begin(); next != running_.end();) {
    const SessionId id = next->first;
    // A prompt has had all its blocks since it was admitted.
    if (!next->second->prefilled() || next->second->ReserveRoot()) {
      ++next;
      continue;
    }
    assert(running_.size() > 1);
    Preempt(*std::prev(running_.end())->second);
    next = running_.lower_bound(id);  // Once more, unless it was the youngest itself.
  }
}

void Scheduler::Preempt(Session& session) {
  if (session.peer(DraftRole::kStandby) != nullptr) FinishSwap(session);
  if (session.drafting()) session.LoseDrafter("the verifier ran out of room for keys and values");
  for (const DraftRole role : kDraftRoles) {
    if (session.open_peer(role) != nullptr) CloseDraft(*session.peer(role));
  }
  session.Preempt();
  const auto found = running_.find(session.id());
  waiting_.push_front(std::move(found->second));
  running_.erase(found);
  ++num_preemptions_;
  // What it gave up is what others need.
  short_of_memory_ = true;
}

absl::Status Scheduler::CheckBlocks() const {
  std::vector<BlockId> held;
  for (const auto& session : waiting_) {
    if (!session->kv().blocks().empty()) {
      return absl::InternalError(absl::StrCat("session ", session->id(), " waits and holds blocks"));
    }
    session->kv().ListBlocks(&held);
  }
  for (const auto& [id, session] : running_) {
    const SequenceKv& kv = session->kv();
    if (!in_flight_ && kv.blocks().size() * kBlockTokens >= kv.tokens().size() + kBlockTokens) {
      return absl::InternalError(absl::StrCat("session ", id, " holds ", kv.blocks().size(), " blocks for ",
                                              kv.tokens().size(), " tokens"));
    }
    kv.ListBlocks(&held);
  }
  return pool_->CheckConserved(held);
}

}  // namespace tandem
