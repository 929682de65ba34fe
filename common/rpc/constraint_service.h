#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/config/flags.h"
#include "common/grammar/constraint.h"
#include "common/grammar/constraint_compiler.h"
#include "common/metrics/metrics.h"

namespace tandem {

// A server's flags about structured output.
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

// Metrics about constraints, as listed in docs/reference/metrics.md. Thread-safe.
class ConstraintMetrics final : public ConstraintCompilerListener {
 public:
  // `prefix`: of the metrics' names, such as tandem_verifier.
  ConstraintMetrics(MetricsRegistry* registry, absl::string_view prefix);

  void OnLookup(bool known) override;
  void OnCompiled(double seconds, bool ok) override;
  void OnCacheChange(int64_t bytes) override { cache_bytes_.Add(static_cast<double>(bytes)); }

 private:
  Counter known_;
  Counter unknown_;
  Histogram compiled_seconds_;
  Histogram refused_seconds_;
  Gauge cache_bytes_;
};

// Starts a compiler of constraints for a vocabulary. Null, with a log message, if that is impossible because
// this build has no grammars or the model has no end-of-text token. `clock` and `metrics` outlive it.
std::unique_ptr<ConstraintCompiler> StartConstraintCompiler(
    const ConstraintFlags& options, absl::StatusOr<std::shared_ptr<const GrammarVocabulary>> vocabulary,
    const Clock* clock, ConstraintMetrics* metrics);

}  // namespace tandem
