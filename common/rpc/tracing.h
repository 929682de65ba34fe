#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/metrics/metrics.h"
#include "common/rpc/tls_files.h"
#include "common/tracing/span.h"
#include "common/tracing/span_exporter.h"

namespace tandem {

class Flags;

// A server's flags about traces.
struct TracingFlags {
  std::string endpoint;  // Empty: spans are not recorded.
  double sample = 1.0;
  TlsFiles tls;
};

// Adds the flags, with what `options` holds as defaults. `options` outlives the parsing.
void DeclareTracingFlags(TracingFlags& options, Flags& flags);

// A process' tracer and, with an endpoint, the export of its spans:
//
//   tandem_trace_spans_exported_total         spans that the receiver has taken
//   tandem_trace_spans_dropped_total{reason}  spans that were lost: SpanExporter says why
//
// Destroy all users of the tracer first. The destructor exports the remaining spans, for at most two seconds.
class Tracing {
 public:
  // `service`: such as "tandem-router". The registry outlives this. InvalidArgument, naming the flag, for an
  // endpoint that is not host:port, or for TLS files that cannot be used.
  static absl::StatusOr<std::unique_ptr<Tracing>> Start(const TracingFlags& flags, absl::string_view service,
                                                        absl::string_view version, MetricsRegistry* registry);

  const Tracer& tracer() const { return *tracer_; }

 private:
  Tracing() = default;

  std::unique_ptr<SpanExporter> exporter_;
  std::unique_ptr<Tracer> tracer_;
};

// The checks of Start that need no connection: for --check-config, and before models are loaded.
absl::Status CheckTracingFlags(const TracingFlags& flags);

}  // namespace tandem
