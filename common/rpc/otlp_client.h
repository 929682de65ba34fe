#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/tracing/span_exporter.h"
#include "grpcpp/client_context.h"
#include "grpcpp/security/credentials.h"
#include "opentelemetry/proto/collector/trace/v1/trace_service.grpc.pb.h"

namespace tandem {

// The attributes of a process that all its spans carry.
struct TracedProcess {
  std::string service;   // "tandem-router".
  std::string version;   // Of Tandem.
  std::string instance;  // Tells processes of a service apart.
};

// Converts spans to OTLP.
opentelemetry::proto::collector::trace::v1::ExportTraceServiceRequest SpansToProto(
    const TracedProcess& process, const std::vector<SpanRecord>& spans);

// Sends spans to an OTLP receiver over gRPC (TraceService.Export). If the receiver cannot be reached, waits
// for it until the deadline of the batch.
class OtlpClient final : public SpanTransport {
 public:
  // Null `credentials`: without TLS.
  OtlpClient(const std::string& endpoint, TracedProcess process,
             const std::shared_ptr<grpc::ChannelCredentials>& credentials);

  absl::StatusOr<size_t> Send(const std::vector<SpanRecord>& spans, absl::Time deadline) override;
  void Cancel() override;

 private:
  const TracedProcess process_;
  const std::unique_ptr<opentelemetry::proto::collector::trace::v1::TraceService::Stub> stub_;
  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* under_way_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace tandem
