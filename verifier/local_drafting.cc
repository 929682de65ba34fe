// What a Session drafts by itself, without a drafter.

#include <algorithm>
#include <cstddef>
#include <vector>

#include "common/speculation/score_calibration.h"
#include "verifier/session.h"

namespace tandem {
namespace {

// Tokens that the local source reads between two steps: 1 to 2 ms.
constexpr size_t kMostReadAtOnce = 4096;

}  // namespace

void Session::ReadLocally() {
  const absl::Span<const TokenId> tokens = kv_.tokens();
  if (local_drafter_ == nullptr || num_read_locally_ == tokens.size()) return;
  local_proposal_.reset();
  const size_t prompt = request_.prompt.size();
  const size_t end = std::min(tokens.size(), num_read_locally_ + kMostReadAtOnce);
  if (num_read_locally_ < prompt) {
    const size_t prompt_end = std::min(prompt, end);
    local_drafter_->Read(tokens.subspan(num_read_locally_, prompt_end - num_read_locally_));
    num_read_locally_ = prompt_end;
  }
  if (num_read_locally_ < end) {
    local_drafter_->Observe(tokens.subspan(num_read_locally_, end - num_read_locally_));
    num_read_locally_ = end;
  }
}

const std::vector<ProposedNode>& Session::LocalProposal() {
  // In the middle of a long prompt there is nothing yet that ends as the text does.
  if (num_read_locally_ < kv_.tokens().size()) local_proposal_.emplace();
  if (!local_proposal_.has_value()) {
    const uint32_t remaining = request_.max_tokens - OutputLength();
    const absl::Time start = local_clock_->Now();
    local_proposal_ = local_drafter_->Propose({.depth = std::min(limits_.max_depth, remaining - 1),
                                               .nodes = limits_.max_nodes,
                                               .branching = limits_.branching});
    guess_seconds_ += std::max(absl::ToDoubleSeconds(local_clock_->Now() - start), 0.0);
  }
  return *local_proposal_;
}

// Of the source's candidates those that are likely enough, by what its scores have been worth.
std::vector<TreeNode> Session::LocalNodes(float least_path_score) {
  const float temperature = request_.sampling.temperature;
  std::vector<TreeNode> nodes;
  std::vector<int32_t> places;  // In nodes, of every proposed node; -1: left out.
  for (const ProposedNode& proposed : LocalProposal()) {
    places.push_back(-1);
    if (proposed.token >= vocab_size_) continue;
    const int32_t place = proposed.parent < 0 ? -1 : places[static_cast<size_t>(proposed.parent)];
    if (proposed.parent >= 0 && place < 0) continue;
    const TreeNode* const above = place < 0 ? nullptr : &nodes[static_cast<size_t>(place)];
    const uint32_t depth = above == nullptr ? 1 : above->depth + 1;
    const auto worth = static_cast<float>(local_calibration_->Calibrated(temperature, depth, proposed.score));
    const float path_score = (above == nullptr ? 1.0f : above->path_score) * worth;
    if (path_score < least_path_score) continue;
    places.back() = static_cast<int32_t>(nodes.size());
    nodes.push_back({.id = static_cast<NodeId>(nodes.size()) + 1,
                     .parent = above == nullptr ? 0 : above->id,
                     .token = proposed.token,
                     .depth = depth,
                     .score = proposed.score,
                     .path_score = path_score});
  }
  return nodes;
}

Session::LocalGuess Session::GuessLocally() {
  LocalGuess guess;
  if (local_drafter_ == nullptr) return guess;
  for (const TreeNode& node : LocalNodes(kLeastLocalScore)) {
    ++guess.nodes;
    guess.expected_accepted += double{node.path_score};
  }
  return guess;
}

}  // namespace tandem
