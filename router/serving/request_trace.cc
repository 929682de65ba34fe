#include "router/serving/request_trace.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/speculation/source_attributes.h"
#include "router/drafters/source_kind.h"

namespace tandem::router {

RequestTrace::RequestTrace(const Tracer& tracer, const TraceContext& parent, absl::Time now)
    : arrival_(now),
      call_(tracer.StartServer("tandem.v1.Generation/Generate", parent, now)),
      queue_(call_.Child("queue", SpanKind::kInternal, now)) {}

void RequestTrace::Describe(const v1::GenerateRequest& request, absl::string_view tenant) {
  if (!call_.recording()) return;
  call_.SetCall("tandem.v1.Generation", "Generate");
  call_.Set("gen_ai.provider.name", "tandem");
  call_.Set("gen_ai.operation.name", request.has_chat() ? "chat" : "text_completion");
  if (!request.model().empty()) call_.Set("gen_ai.request.model", request.model());
  if (request.stopping().has_max_tokens()) {
    call_.Set("gen_ai.request.max_tokens", request.stopping().max_tokens());
  }
  const v1::SamplingParameters& sampling = request.sampling();
  if (sampling.has_temperature()) call_.Set("gen_ai.request.temperature", double{sampling.temperature()});
  if (sampling.has_top_p()) call_.Set("gen_ai.request.top_p", double{sampling.top_p()});
  if (sampling.has_top_k()) call_.Set("gen_ai.request.top_k", sampling.top_k());
  call_.Set("tandem.resumed_tokens", request.resume().emitted().ids_size());
  call_.Set("tandem.tenant", tenant);
}

void RequestTrace::OnStage(Stage stage, const GenerationFacts& facts, absl::Time now) {
  switch (stage) {
    case Stage::kReceive:
      return Describe(*facts.asked, facts.tenant->name);
    case Stage::kRoute:
      call_.Set("tandem.request_id", facts.request_id);
      return call_.Set("gen_ai.response.model", facts.model_name);
    case Stage::kPlace:
      return queue_.End(now);
    case Stage::kComplete:
      return OnComplete(facts, now);
    case Stage::kAdmit:
    case Stage::kEncode:
    case Stage::kChoose:
      return;
  }
}

void RequestTrace::OnComplete(const GenerationFacts& facts, absl::Time now) {
  if (!call_.recording()) return;
  Span tokenize = call_.Child("tokenize", SpanKind::kInternal, facts.ReachedAt(Stage::kPlace));
  tokenize.Set("gen_ai.usage.input_tokens", static_cast<uint32_t>(facts.request.prompt().ids_size()));
  tokenize.End(facts.ReachedAt(Stage::kEncode));
  Span choice = call_.Child("choose drafter", SpanKind::kInternal, facts.ReachedAt(Stage::kEncode));
  choice.Set("tandem.drafter", facts.drafter());
  choice.Set("tandem.choice.reason", facts.selection.reason);
  choice.Set("tandem.choice.candidates", uint64_t{facts.selection.candidates.size()});
  if (facts.decision.predicted.has_value()) {
    choice.Set("tandem.choice.predicted_acceptance", facts.decision.predicted->mean);
  }
  choice.End(now);
}

void RequestTrace::OnAttempt(const GenerationFacts& facts, int number, absl::string_view endpoint,
                             absl::Time now) {
  attempt_ = call_.Child("tandem.v1.Verifier/Generate", SpanKind::kClient, now);
  attempt_.SetCall("tandem.v1.Verifier", "Generate");
  attempt_.SetServer(endpoint);
  attempt_.Set("tandem.attempt", number);
  attempt_.Set("tandem.emitted_tokens", uint64_t{facts.num_output});
}

void RequestTrace::OnAttemptEnded(const GenerationFacts&, const absl::Status& status, absl::Time now) {
  attempt_.SetStatus(status.code());
  attempt_.End(now);
}

void RequestTrace::OnEvent(const GenerationFacts&, v1::GenerateResponse& event, absl::Time now) {
  if (event.has_chunk() && !std::exchange(has_tokens_, true)) {
    call_.Set("tandem.time_to_first_token_seconds", absl::ToDoubleSeconds(now - arrival_));
  }
  if (event.has_finished()) OnFinished(event.finished());
}

void RequestTrace::OnFinished(const v1::GenerationFinished& finished) {
  if (!call_.recording()) return;
  const bool length = finished.reason() == v1::FINISH_REASON_MAX_TOKENS;
  call_.Set("gen_ai.response.finish_reasons", std::vector<std::string>{length ? "length" : "stop"});
  call_.Set("gen_ai.usage.input_tokens", finished.usage().prompt_tokens());
  call_.Set("tandem.draft_tokens", finished.speculation().draft_tokens());
  call_.Set("tandem.accepted_tokens", finished.speculation().accepted_tokens());
  std::array<uint64_t, kNumSourceKinds> draft_tokens = {};
  std::array<uint64_t, kNumSourceKinds> accepted_tokens = {};
  for (const v1::SourceStats& source : finished.speculation().by_source()) {
    const auto by = static_cast<size_t>(KindOf(source.source()));
    draft_tokens[by] += source.draft_tokens();
    accepted_tokens[by] += source.accepted_tokens();
  }
  for (size_t i = 0; i < kNumSourceKinds; ++i) {
    call_.Set(kDraftTokensAttributes[i], draft_tokens[i]);
    call_.Set(kAcceptedTokensAttributes[i], accepted_tokens[i]);
  }
}

void RequestTrace::OnEnded(const GenerationFacts& facts, const absl::Status& status, absl::Time now) {
  // For unauthenticated callers, a trace would contain no more than the log.
  if (facts.tenant == nullptr || !call_.recording()) return;
  queue_.End(now);
  call_.Set("gen_ai.usage.output_tokens", facts.num_sent);
  call_.SetStatus(status.code());
  call_.End(now);
}

}  // namespace tandem::router
