#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/node_index.h"
#include "common/base/token.h"
#include "common/speculation/draft_messages.h"
#include "common/speculation/round_tree.h"
#include "common/speculation/target_sampler.h"

namespace tandem {

enum class VerificationRuleKind {
  kSeeded,     // The target's seeded choice (law 2).
  kRejection,  // Accept or resample, token by token.
  kBlock,      // Accept or resample, for a whole chain at once.
};
std::vector<std::string> VerificationRuleNames();
absl::StatusOr<VerificationRuleKind> ParseVerificationRule(absl::string_view name);
absl::string_view VerificationRuleName(VerificationRuleKind kind);
// Whether a request needs sampled drafts, for which the drafter must be trusted. False at temperature 0,
// where all rules accept the target's best token.
bool SamplesDrafts(VerificationRuleKind kind, const SamplingParameters& sampling);
// The FailedPrecondition for an untrusted drafter.
absl::Status UntrustedDrafter(VerificationRuleKind kind);

// A drawn child.
struct DrawnChild {
  TokenId token = 0;
  std::optional<uint32_t> node;  // Its index among the round's nodes, if it is one of them.
};

// The children of one node in the order in which the drafter drew them from `distribution`, up to the last
// one that is verified.
struct DrawGroup {
  uint32_t parent = kRootNode;                            // Index among the round's nodes.
  std::shared_ptr<const DraftDistribution> distribution;  // Has every child's token.
  std::vector<DrawnChild> children;
};

// One round's input to a rule: the verified nodes and the target's results.
struct VerifiedRound {
  uint32_t position = 0;  // Of the first token to come: the number of tokens before it.
  uint64_t seed = 0;      // Of the request.
  int num_logprobs = -1;
  absl::Span<const RoundNode> nodes;   // Of a RoundTree.
  absl::Span<const DrawGroup> groups;  // At most one for each parent.
  // The target's seeded choices after the root and after each node, [1 + nodes], if the engine has made them;
  // otherwise empty. Used by the seeded rule without log probabilities, which then needs no logits.
  absl::Span<const TokenId> chosen;
  // The target's logits [vocab_size] after a node, by its index, or after kRootNode. Rules overwrite them.
  absl::FunctionRef<absl::Span<float>(uint32_t)> logits;
};

struct VerifiedToken {
  TokenChoice choice;
  std::optional<uint32_t> node;  // The accepted node; nothing for the round's last token.
};

// Computes a round's tokens from the tree and the target's logits. Stateless: a function of the round and
// the sampler.
class VerificationRule {
 public:
  virtual ~VerificationRule() = default;
  // The tokens of accepted nodes, from the root's child down, then one more. Each is appended to `sampler`.
  virtual std::vector<VerifiedToken> Verify(const VerifiedRound& round, TargetSampler& sampler) const = 0;
};
std::unique_ptr<const VerificationRule> MakeVerificationRule(VerificationRuleKind kind);

// Walks down the tree as long as the target's seeded choice is a child.
class SeededRule final : public VerificationRule {
 public:
  std::vector<VerifiedToken> Verify(const VerifiedRound& round, TargetSampler& sampler) const override;
};

// Random numbers for the other rules, uniform in [0, 1): functions of the request's seed, the purpose and
// a position. A request uses each at most once. They come from Philox with the key of the Gumbel noise,
// and with counters that the Gumbel noise never uses.
class VerificationNoise {
 public:
  explicit VerificationNoise(uint64_t seed) : seed_(seed) {}
  // Whether child `index` becomes the token at `position`.
  double OfChild(uint32_t position, uint32_t index) const { return Uniform(index, position, 1); }
  // For drawing the token at `position` if no child was accepted.
  double OfResidual(uint32_t position) const { return Uniform(0, position, 2); }
  // Whether `length` drafts are accepted in the round that began at `position`. The draft's own position is
  // not used, because it can recur in the next round.
  double OfBlock(uint32_t position, uint32_t length) const { return Uniform(length, position, 3); }

 private:
  double Uniform(uint32_t index, uint32_t position, uint32_t purpose) const;

  uint64_t seed_;
};

// 64 random bits as a number in [0, 1).
double UniformFromBits(uint64_t bits);

// The group of `parent`'s children with at least one that is verified; nullptr if there is none.
const DrawGroup* FindGroup(const VerifiedRound& round, uint32_t parent);

}  // namespace tandem
