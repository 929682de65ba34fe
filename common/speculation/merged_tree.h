#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/speculation/round_tree.h"

namespace tandem {

// The origin in statistics: all drafters count as one, including partners.
enum class SourceKind : uint8_t { kDrafter, kLocal, kGrammar, kPrediction };
inline constexpr size_t kNumSourceKinds = 4;
// The values of the label `source`, by SourceKind.
inline constexpr std::array<absl::string_view, kNumSourceKinds> kSourceNames = {"drafter", "local", "grammar",
                                                                                "prediction"};

constexpr SourceKind KindOf(DraftOrigin origin) {
  switch (origin) {
    case DraftOrigin::kLocal:
      return SourceKind::kLocal;
    case DraftOrigin::kGrammar:
      return SourceKind::kGrammar;
    case DraftOrigin::kPrediction:
      return SourceKind::kPrediction;
    case DraftOrigin::kDrafter:
    case DraftOrigin::kPartner:
      break;
  }
  return SourceKind::kDrafter;
}

// Candidates of several origins for one round, merged into one tree below the same root: a path of tokens
// occurs once, whoever guessed it.
//
// A node's probability is the highest of its guessers' calibrated scores. Children of a node exclude each
// other: if their probabilities add up to more than 1, they are scaled down to 1.
class MergedTree {
 public:
  // The candidates of one origin, with calibrated path scores. Origins are added in their order, each once.
  void Add(const RoundTree& tree);
  bool empty() const { return nodes_.empty(); }

  // The best nodes by path score, at most `most`; with every node its parent. Consumes this tree.
  RoundTree Take(uint32_t most) &&;

 private:
  uint32_t FindOrAdd(const RoundNode& node);

  std::vector<RoundNode> nodes_;       // In the order in which they were added, without path scores.
  std::vector<double> probabilities_;  // Of each, that it is right if its parent is.
};

// One origin's nodes in a round's tree, and their outcome. Its own path consists of the nodes that it guessed
// itself, from the root's child down.
struct OriginOutcome {
  uint32_t guessed = 0;   // Nodes it guessed,
  uint32_t credited = 0;  // and those of them that are its own.
  uint32_t depth = 0;     // Deepest level it guessed.
  uint32_t accepted = 0;  // Length of its own path that was accepted.
  uint32_t credited_accepted = 0;
  // It had candidates for the token after that path, and none was right.
  bool rejected = false;
};

// `accepted`: the indices of the accepted path, from the root's child down. `last_known`: whether the
// target's choice after that path is known; it is not when the output ended with an accepted node.
OriginOutcome OutcomeOf(DraftOrigin origin, const RoundTree& tree, absl::Span<const uint32_t> accepted,
                        bool last_known);

}  // namespace tandem
