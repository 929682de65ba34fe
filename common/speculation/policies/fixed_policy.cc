#include "common/speculation/policies/fixed_policy.h"

#include <algorithm>

namespace tandem {
namespace {

class FixedPolicy final : public WindowPolicy {
 public:
  explicit FixedPolicy(const FixedOptions& options) : options_(options) {}

  absl::string_view name() const override { return "fixed"; }
  void Observe(const RoundOutcome&) override {}
  uint32_t NextDepth(const RoundCosts& costs) override {
    return options_.depth == 0 ? costs.limits.max_depth : std::min(options_.depth, costs.limits.max_depth);
  }

 private:
  const FixedOptions options_;
};

}  // namespace

std::unique_ptr<WindowPolicy> MakeFixedPolicy(const FixedOptions& options) {
  return std::make_unique<FixedPolicy>(options);
}

}  // namespace tandem
