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

// A session's text with the features it has: positions below `computed` have rows, of which the store may
// have the states. All outlive what is done with them.
struct FeatureText {
  const FeatureStore* store = nullptr;
  const SequenceKv* kv = nullptr;
  uint32_t computed = 0;
};

// How many bytes of features may be on their way.
struct FeatureLimits {
  // Of one message: between two of them a link can send what is more urgent.
  uint64_t chunk_bytes = 256 << 10;
  // Of one session to one drafter, so that a long prompt leaves room for the others.
  uint64_t session_bytes = 1 << 20;
  // Of all sessions on a link. Features are handed over between two steps, so this is what a link can carry
  // in the time of one: 64 sessions that commit four tokens each to a head that reads three layers of 4,096
  // have 6.3 MB.
  uint64_t link_bytes = 8 << 20;
  // With more bytes than this before them, features do not ride in commits: what is queued for a link is
  // bounded, and the end of the link when it overflows, so the room is left to what the drafter cannot do
  // without.
  uint64_t backlog_of_commit = 1 << 20;
};

// How far one drafter of a session has been sent the session's features: each position once, in order and
// without gaps, within one opening of the session there.
//
//   Reset --drafter says what it needs: Start--> [ Take: the next rows ]*
//     ^                                                 |
//     '------------ the session is opened anew ---------'
//
// Drafters that name a window are sent no more rows than fit into it until they tell that they have used
// some.
//
// It begins at the first position that the drafter asked for, or at the earliest one from which the store has
// all rows up to what is computed: what was computed before the store kept them has none. Later rows all have
// theirs, since the store keeps a state for good.
class FeatureStream {
 public:
  void Reset() { *this = FeatureStream(); }
  void Start(FeatureNeeds needs) { needs_ = std::move(needs); }
  bool started() const { return needs_.has_value(); }
  // While started.
  const FeatureNeeds& needs() const { return *needs_; }
  uint64_t RowBytes(const FeatureText& text) const {
    return FeatureRowBytes(needs_->type, needs_->num_states(), text.store->hidden_size());
  }

  // Rows that are there and were not sent; 0 unless started.
  uint32_t NumWaiting(const FeatureText& text);
  // How many of these the drafter's window has room for.
  uint32_t NumAllowed(const FeatureText& text);
  // The drafter has used the rows before the position. What it says twice or of rows that it does not have is
  // its own affair: it bounds nobody's memory but its own.
  void OnUsed(uint32_t position) { used_ = std::max(used_, position); }
  // The next rows, `count` of those that wait, at least one.
  Features Take(const FeatureText& text, uint32_t epoch, uint32_t count);

  // What was taken went out as the link's message of features with this number, counted from 1.
  void CountSent(uint64_t number, uint64_t bytes);
  // The bytes of such messages that have not left the link yet, where the first `num_left` of all have.
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
