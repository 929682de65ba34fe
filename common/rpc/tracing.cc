#include "common/rpc/tracing.h"

#include <cstdint>
#include <functional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/log.h"
#include "common/base/random_bits.h"
#include "common/base/status_macros.h"
#include "common/config/flags.h"
#include "common/rpc/otlp_client.h"
#include "common/rpc/security.h"

namespace tandem {
namespace {

absl::Status CheckEndpoint(absl::string_view endpoint) {
  const size_t colon = endpoint.rfind(':');
  uint32_t port = 0;
  const bool has_port = colon != absl::string_view::npos && colon > 0 &&
                        absl::SimpleAtoi(endpoint.substr(colon + 1), &port) && port > 0 && port < 65536;
  // A scheme belongs to OTLP over HTTP, which is another protocol on another port.
  if (has_port && endpoint.find('/') == absl::string_view::npos) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--otlp-endpoint: \"", endpoint, "\", expected host:port of an OTLP receiver over gRPC"));
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> Credentials(const TlsFiles& files) {
  absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> credentials =
      OpenClientSecurity(files, absl::Now());
  if (credentials.ok()) return credentials;
  return absl::Status(credentials.status().code(),
                      absl::StrCat("otlp-tls-ca: ", credentials.status().message()));
}

}  // namespace

void DeclareTracingFlags(TracingFlags& options, Flags& flags) {
  flags.Group("Traces").Add(
      "otlp-endpoint", &options.endpoint,
      "host:port of an OpenTelemetry receiver to send spans to (OTLP over gRPC); empty: record no spans.");
  flags.Settings("Traces")
      .Add("trace-sample", &options.sample,
           "Share of traces to record, of those that begin here. For a trace that a caller began, the caller "
           "decides.")
      .InRange(0, 1)
      .Add("otlp-tls-ca", &options.tls.ca,
           "PEM file of the receiver's certificate authorities; if given, spans are sent over TLS.");
}

absl::Status CheckTracingFlags(const TracingFlags& flags) {
  if (flags.endpoint.empty()) {
    if (!flags.tls.any()) return absl::OkStatus();
    return absl::InvalidArgumentError("otlp-tls-ca: expected with --otlp-endpoint");
  }
  TANDEM_RETURN_IF_ERROR(CheckEndpoint(flags.endpoint));
  return Credentials(flags.tls).status();
}

absl::StatusOr<std::unique_ptr<Tracing>> Tracing::Start(const TracingFlags& flags, absl::string_view service,
                                                        absl::string_view version,
                                                        MetricsRegistry* registry) {
  TANDEM_RETURN_IF_ERROR(CheckTracingFlags(flags));
  const Counter exported = registry
                               ->AddCounter({.name = "tandem_trace_spans_exported_total",
                                             .help = "Spans that the OTLP receiver accepted.",
                                             .labels = {}})
                               .With({});
  CounterFamily& dropped = registry->AddCounter(
      {.name = "tandem_trace_spans_dropped_total",
       .help = "Spans that were not exported: the queue was full (queue_full), the receiver rejected them "
               "(rejected), the process ended (shutdown), or the export failed with this status code.",
       .labels = {"reason"}});
  for (const char* reason : {"queue_full", "rejected", "shutdown"}) dropped.With({reason});
  std::unique_ptr<Tracing> tracing(new Tracing());
  std::function<uint64_t()> draw = SystemRandomBits();
  if (!flags.endpoint.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ChannelCredentials> credentials,
                            Credentials(flags.tls));
    TracedProcess process{.service = std::string(service),
                          .version = std::string(version),
                          .instance = absl::StrFormat("%016x%016x", draw(), draw())};
    LogInfo("tracing", {{"endpoint", flags.endpoint},
                        {"sample", absl::StrCat(flags.sample)},
                        {"instance", process.instance}});
    tracing->exporter_ = std::make_unique<SpanExporter>(
        SpanExporter::Options{},
        std::make_unique<OtlpClient>(flags.endpoint, std::move(process), credentials),
        SpanExporter::Observer{
            .on_exported = [exported](size_t count) { exported.Increment(static_cast<double>(count)); },
            .on_dropped =
                [&dropped](absl::string_view reason, size_t count) {
                  dropped.With({reason}).Increment(static_cast<double>(count));
                }});
  }
  tracing->tracer_ = std::make_unique<Tracer>(Tracer::Options{
      .sample_ratio = flags.sample, .sink = tracing->exporter_.get(), .draw = std::move(draw)});
  return tracing;
}

}  // namespace tandem
