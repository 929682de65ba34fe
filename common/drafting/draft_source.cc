#include "common/drafting/draft_source.h"

#include <map>
#include <utility>

#include "common/base/node_index.h"
#include "common/drafting/best_first.h"

namespace tandem {

std::vector<ProposedNode> MergeProposals(absl::Span<const std::vector<ProposedNode>> proposals,
                                         const ProposalLimits& limits) {
  struct Merged {
    float score = 0.0f;
    std::map<TokenId, size_t> children;
  };
  std::vector<Merged> merged(1);  // The root.
  for (const std::vector<ProposedNode>& proposal : proposals) {
    std::vector<size_t> places = {0};  // Of the root, and of each node.
    for (const ProposedNode& node : proposal) {
      const size_t parent = places[PlaceAfterRoot(node.parent)];
      const auto [child, is_new] = merged[parent].children.emplace(node.token, merged.size());
      const size_t place = child->second;
      if (is_new) merged.emplace_back();
      merged[place].score = CombineScores(merged[place].score, node.score);
      places.push_back(place);
    }
  }
  return GrowBestFirst<size_t>(0, limits, [&](size_t place) {
    std::vector<GrowthBranch<size_t>> branches;
    for (const auto& [token, child] : merged[place].children) {
      branches.push_back({.token = token, .score = merged[child].score, .state = child});
    }
    return branches;
  });
}

}  // namespace tandem
