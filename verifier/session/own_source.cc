#include "verifier/session/own_source.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/node_index.h"

namespace tandem {
namespace {

// Tokens that a source reads between two steps: 1 to 2 ms.
constexpr size_t kMostReadAtOnce = 4096;

// Without candidates that the target has no token for, and all below them.
RoundTree TreeOf(DraftOrigin origin, absl::Span<const ProposedNode> proposal, int32_t vocab_size) {
  RoundTree tree;
  tree.Reserve(proposal.size());
  for (const ProposedNode& node : proposal) {
    tree.Add({.parent = node.parent,
              .token = node.token,
              .depth = node.parent == kRootNode ? 1 : tree[node.parent].depth + 1,
              .score = node.score,
              .guesses = Guesses::Of(origin, node.score)});
  }
  tree.KeepIf([&](uint32_t, const RoundNode& node) { return node.token < vocab_size; });
  return tree;
}

}  // namespace

OwnSource::OwnSource(DraftOrigin origin, std::unique_ptr<DraftSource> source, size_t num_read,
                     ScoreCalibration* calibration, const Clock* clock)
    : origin_(origin),
      source_(std::move(source)),
      num_read_(num_read),
      calibration_(calibration),
      clock_(clock) {}

void OwnSource::Read(absl::Span<const TokenId> tokens, size_t prompt_length) {
  if (num_read_ == tokens.size()) return;
  proposal_.reset();
  const size_t end = std::min(tokens.size(), num_read_ + kMostReadAtOnce);
  if (num_read_ < prompt_length) {
    const size_t prompt_end = std::min(prompt_length, end);
    source_->Read(tokens.subspan(num_read_, prompt_end - num_read_));
    num_read_ = prompt_end;
  }
  if (num_read_ < end) {
    source_->Observe(tokens.subspan(num_read_, end - num_read_));
    num_read_ = end;
  }
}

const RoundTree& OwnSource::Proposal(const Limits& limits) {
  // In the middle of a long prompt there is nothing yet that ends as the text does.
  if (num_read_ < limits.num_tokens) return proposal_.emplace();
  if (proposal_.has_value()) return *proposal_;
  const absl::Time start = clock_->Now();
  proposal_ = TreeOf(origin_, source_->Propose(limits.proposal), limits.vocab_size);
  // What is forced, it allows.
  if (limits.constraint != nullptr && origin_ != DraftOrigin::kGrammar) {
    num_masked_ += limits.constraint->DropForbidden(&*proposal_);
  }
  seconds_ += std::max(absl::ToDoubleSeconds(clock_->Now() - start), 0.0);
  return *proposal_;
}

RoundTree OwnSource::Candidates(const Limits& limits) {
  RoundTree tree = Proposal(limits);
  tree.KeepIf([&](uint32_t, RoundNode& node) {
    const float above = node.parent == kRootNode ? 1.0f : tree[node.parent].path_score;
    node.path_score =
        above * static_cast<float>(calibration_->Calibrated(limits.temperature, node.depth, node.score));
    return node.path_score >= limits.least_path_score;
  });
  return tree;
}

void OwnSource::ForgetCosts() {
  seconds_ = 0.0;
  num_masked_ = 0;
}

}  // namespace tandem
