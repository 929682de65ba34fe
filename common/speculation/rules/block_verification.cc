#include "common/speculation/rules/block_verification.h"

#include <algorithm>
#include <utility>

#include "common/base/node_index.h"

namespace tandem {
namespace {

// The sum of max(0, joint * p - q) over all tokens, with most of it outside q's.
double MassAbove(const Residual& target, const RemainingDraft& draft, double joint) {
  double mass = joint;
  for (size_t i = 0; i < draft.size(); ++i) {
    mass -= std::min(joint * target.Probability(draft.token(i)), draft.probability(i));
  }
  return std::max(mass, 0.0);
}

}  // namespace

BlockVerdict VerifyBlock(absl::Span<const ChainedDraft> chain,
                         absl::FunctionRef<std::vector<double>(size_t)> target,
                         absl::FunctionRef<double(size_t)> uniform) {
  BlockVerdict verdict;
  double joint = 1.0;
  for (size_t i = 0; i < chain.size(); ++i) {
    Residual target_here(target(i));
    const RemainingDraft draft(chain[i].distribution);
    const double target_prob = target_here.Probability(chain[i].token);
    const double draft_prob = draft.Probability(chain[i].token);
    const double above = MassAbove(target_here, draft, joint);
    const double rest = above + (1.0 - joint);
    // With nothing above and nothing missing, p is q here and the next draft is accepted for certain.
    if (i == 0 || rest <= 0.0 || uniform(i) * rest < above) {
      target_here.Subtract(draft, joint);
      verdict = {.num_accepted = i, .residual = std::move(target_here)};
    }
    joint = draft_prob > 0.0 ? std::min(1.0, joint * target_prob / draft_prob) : 0.0;
    // No draft after this one can be accepted.
    if (joint <= 0.0) return verdict;
  }
  if (chain.empty() || uniform(chain.size()) < joint) return {.num_accepted = chain.size()};
  return verdict;
}

std::vector<VerifiedToken> BlockRule::Verify(const VerifiedRound& round, TargetSampler& sampler) const {
  const VerificationNoise noise(round.seed);
  std::vector<ChainedDraft> chain;
  std::vector<uint32_t> chain_nodes;
  uint32_t at = kRootNode;
  while (const DrawGroup* const group = FindGroup(round, at)) {
    const DrawnChild& first = group->children.front();
    if (!first.node.has_value()) break;
    chain.push_back({.token = first.token, .distribution = group->distribution.get()});
    chain_nodes.push_back(*first.node);
    at = *first.node;
  }
  if (chain.empty()) return SeededRule().Verify(round, sampler);

  const auto node_before = [&](size_t i) { return i == 0 ? kRootNode : chain_nodes[i - 1]; };
  std::vector<std::vector<float>> for_logprobs;
  TargetSampler ahead = sampler;  // As if the drafts were output.
  const BlockVerdict verdict = VerifyBlock(
      chain,
      [&](size_t i) {
        const absl::Span<float> logits = round.logits(node_before(i));
        if (round.num_logprobs >= 0) for_logprobs.emplace_back(logits.begin(), logits.end());
        if (i > 0) ahead.Append(chain[i - 1].token);
        return ahead.Weights(logits, round.position + static_cast<uint32_t>(i));
      },
      [&](size_t length) { return noise.OfBlock(round.position, static_cast<uint32_t>(length)); });

  std::vector<VerifiedToken> tokens;
  const auto add = [&](TokenId token, std::optional<uint32_t> node) {
    const size_t i = tokens.size();
    absl::Span<float> logits;
    if (round.num_logprobs >= 0) logits = absl::MakeSpan(for_logprobs[i]);
    const uint32_t at_position = round.position + static_cast<uint32_t>(i);
    tokens.push_back(
        {.choice = sampler.Describe(logits, token, at_position, round.num_logprobs), .node = node});
    sampler.Append(token);
  };
  for (size_t i = 0; i < verdict.num_accepted; ++i) add(chain[i].token, chain_nodes[i]);
  const uint32_t position = round.position + static_cast<uint32_t>(verdict.num_accepted);
  if (verdict.residual.has_value()) {
    add(verdict.residual->Draw(noise.OfResidual(position)), std::nullopt);
    return tokens;
  }
  tokens.push_back(
      {.choice = sampler.Choose(round.logits(node_before(chain.size())), position, round.num_logprobs)});
  sampler.Append(tokens.back().choice.token);
  return tokens;
}

}  // namespace tandem
