#include "common/speculation/rules/verification_rule.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/node_index.h"
#include "common/base/philox.h"
#include "common/speculation/rules/block_verification.h"
#include "common/speculation/rules/rejection_rule.h"

namespace tandem {

std::vector<std::string> VerificationRuleNames() {
  return {"seeded", "rejection", "block"};
}

absl::StatusOr<VerificationRuleKind> ParseVerificationRule(absl::string_view name) {
  for (const VerificationRuleKind kind :
       {VerificationRuleKind::kSeeded, VerificationRuleKind::kRejection, VerificationRuleKind::kBlock}) {
    if (name == VerificationRuleName(kind)) return kind;
  }
  return absl::InvalidArgumentError(absl::StrCat("verification rule \"", name, "\", expected one of ",
                                                 absl::StrJoin(VerificationRuleNames(), ", ")));
}

absl::string_view VerificationRuleName(VerificationRuleKind kind) {
  switch (kind) {
    case VerificationRuleKind::kRejection:
      return "rejection";
    case VerificationRuleKind::kBlock:
      return "block";
    case VerificationRuleKind::kSeeded:
      break;
  }
  return "seeded";
}

bool SamplesDrafts(VerificationRuleKind kind, const SamplingParameters& sampling) {
  return kind != VerificationRuleKind::kSeeded && sampling.temperature > 0.0f;
}

absl::Status UntrustedDrafter(VerificationRuleKind kind) {
  return absl::FailedPreconditionError(
      absl::StrCat("the drafter is not marked as trusted, which verification rule ",
                   VerificationRuleName(kind), " requires"));
}

std::unique_ptr<const VerificationRule> MakeVerificationRule(VerificationRuleKind kind) {
  switch (kind) {
    case VerificationRuleKind::kRejection:
      return std::make_unique<RejectionRule>();
    case VerificationRuleKind::kBlock:
      return std::make_unique<BlockRule>();
    case VerificationRuleKind::kSeeded:
      break;
  }
  return std::make_unique<SeededRule>();
}

std::vector<VerifiedToken> SeededRule::Verify(const VerifiedRound& round, TargetSampler& sampler) const {
  std::vector<VerifiedToken> tokens;
  uint32_t position = round.position;
  uint32_t at = kRootNode;
  do {
    VerifiedToken token;
    if (round.chosen.empty()) {
      token.choice = sampler.Choose(round.logits(at), position++, round.num_logprobs);
    } else {
      token.choice.token = round.chosen[PlaceAfterRoot(at)];
    }
    sampler.Append(token.choice.token);
    token.node = FindChild(round.nodes, at, token.choice.token);
    at = token.node.value_or(kRootNode);
    tokens.push_back(std::move(token));
  } while (at != kRootNode);
  return tokens;
}

double VerificationNoise::Uniform(uint32_t index, uint32_t position, uint32_t purpose) const {
  // The noise has 0 for the third word.
  const PhiloxCounter words = Philox4x32({index, position, purpose, 0},
                                         {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)});
  return UniformFromBits(uint64_t{words[0]} << 32 | words[1]);
}

double UniformFromBits(uint64_t bits) {
  return static_cast<double>(bits >> 11) * (1.0 / 9007199254740992.0);
}

const DrawGroup* FindGroup(const VerifiedRound& round, uint32_t parent) {
  for (const DrawGroup& group : round.groups) {
    if (group.parent != parent) continue;
    const bool verified = std::any_of(group.children.begin(), group.children.end(),
                                      [](const DrawnChild& child) { return child.node.has_value(); });
    return verified ? &group : nullptr;
  }
  return nullptr;
}

}  // namespace tandem
