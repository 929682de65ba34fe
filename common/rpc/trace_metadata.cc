#include "common/rpc/trace_metadata.h"

#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace tandem {
namespace {

absl::string_view TextOf(const grpc::string_ref& text) {
  return {text.data(), text.size()};
}

}  // namespace

TraceContext TraceContextOf(const CallMetadata& metadata) {
  const auto [parent, parents_end] = metadata.equal_range(kTraceparentKey);
  if (parent == parents_end || std::next(parent) != parents_end) return {};
  std::optional<TraceContext> trace = ParseTraceparent(TextOf(parent->second));
  if (!trace.has_value()) return {};
  std::vector<absl::string_view> states;
  const auto [begin, end] = metadata.equal_range(kTracestateKey);
  for (auto state = begin; state != end; ++state) states.push_back(TextOf(state->second));
  trace->state = CombineTracestate(states);
  return *std::move(trace);
}

void AddTraceContext(const TraceContext& trace, grpc::ClientContext& context) {
  if (!trace.valid()) return;
  context.AddMetadata(kTraceparentKey, FormatTraceparent(trace));
  if (!trace.state.empty()) context.AddMetadata(kTracestateKey, trace.state);
}

}  // namespace tandem
