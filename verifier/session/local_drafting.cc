// What a Session drafts by itself, without a drafter: by its own source, what its constraint forces, and what
// its request predicts.

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "common/speculation/score_calibration.h"
#include "verifier/session/session.h"

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
    const absl::Time start = local_clock_->Now();
    local_proposal_ = local_drafter_->Propose(OwnLimits());
    if (request_.constraint != nullptr) num_masked_ += request_.constraint->DropForbidden(&*local_proposal_);
    CountGuess(DraftOrigin::kLocal, start);
  }
  return *local_proposal_;
}

const std::vector<ProposedNode>& Session::ForcedProposal() {
  if (!forced_proposal_.has_value()) {
    const absl::Time start = local_clock_->Now();
    forced_proposal_ = request_.constraint->Forced(OwnLimits());
    CountGuess(DraftOrigin::kGrammar, start);
  }
  return *forced_proposal_;
}

const std::vector<ProposedNode>& Session::PredictedProposal() {
  if (!predicted_proposal_.has_value()) {
    const absl::Time start = local_clock_->Now();
    predicted_proposal_ = request_.prediction->Propose(OwnLimits());
    if (request_.constraint != nullptr)
      num_masked_ += request_.constraint->DropForbidden(&*predicted_proposal_);
    CountGuess(DraftOrigin::kPrediction, start);
  }
  return *predicted_proposal_;
}

ProposalLimits Session::OwnLimits() const {
  const uint32_t remaining = request_.max_tokens - OutputLength();
  return {.depth = std::min(limits_.max_depth, remaining - 1),
          .nodes = limits_.max_nodes,
          .branching = limits_.branching};
}

void Session::CountGuess(DraftOrigin origin, absl::Time start) {
  guess_seconds_[static_cast<size_t>(origin)] +=
      std::max(absl::ToDoubleSeconds(local_clock_->Now() - start), 0.0);
}

// Of a proposal the candidates that are likely enough, by what such scores have been worth.
std::vector<TreeNode> Session::LikelyNodes(absl::Span<const ProposedNode> proposal,
                                           ScoreCalibration* calibration, float least_path_score) const {
  const float temperature = request_.sampling.temperature;
  std::vector<TreeNode> nodes;
  std::vector<int32_t> places;  // In nodes, of every proposed node; -1: left out.
  for (const ProposedNode& proposed : proposal) {
    places.push_back(-1);
    if (proposed.token >= vocab_size_) continue;
    const int32_t place = proposed.parent < 0 ? -1 : places[static_cast<size_t>(proposed.parent)];
    if (proposed.parent >= 0 && place < 0) continue;
    const TreeNode* const above = place < 0 ? nullptr : &nodes[static_cast<size_t>(place)];
    const uint32_t depth = above == nullptr ? 1 : above->depth + 1;
    const auto worth = static_cast<float>(calibration->Calibrated(temperature, depth, proposed.score));
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
  DropBanned(&nodes);
  return nodes;
}

std::vector<TreeNode> Session::LocalNodes(float least_path_score) {
  if (local_drafter_ == nullptr) return {};
  return LikelyNodes(LocalProposal(), local_calibration_, least_path_score);
}

std::vector<TreeNode> Session::ForcedNodes(float least_path_score) {
  if (forced_calibration_ == nullptr) return {};
  return LikelyNodes(ForcedProposal(), forced_calibration_, least_path_score);
}

std::vector<TreeNode> Session::PredictedNodes(float least_path_score) {
  if (prediction_calibration_ == nullptr) return {};
  return LikelyNodes(PredictedProposal(), prediction_calibration_, least_path_score);
}

void Session::AddOwnNodes(float least_path_score, MergedTree* tree) {
  tree->Add(DraftOrigin::kGrammar, ForcedNodes(least_path_score));
  tree->Add(DraftOrigin::kPrediction, PredictedNodes(least_path_score));
  tree->Add(DraftOrigin::kLocal, LocalNodes(least_path_score));
}

Session::LocalGuess Session::GuessLocally() {
  LocalGuess guess;
  MergedTree tree;
  AddOwnNodes(kLeastLocalScore, &tree);
  for (const RoundNode& node : std::move(tree).Take(limits_.max_nodes)) {
    ++guess.nodes;
    guess.expected_accepted += double{node.path_score};
  }
  return guess;
}

}  // namespace tandem
