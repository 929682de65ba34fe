#include "common/speculation/policies/fsm_policy.h"

#include <algorithm>

namespace tandem {
namespace {

class FsmPolicy final : public WindowPolicy {
 public:
  explicit FsmPolicy(const FsmOptions& options) : depth_(options.initial_depth) {}

  absl::string_view name() const override { return "fsm"; }

  void Observe(const RoundOutcome& outcome) override {
    if (outcome.rejected) {
      depth_ -= depth_ > 0 ? 1 : 0;
    } else if (outcome.depth > 0 || depth_ == 0) {
      depth_ += depth_ < max_depth_ ? 1 : 0;
    }
  }

  uint32_t NextDepth(const RoundCosts& costs) override {
    max_depth_ = costs.limits.max_depth;
    depth_ = std::min(depth_, max_depth_);
    return depth_;
  }

 private:
  uint32_t depth_;
  uint32_t max_depth_ = UINT32_MAX;  // As last heard.
};

}  // namespace

std::unique_ptr<WindowPolicy> MakeFsmPolicy(const FsmOptions& options) {
  return std::make_unique<FsmPolicy>(options);
}

}  // namespace tandem
