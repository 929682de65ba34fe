#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/tracing/trace_context.h"

namespace tandem {

// The side of a call that a span describes. The numbers are OTLP's.
enum class SpanKind { kInternal = 1, kServer = 2, kClient = 3 };

struct SpanAttribute {
  absl::string_view key;  // A literal.
  std::variant<bool, int64_t, double, std::string, std::vector<std::string>> value;
};

// Texts of attributes are cut to this many bytes.
inline constexpr size_t kMaxAttributeBytes = 256;

// A span that has ended.
struct SpanRecord {
  TraceContext context;    // Its own.
  uint64_t parent_id = 0;  // 0: the trace's root.
  absl::string_view name;  // A literal.
  SpanKind kind = SpanKind::kInternal;
  absl::Time start;
  absl::Time end;
  bool failed = false;
  std::vector<SpanAttribute> attributes;
};

// Takes ended spans. Thread-safe; returns at once, even if the span is dropped.
class SpanSink {
 public:
  virtual ~SpanSink() = default;
  virtual void Offer(SpanRecord span) = 0;
};

// One span, from its start to its end. If the trace is not sampled, only the context to pass on.
//
//   Tracer::StartServer, Child --> recording --End--> handed to the tracer's sink
//                                      '-- destroyed, assigned to: never told
//
// Attributes never contain prompts or outputs, nor texts that might quote them, such as error messages. A
// span that does not record ignores everything and allocates nothing. Used by one thread at a time.
class Span {
 public:
  // Not recording, and no context.
  Span() = default;
  Span(Span&&) = default;
  Span& operator=(Span&&) = default;

  // The context for calls made on behalf of this span.
  const TraceContext& context() const { return context_; }
  bool recording() const { return record_ != nullptr; }

  // A span below this one, which records if this one does. `name` is a literal.
  Span Child(absl::string_view name, SpanKind kind, absl::Time start) const;

  // `key` is a literal; each is set once. Texts become UTF-8 of at most kMaxAttributeBytes.
  void Set(absl::string_view key, absl::string_view value);
  void Set(absl::string_view key, const char* value) { Set(key, absl::string_view(value)); }
  void Set(absl::string_view key, const std::string& value) { Set(key, absl::string_view(value)); }
  void Set(absl::string_view key, std::vector<std::string> values);
  void Set(absl::string_view key, bool value);
  void Set(absl::string_view key, int64_t value);
  void Set(absl::string_view key, int value) { Set(key, int64_t{value}); }
  void Set(absl::string_view key, uint32_t value) { Set(key, int64_t{value}); }
  void Set(absl::string_view key, uint64_t value);
  void Set(absl::string_view key, double value);

  // The conventions' attributes of a gRPC call: its service and method, as in SetCall("tandem.v1.Verifier",
  // "Generate"), and for a client "host:port" of the server.
  void SetCall(absl::string_view service, absl::string_view method);
  void SetServer(absl::string_view endpoint);
  // The call's status. A client's span fails with every error, a server's only with errors of the server.
  void SetStatus(absl::StatusCode code);

  // Ends the span; later calls are ignored. If the clock was set back meanwhile, the duration is 0.
  void End(absl::Time now);

 private:
  friend class Tracer;

  TraceContext context_;
  const class Tracer* tracer_ = nullptr;
  std::unique_ptr<SpanRecord> record_;
};

// Starts the spans of a process. Thread-safe; outlives its spans.
class Tracer {
 public:
  struct Options {
    // The share of traces started here that is sampled. Traces of callers are sampled if the caller says so.
    double sample_ratio = 1.0;
    SpanSink* sink = nullptr;        // Outlives the tracer; none: nothing is recorded.
    std::function<uint64_t()> draw;  // Random bits for ids. Thread-safe.
  };
  explicit Tracer(Options options) : options_(std::move(options)) {}

  // The span of a call that arrived with `parent`, or, if that is not valid, the first of a new trace.
  // Without recording, a caller's context is passed on unchanged.
  Span StartServer(absl::string_view name, const TraceContext& parent, absl::Time start) const;

  // Records nothing, and gives new traces random ids.
  static const Tracer& Off();

 private:
  friend class Span;

  uint64_t DrawId() const;
  bool Samples(uint64_t trace_low) const;

  const Options options_;
};

}  // namespace tandem
