#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "common/engine/sequence_kv.h"
#include "common/speculation/draft_messages.h"
#include "verifier/session/feature_store.h"

namespace tandem {

// A session's text and its features: positions below `computed` have rows, whose states the store may have.
// All references outlive this.
struct FeatureText {
  const FeatureStore* store = nullptr;
  const SequenceKv* kv = nullptr;
  uint32_t computed = 0;
};

// How many bytes of features may be in flight.
struct FeatureLimits {
  // Of one message. Between two messages, a link can send more urgent ones.
  uint64_t chunk_bytes = 256 << 10;
  // Of one session to one drafter, so that a long prompt leaves room for others.
  uint64_t session_bytes = 1 << 20;
  // Of all sessions on a link. Features are passed to links between two steps, so this bounds what a link
  // sends per step: 64 sessions that commit four tokens each, for a head that reads three layers of width
  // 4,096, have 6.3 MB.
  uint64_t link_bytes = 8 << 20;
  // If more bytes than this are queued before a commit, the commit carries no features. A link breaks when
  // its bounded queue overflows, so the room is left to messages that the drafter cannot do without.
  uint64_t backlog_of_commit = 1 << 20;
};

// Tracks which of a session's features one drafter has been sent: each position once, in order and without
// gaps, within one opening of the session there.
//
//   Reset --drafter says what it needs: Start--> [ Take: the next rows ]*
//     ^                                                 |
//     '------------ the session is opened anew ---------'
//
// A drafter that names a window gets no more rows than fit into it until it reports that it has used some.
//
// The stream begins at the first position that the drafter requested, or at the earliest one from which the
// store has all computed rows, because rows that were computed before the store kept the states have none.
// All later rows have states, because the store keeps a state for good.
class FeatureStream {
 public:
  void Reset() { *this = FeatureStream(); }
  void Start(FeatureNeeds needs) { needs_ = std::move(needs); }
  bool started() const { return needs_.has_value(); }
  // Only while started.
  const FeatureNeeds& needs() const { return *needs_; }
  uint64_t RowBytes(const FeatureText& text) const {
    return FeatureRowBytes(needs_->type, needs_->num_states(), text.store->hidden_size());
  }

  // The number of available rows that were not sent; 0 unless started.
  uint32_t NumWaiting(const FeatureText& text);
  // How many of these fit into the drafter's window.
  uint32_t NumAllowed(const FeatureText& text);
  // The drafter has used the rows before the position. Repeated or wrong reports are ignored or harmless: the
  // window bounds only the drafter's own memory.
  void OnUsed(uint32_t position) { used_ = std::max(used_, position); }
  // Takes the next `count` waiting rows; at least one.
  Features Take(const FeatureText& text, uint32_t epoch, uint32_t count);

  // The rows were sent in the link's features message with this number, counted from 1.
  void CountSent(uint64_t number, uint64_t bytes);
  // The bytes of such messages that are still in flight, given that the first `num_left` of the link have
  // left.
  uint64_t BytesInFlight(uint64_t num_left);

 private:
  std::optional<FeatureNeeds> needs_;
  bool anchored_ = false;  // It is known where the rows begin.
  uint32_t next_ = 0;
  uint32_t used_ = 0;                                    // Never less than where the rows begin.
  std::deque<std::pair<uint64_t, uint64_t>> in_flight_;  // Messages by number, and their bytes.
  uint64_t bytes_in_flight_ = 0;
};

}  // namespace tandem
