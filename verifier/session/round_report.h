#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/speculation/merged_tree.h"

namespace tandem {

enum class RoundKind { kHit, kMiss, kUndrafted };

// What a round got from its request's drafter.
enum class DraftSupply {
  kDrafted,   // Candidates that were verified.
  kUnwanted,  // None were wanted: the window is 0, or what was there was not worth a row.
  kOpening,   // Nothing yet: the drafter has not answered since the session was opened there.
  kLate,      // Nothing in time.
  kLost,      // Nothing: it is out of reach, refused, quarantined or full.
};
inline constexpr size_t kNumDraftSupplies = 5;

// A candidate that the target judged: a verified node below an accepted one, or below the root.
struct JudgedNode {
  float score = 0.0f;       // The drafter's.
  double calibrated = 0.0;  // The probability of acceptance that was made of it.
  bool accepted = false;
};

// The share of one origin of drafts in a round. Each node counts for the origin that it is credited to, so
// that the shares add up to the round's figures.
struct OriginShare {
  uint32_t depth = 0;  // Deepest level it guessed.
  uint32_t nodes = 0;
  uint32_t accepted = 0;
  uint32_t declined = 0;
  double expected_accepted = 0.0;
  double wait_seconds = 0.0;  // That the round waited for its nodes.

  bool empty() const { return nodes == 0 && wait_seconds <= 0.0; }
};

// The drafters to which the request was bound when the round was planned. Empty: none.
struct RoundDrafters {
  std::string drafter;
  std::string partner;

  // The name under which an origin's share is reported. Guesses of the verifier itself are reported under the
  // bound drafter's name.
  const std::string& NameOf(DraftOrigin origin) const {
    return origin == DraftOrigin::kPartner ? partner : drafter;
  }
};

struct RoundReport {
  RoundKind kind = RoundKind::kUndrafted;
  uint32_t depth = 0;
  uint32_t nodes = 0;
  uint32_t accepted = 0;
  uint32_t committed = 0;
  uint32_t masked = 0;             // Candidates that the request's constraint does not allow.
  double mask_seconds = 0.0;       // What the masks of the round's rows took,
  uint32_t masks = 0;              // how many of them were made,
  absl::Time masks_start;          // and from when
  absl::Time masks_end;            // to when.
  uint32_t declined = 0;           // Nodes that were there, within the window, and not worth a row.
  double expected_accepted = 0.0;  // By the calibrated scores of the nodes.
  double wait_seconds = 0.0;  // For drafters; what the verifier takes to guess is told in its share alone.
  RoundDrafters drafters;
  std::array<OriginShare, kNumDraftOrigins> shares;  // By DraftOrigin.
  std::vector<DraftOrigin> accepted_by;              // Of each position, whose the accepted node was.
  std::optional<DraftSupply> supply;                 // Of requests that have a drafter.
  // From the end of the previous round to the end of this one, including waiting; and the time for the same
  // tokens without drafts: as many rounds without trees and waits, by the round-time model. 0 for a request's
  // first round.
  double round_seconds = 0.0;
  double plain_seconds = 0.0;
  std::vector<JudgedNode> judged;  // Of the drafter's candidates; none of what was drafted locally.
  // The forward pass, and whether it also computed the end of the request's prompt.
  absl::Time forward_start;
  absl::Duration forward_time;
  bool with_prefill = false;
};

}  // namespace tandem
