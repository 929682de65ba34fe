#include "common/rpc/constraint_service.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"

namespace tandem {

void DeclareConstraintFlags(ConstraintFlags& options, Flags& flags) {
  flags.Settings("Structured output")
      .Add("max-constraint", &options.max_kib, "Largest constraint of a request, in KiB.")
      .InRange(1, 1024)
      .Add("max-constraint-depth", &options.max_depth,
           "Most levels of nesting of a constraint's JSON values or brackets.")
      .InRange(1, 1000)
      .Add("constraint-compile-time", &options.compile_time,
           "Most CPU time to compile one constraint, in a process of its own.")
      .Add("constraint-compile-memory", &options.compile_memory_mib,
           "Most MiB of memory for each of two such processes.")
      .InRange(64, 1 << 20)
      .Add("constraint-cache", &options.cache_mib, "Most MiB of compiled constraints to cache.")
      .InRange(0, 1 << 20)
      .Add("max-waiting-constraints", &options.max_waiting,
           "Most constraints that wait to be compiled; further ones are refused.")
      .InRange(1, 1e6);
}

ConstraintMetrics::ConstraintMetrics(MetricsRegistry* registry, absl::string_view prefix) {
  CounterFamily& lookups = registry->AddCounter(
      {absl::StrCat(prefix, "_constraints_total"),
       "Constraints of requests: found in the cache (known) or compiled for the request (new).",
       {"state"}});
  known_ = lookups.With({"known"});
  unknown_ = lookups.With({"new"});
  HistogramFamily& seconds =
      registry->AddHistogram({absl::StrCat(prefix, "_constraint_compile_seconds"),
                              "Time to compile a constraint, by result: compiled or refused.",
                              {"result"}},
                             ExponentialBuckets(0.001, 2.0, 15));
  compiled_seconds_ = seconds.With({"compiled"});
  refused_seconds_ = seconds.With({"refused"});
  cache_bytes_ =
      registry
          ->AddGauge({absl::StrCat(prefix, "_constraint_cache_bytes"), "Memory of cached constraints.", {}})
          .With();
}

void ConstraintMetrics::OnLookup(bool known) {
  (known ? known_ : unknown_).Increment();
}

void ConstraintMetrics::OnCompiled(double seconds, bool ok) {
  (ok ? compiled_seconds_ : refused_seconds_).Observe(seconds);
}

std::unique_ptr<ConstraintCompiler> StartConstraintCompiler(
    const ConstraintFlags& options, absl::StatusOr<std::shared_ptr<const GrammarVocabulary>> vocabulary,
    const Clock* clock, ConstraintMetrics* metrics) {
  if (!vocabulary.ok()) {
    LogWarning("constraints are off", {{"reason", std::string(vocabulary.status().message())}});
    return nullptr;
  }
  return std::make_unique<ConstraintCompiler>(
      ConstraintCompiler::Options{.program = DefaultCompileProgram(),
                                  .max_time = options.compile_time,
                                  .max_bytes = options.compile_memory_mib << 20,
                                  .cache_bytes = options.cache_mib << 20,
                                  .max_waiting = options.max_waiting},
      *std::move(vocabulary), clock, metrics);
}

}  // namespace tandem
