#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tandem {

// The trace and the parent span of a call, which services pass on in the headers `traceparent` and
// `tracestate` (W3C Trace Context, https://www.w3.org/TR/trace-context/).
struct TraceContext {
  uint64_t trace_high = 0;  // The trace's id, 128 bits; 0 is none.
  uint64_t trace_low = 0;
  uint64_t span_id = 0;  // 0 is none.
  bool sampled = false;  // Whether the spans of this trace are recorded.
  std::string state;     // `tracestate`: others' notes, passed on as they came.

  bool valid() const { return (trace_high != 0 || trace_low != 0) && span_id != 0; }
};

inline constexpr char kTraceparentKey[] = "traceparent";
inline constexpr char kTracestateKey[] = "tracestate";
// Longer ones are ignored: version 00 has 55 bytes, and additions of later versions are not needed.
inline constexpr size_t kMaxTraceparentBytes = 256;
// The largest tracestate that is passed on.
inline constexpr size_t kMaxTracestateBytes = 512;
inline constexpr size_t kMaxTracestateMembers = 32;

// Parses a `traceparent`, without its state. nullopt if it violates the recommendation: upper-case digits,
// ids of zeros, version ff, anything after the flags in version 00. In later versions, the four fields are
// read as in version 00, if they have the same positions.
std::optional<TraceContext> ParseTraceparent(absl::string_view traceparent);

// Formats a valid context, in version 00.
std::string FormatTraceparent(const TraceContext& context);

// The members of all `tracestate` headers, in order, without blanks around them. Empty if there are none, if
// one is malformed, if a key occurs twice, or if there are more than 32: an invalid state is dropped as a
// whole. A state of more than 512 bytes loses its members of more than 128 bytes and, if that is not enough,
// its last ones.
std::string CombineTracestate(absl::Span<const absl::string_view> headers);

// The context in these two headers; not valid if `traceparent` is not.
TraceContext ParseTraceContext(absl::string_view traceparent, absl::string_view tracestate);

// 32 lower-case hexadecimal digits, as in logs; empty for a context that is not valid.
std::string TraceIdText(const TraceContext& context);

}  // namespace tandem
