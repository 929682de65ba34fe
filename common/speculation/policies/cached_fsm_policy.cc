#include "common/speculation/policies/cached_fsm_policy.h"

#include <algorithm>
#include <cstdint>

#include "absl/container/flat_hash_set.h"

namespace tandem {
namespace {

class CachedFsmPolicy final : public WindowPolicy {
 public:
  CachedFsmPolicy(const FsmOptions& options, absl::Span<const TokenId> tokens)
      : depth_(options.initial_depth), cache_(tokens.begin(), tokens.end()) {}

  absl::string_view name() const override { return "cached-fsm"; }

  void Observe(const RoundOutcome& outcome) override {
    const bool cached = std::any_of(outcome.committed.begin(), outcome.committed.end(),
                                    [&](TokenId token) { return cache_.contains(token); });
    const bool all_accepted = outcome.depth > 0 && !outcome.rejected;
    const int64_t change = (cached ? 1 : -1) + (all_accepted ? 1 : 0);
    depth_ = static_cast<uint32_t>(std::clamp<int64_t>(int64_t{depth_} + change, 0, max_depth_));
    cache_.insert(outcome.committed.begin(), outcome.committed.end());
  }

  uint32_t NextDepth(const RoundCosts& costs) override {
    max_depth_ = costs.limits.max_depth;
    depth_ = std::min(depth_, max_depth_);
    return depth_;
  }

 private:
  uint32_t depth_;
  uint32_t max_depth_ = UINT32_MAX;  // As last heard.
  absl::flat_hash_set<TokenId> cache_;
};

}  // namespace

std::unique_ptr<WindowPolicy> MakeCachedFsmPolicy(const FsmOptions& options,
                                                  absl::Span<const TokenId> tokens) {
  return std::make_unique<CachedFsmPolicy>(options, tokens);
}

}  // namespace tandem
