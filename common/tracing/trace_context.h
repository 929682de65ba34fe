#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tandem {

// Which trace something belongs to, and below which of its spans: what one service tells the next by the
// headers `traceparent` and `tracestate` (W3C Trace Context, https://www.w3.org/TR/trace-context/).
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
// Longer ones are not looked at: version 00 has 55 bytes, and what later ones may append is not needed.
inline constexpr size_t kMaxTraceparentBytes = 256;
// What is passed on of a tracestate, at most.
inline constexpr size_t kMaxTracestateBytes = 512;
inline constexpr size_t kMaxTracestateMembers = 32;

// A `traceparent`, without its state. Nothing for what the recommendation does not allow: upper-case digits,
// ids that are all zero, version ff, anything behind the flags in version 00. Of a later version the four
// fields are read as those of version 00, if they stand where they do there.
std::optional<TraceContext> ParseTraceparent(absl::string_view traceparent);

// As version 00. The context is valid.
std::string FormatTraceparent(const TraceContext& context);

// The members of all `tracestate` headers, in order, without blanks around them. Empty if there are none, if
// one is malformed or a key occurs twice, or if there are more than 32: a state that is broken is dropped
// whole. One with more than 512 bytes loses its members of more than 128 bytes, and if that does not do, its
// last ones.
std::string CombineTracestate(absl::Span<const absl::string_view> headers);

// The context of what came as these two; not valid if `traceparent` is not.
TraceContext ParseTraceContext(absl::string_view traceparent, absl::string_view tracestate);

// 32 lower-case hexadecimal digits, as in logs; empty for a context that is not valid.
std::string TraceIdText(const TraceContext& context);

}  // namespace tandem
