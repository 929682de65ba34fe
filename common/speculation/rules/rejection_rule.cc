#include "common/speculation/rules/rejection_rule.h"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <utility>

#include "common/base/node_index.h"

namespace tandem {
namespace {

// Below this share of what it was, a sum from which parts have been taken is computed anew.
constexpr double kCancelled = 1e-6;

}  // namespace

Residual::Residual(std::vector<double> weights)
    : weights_(std::move(weights)), total_(std::accumulate(weights_.begin(), weights_.end(), 0.0)) {
  assert(total_ > 0.0);
}

// Only q's tokens change, so that the others need not be scaled: p - q / scale is proportional to
// scale * p - q.
void Residual::Subtract(const RemainingDraft& draft, double scale) {
  assert(scale > 0.0 && scale <= 1.0);
  if (draft.empty()) return;
  std::vector<double> before(draft.size());
  double left = total_;
  for (size_t i = 0; i < draft.size(); ++i) {
    double& weight = weights_[static_cast<size_t>(draft.token(i))];
    before[i] = weight;
    weight = std::max(0.0, weight - total_ * (draft.probability(i) / scale));
    left -= before[i] - weight;
  }
  if (left < kCancelled * total_) left = std::accumulate(weights_.begin(), weights_.end(), 0.0);
  if (left > 0.0) {
    total_ = left;
    return;
  }
  for (size_t i = 0; i < draft.size(); ++i) weights_[static_cast<size_t>(draft.token(i))] = before[i];
}

TokenId Residual::Draw(double uniform) const {
  // The exact sum of what is added up below, which total_ may differ from by rounding.
  const double wanted = uniform * std::accumulate(weights_.begin(), weights_.end(), 0.0);
  double reached = 0.0;
  size_t last = 0;
  for (size_t token = 0; token < weights_.size(); ++token) {
    if (weights_[token] == 0.0) continue;
    last = token;
    reached += weights_[token];
    if (wanted < reached) break;
  }
  return static_cast<TokenId>(last);
}

std::optional<size_t> TestChildren(absl::Span<const DrawnChild> children, RemainingDraft draft,
                                   absl::FunctionRef<double(size_t)> uniform, Residual& target) {
  for (size_t i = 0; i < children.size(); ++i) {
    const TokenId token = children[i].token;
    const double draft_prob = draft.Probability(token);
    // What is not verified has been drawn all the same.
    if (children[i].node.has_value() && draft_prob > 0.0) {
      if (uniform(i) * draft_prob < target.Probability(token)) return i;
      target.Subtract(draft);
    }
    draft.Remove(token);
  }
  return std::nullopt;
}

std::vector<VerifiedToken> RejectionRule::Verify(const VerifiedRound& round, TargetSampler& sampler) const {
  const VerificationNoise noise(round.seed);
  std::vector<VerifiedToken> tokens;
  uint32_t position = round.position;
  uint32_t at = kRootNode;
  do {
    const absl::Span<float> logits = round.logits(at);
    VerifiedToken token;
    if (const DrawGroup* const group = FindGroup(round, at); group == nullptr) {
      token.choice = sampler.Choose(logits, position, round.num_logprobs);
      token.node = FindChild(round.nodes, at, token.choice.token);
    } else {
      std::vector<float> for_logprobs;
      if (round.num_logprobs >= 0) for_logprobs.assign(logits.begin(), logits.end());
      Residual target(sampler.Weights(logits, position));
      const std::optional<size_t> accepted = TestChildren(
          group->children, RemainingDraft(group->distribution.get()),
          [&](size_t child) { return noise.OfChild(position, static_cast<uint32_t>(child)); }, target);
      if (accepted.has_value()) token.node = group->children[*accepted].node;
      token.choice = sampler.Describe(
          absl::MakeSpan(for_logprobs),
          accepted.has_value() ? group->children[*accepted].token : target.Draw(noise.OfResidual(position)),
          position, round.num_logprobs);
    }
    sampler.Append(token.choice.token);
    ++position;
    at = token.node.value_or(kRootNode);
    tokens.push_back(std::move(token));
  } while (at != kRootNode);
  return tokens;
}

}  // namespace tandem
