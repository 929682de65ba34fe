#include "common/tracing/span.h"

#include <algorithm>
#include <limits>

#include "absl/strings/numbers.h"
#include "common/base/random_bits.h"
#include "common/base/utf8.h"

namespace tandem {
namespace {

// 2^63, which a double holds exactly.
constexpr double kHalfRange = 9223372036854775808.0;

// What the conventions for gRPC take for the server's own fault.
bool IsServersFault(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDataLoss:
      return true;
    default:
      return false;
  }
}

template <class Value>
void Add(absl::string_view key, Value value, SpanRecord& record) {
  SpanAttribute& attribute = record.attributes.emplace_back();
  attribute.key = key;
  attribute.value.emplace<Value>(std::move(value));
}

}  // namespace

Span Span::Child(absl::string_view name, SpanKind kind, absl::Time start) const {
  Span child;
  child.context_ = context_;
  if (!recording()) return child;
  child.tracer_ = tracer_;
  child.context_.span_id = tracer_->DrawId();
  child.record_ = std::make_unique<SpanRecord>();
  child.record_->context = child.context_;
  child.record_->parent_id = context_.span_id;
  child.record_->name = name;
  child.record_->kind = kind;
  child.record_->start = start;
  return child;
}

void Span::Set(absl::string_view key, absl::string_view value) {
  if (recording()) Add(key, CleanUtf8(value, kMaxAttributeBytes), *record_);
}

void Span::Set(absl::string_view key, std::vector<std::string> values) {
  if (!recording()) return;
  for (std::string& value : values) value = CleanUtf8(value, kMaxAttributeBytes);
  Add(key, std::move(values), *record_);
}

void Span::Set(absl::string_view key, bool value) {
  if (recording()) Add(key, value, *record_);
}

void Span::Set(absl::string_view key, int64_t value) {
  if (recording()) Add(key, value, *record_);
}

void Span::Set(absl::string_view key, uint64_t value) {
  Set(key, static_cast<int64_t>(std::min(value, static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))));
}

void Span::Set(absl::string_view key, double value) {
  if (recording()) Add(key, value, *record_);
}

void Span::SetCall(absl::string_view service, absl::string_view method) {
  Set("rpc.system", "grpc");
  Set("rpc.service", service);
  Set("rpc.method", method);
}

void Span::SetServer(absl::string_view endpoint) {
  if (!recording()) return;
  const size_t colon = endpoint.rfind(':');
  int64_t port = 0;
  if (colon == absl::string_view::npos || !absl::SimpleAtoi(endpoint.substr(colon + 1), &port)) {
    Set("server.address", endpoint);
    return;
  }
  Set("server.address", endpoint.substr(0, colon));
  Set("server.port", port);
}

void Span::SetStatus(absl::StatusCode code) {
  if (!recording()) return;
  Set("rpc.grpc.status_code", static_cast<int64_t>(code));
  if (code == absl::StatusCode::kOk) return;
  Set("error.type", absl::StatusCodeToString(code));
  record_->failed = record_->kind != SpanKind::kServer || IsServersFault(code);
}

void Span::End(absl::Time now) {
  if (!recording()) return;
  record_->end = std::max(now, record_->start);
  tracer_->options_.sink->Offer(std::move(*record_));
  record_.reset();
}

Span Tracer::StartServer(absl::string_view name, const TraceContext& parent, absl::Time start) const {
  Span span;
  span.context_ = parent;
  const bool is_root = !parent.valid();
  if (is_root) {
    span.context_ = {.trace_high = DrawId(), .trace_low = DrawId()};
    span.context_.sampled = options_.sink != nullptr && Samples(span.context_.trace_low);
  }
  const bool records = options_.sink != nullptr && span.context_.sampled;
  if (is_root || records) span.context_.span_id = DrawId();
  if (!records) return span;
  span.tracer_ = this;
  span.record_ = std::make_unique<SpanRecord>();
  span.record_->context = span.context_;
  span.record_->parent_id = is_root ? 0 : parent.span_id;
  span.record_->name = name;
  span.record_->kind = SpanKind::kServer;
  span.record_->start = start;
  return span;
}

uint64_t Tracer::DrawId() const {
  while (true) {
    const uint64_t id = options_.draw();
    if (id != 0) return id;
  }
}

// By the id alone, so that services which decide for themselves decide alike: its lower 63 bits, which are
// random, as a share of their range.
bool Tracer::Samples(uint64_t trace_low) const {
  if (options_.sample_ratio >= 1.0) return true;
  return static_cast<double>(trace_low & (~uint64_t{0} >> 1)) < options_.sample_ratio * kHalfRange;
}

const Tracer& Tracer::Off() {
  static const auto* const off = new Tracer({.draw = SystemRandomBits()});
  return *off;
}

}  // namespace tandem
