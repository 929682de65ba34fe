#pragma once

#include <cstdint>
#include <memory>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/config/flags.h"
#include "common/grammar/constraint_compiler.h"
#include "common/metrics/metrics.h"
#include "verifier/request_wire.h"

namespace tandem {

// A verifier's flags about structured output.
struct ConstraintFlags {
  uint64_t max_kib = 256;
  uint32_t max_depth = 64;
  absl::Duration compile_time = absl::Seconds(10);
  uint64_t compile_memory_mib = 1024;
  uint64_t cache_mib = 256;
  uint32_t max_waiting = 64;

  ConstraintLimits limits() const { return {.max_bytes = max_kib << 10, .max_depth = max_depth}; }
};
void DeclareConstraintFlags(ConstraintFlags& options, Flags& flags);

// What becomes of constraints, as docs/metrics.md lists it. Safe from any thread.
class ConstraintMetrics final : public ConstraintCompilerListener {
 public:
  explicit ConstraintMetrics(MetricsRegistry* registry);

  void OnLookup(bool known) override;
  void OnCompiled(double seconds, bool ok) override;
  void OnCacheSize(uint64_t bytes) override { cache_bytes_.Set(static_cast<double>(bytes)); }

 private:
  Counter known_;
  Counter unknown_;
  Histogram compiled_seconds_;
  Histogram refused_seconds_;
  Gauge cache_bytes_;
};

// What compiles constraints for a target; none, which the log tells, if this build has none or the target no
// end-of-text token. `clock` and `metrics` outlive it.
std::unique_ptr<ConstraintCompiler> StartConstraintCompiler(const ConstraintFlags& options,
                                                            const ServedTarget& target, const Clock* clock,
                                                            ConstraintMetrics* metrics);

}  // namespace tandem
