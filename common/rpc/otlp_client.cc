#include "common/rpc/otlp_client.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <variant>

#include "absl/time/time.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"

namespace tandem {
namespace {

namespace collector = opentelemetry::proto::collector::trace::v1;
namespace otlp = opentelemetry::proto::trace::v1;
using opentelemetry::proto::common::v1::AnyValue;
using opentelemetry::proto::common::v1::KeyValue;

// Ids go as bytes, the highest first.
void AppendBytes(uint64_t id, std::string* bytes) {
  for (int shift = 56; shift >= 0; shift -= 8) bytes->push_back(static_cast<char>(id >> shift & 0xff));
}

void AddText(const std::string& key, const std::string& value,
             google::protobuf::RepeatedPtrField<KeyValue>* attributes) {
  KeyValue& attribute = *attributes->Add();
  attribute.set_key(key);
  attribute.mutable_value()->set_string_value(value);
}

struct ValueSetter {
  AnyValue* proto;
  void operator()(bool value) const { proto->set_bool_value(value); }
  void operator()(int64_t value) const { proto->set_int_value(value); }
  void operator()(double value) const { proto->set_double_value(value); }
  void operator()(const std::string& value) const { proto->set_string_value(value); }
  void operator()(const std::vector<std::string>& values) const {
    auto* const array = proto->mutable_array_value();
    for (const std::string& value : values) array->add_values()->set_string_value(value);
  }
};

uint64_t UnixNanoseconds(absl::Time time) {
  return static_cast<uint64_t>(std::max<int64_t>(absl::ToUnixNanos(time), 0));
}

void SpanToProto(const SpanRecord& span, otlp::Span* proto) {
  AppendBytes(span.context.trace_high, proto->mutable_trace_id());
  AppendBytes(span.context.trace_low, proto->mutable_trace_id());
  AppendBytes(span.context.span_id, proto->mutable_span_id());
  proto->set_trace_state(span.context.state);
  if (span.parent_id != 0) AppendBytes(span.parent_id, proto->mutable_parent_span_id());
  proto->set_name(span.name.data(), span.name.size());
  proto->set_kind(static_cast<otlp::Span::SpanKind>(span.kind));
  proto->set_start_time_unix_nano(UnixNanoseconds(span.start));
  proto->set_end_time_unix_nano(UnixNanoseconds(span.end));
  for (const SpanAttribute& attribute : span.attributes) {
    KeyValue& entry = *proto->add_attributes();
    entry.set_key(attribute.key.data(), attribute.key.size());
    std::visit(ValueSetter{entry.mutable_value()}, attribute.value);
  }
  if (span.failed) proto->mutable_status()->set_code(otlp::Status::STATUS_CODE_ERROR);
}

}  // namespace

collector::ExportTraceServiceRequest SpansToProto(const TracedProcess& process,
                                                  const std::vector<SpanRecord>& spans) {
  collector::ExportTraceServiceRequest request;
  otlp::ResourceSpans& resource = *request.add_resource_spans();
  auto* const attributes = resource.mutable_resource()->mutable_attributes();
  AddText("service.name", process.service, attributes);
  AddText("service.version", process.version, attributes);
  AddText("service.instance.id", process.instance, attributes);
  otlp::ScopeSpans& scope = *resource.add_scope_spans();
  scope.mutable_scope()->set_name("tandem");
  scope.mutable_scope()->set_version(process.version);
  for (const SpanRecord& span : spans) SpanToProto(span, scope.add_spans());
  return request;
}

OtlpClient::OtlpClient(const std::string& endpoint, TracedProcess process,
                       const std::shared_ptr<grpc::ChannelCredentials>& credentials)
    : process_(std::move(process)),
      stub_(collector::TraceService::NewStub(tandem::CreateChannel(endpoint, credentials))) {}

absl::StatusOr<size_t> OtlpClient::Send(const std::vector<SpanRecord>& spans, absl::Time deadline) {
  const collector::ExportTraceServiceRequest request = SpansToProto(process_, spans);
  collector::ExportTraceServiceResponse response;
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(deadline));
  context.set_wait_for_ready(true);
  {
    absl::MutexLock lock(&mutex_);
    if (cancelled_) return absl::CancelledError("the export was cancelled");
    under_way_ = &context;
  }
  const grpc::Status status = stub_->Export(&context, request, &response);
  {
    absl::MutexLock lock(&mutex_);
    under_way_ = nullptr;
  }
  if (!status.ok()) return FromGrpcStatus(status);
  return static_cast<size_t>(std::max<int64_t>(response.partial_success().rejected_spans(), 0));
}

void OtlpClient::Cancel() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
  if (under_way_ != nullptr) under_way_->TryCancel();
}

}  // namespace tandem
