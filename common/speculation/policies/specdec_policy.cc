#include "common/speculation/policies/specdec_policy.h"

namespace tandem {
namespace {

class SpecDecPolicy final : public WindowPolicy {
 public:
  explicit SpecDecPolicy(const SpecDecOptions& options) : options_(options) {}

  absl::string_view name() const override { return "specdec++"; }
  void Observe(const RoundOutcome&) override {}
  uint32_t NextDepth(const RoundCosts& costs) override { return costs.limits.max_depth; }
  double stop_below() const override { return 1.0 - options_.threshold; }

 private:
  const SpecDecOptions options_;
};

}  // namespace

std::unique_ptr<WindowPolicy> MakeSpecDecPolicy(const SpecDecOptions& options) {
  return std::make_unique<SpecDecPolicy>(options);
}

}  // namespace tandem
