#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

// What a Q-learning agent has learned, passed from one session to the next of the same tenant and drafter.
//
// As bytes, with numbers in little-endian order:
//
//   "TQ"  version: u8 (1)  zero: u8  prompts: u32  fresh prompts: u32  entries: u32        16 bytes
//   state: u8  action: u8  value: f32  visits: u32  fresh visits: u32                      14 bytes, each
//   entry
//
// Entries are in increasing order of (state, action), without duplicates, so equal knowledge has equal
// bytes. "Fresh" counts what the session that wrote the bytes added to its initial state.
// MergePolicyStates uses this to tell sessions that ran at the same time from sessions that ran one after
// another.
struct QLearningState {
  // Of prompts and visits. Reaching it takes years; beyond it they are not counted.
  static constexpr uint32_t kMostVisits = uint32_t{1} << 30;
  // Values of any sane discount lie far below.
  static constexpr float kLargestValue = 1e6F;
  // As many as fit kMaxPolicyStateBytes.
  static constexpr size_t kMostEntries = 291;

  struct Entry {
    uint8_t state = 0;
    uint8_t action = 0;
    float value = 0.0F;
    uint32_t visits = 1;  // At least 1,
    uint32_t fresh = 0;   // of which at most all are fresh.
    friend bool operator==(const Entry&, const Entry&) = default;
  };
  uint32_t prompts = 0;
  uint32_t fresh_prompts = 0;
  std::vector<Entry> entries;
  friend bool operator==(const QLearningState&, const QLearningState&) = default;

  // Of more than kMostEntries entries, those that were visited most often.
  std::string Serialize() const;
  // InvalidArgument, saying where and what was expected, for bytes that Serialize cannot have written. They
  // come from other processes.
  static absl::StatusOr<QLearningState> Parse(absl::string_view bytes);
};

// A window policy's state that takes up what one more session, `newer`, has learned; nothing in the result is
// fresh. `stored` may be empty, of another policy or damaged: it then counts as none.
//
// Where nobody else learned between the start of that session and now, the result is what the session ended
// with. Otherwise each value is the mean of both, weighted by the visits that each has made since the session
// began: those of the session, and those of the others.
//
// InvalidArgument if `newer` is no state.
absl::StatusOr<std::string> MergePolicyStates(absl::string_view stored, absl::string_view newer);

}  // namespace tandem
