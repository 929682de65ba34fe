#include "verifier/rpc/session_trace.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "common/speculation/source_attributes.h"

namespace tandem {
namespace {

absl::string_view KindText(RoundKind kind) {
  switch (kind) {
    case RoundKind::kHit:
      return "hit";
    case RoundKind::kMiss:
      return "miss";
    case RoundKind::kUndrafted:
      break;
  }
  return "undrafted";
}

}  // namespace

SessionTrace::SessionTrace(Span call, absl::Time arrival)
    : call_(std::move(call)), queue_(call_.Child("queue", SpanKind::kInternal, arrival)) {}

void SessionTrace::OnConstraint(absl::Time now) {
  constrained_ = true;
  compile_ = call_.Child("constraint compile", SpanKind::kInternal, now);
}

void SessionTrace::OnCompiled(absl::StatusCode code, absl::Time now) {
  compile_.SetStatus(code);
  compile_.End(now);
}

void SessionTrace::OnStarted(absl::Time now) {
  queue_.End(now);
  prefill_ = call_.Child("prefill", SpanKind::kInternal, now);
}

void SessionTrace::OnRound(const RoundReport& report, absl::Time now) {
  if (!recording()) return;
  prefill_.End(report.with_prefill ? report.forward_start + report.forward_time : report.forward_start);
  if (num_rounds_++ >= kMaxRoundSpans) return;
  const absl::Time start = report.forward_start - absl::Seconds(report.wait_seconds);
  Span round = call_.Child("round", SpanKind::kInternal, start);
  if (report.wait_seconds > 0.0) {
    round.Child("draft wait", SpanKind::kInternal, start).End(report.forward_start);
  }
  if (report.masks > 0) {
    Span masks = round.Child("masks", SpanKind::kInternal, report.masks_start);
    masks.Set("tandem.masks", report.masks);
    masks.End(report.masks_end);
  }
  round.Set("tandem.round.index", num_rounds_ - 1);
  round.Set("tandem.round.kind", KindText(report.kind));
  round.Set("tandem.round.window", report.depth);
  round.Set("tandem.round.draft_tokens", report.nodes);
  round.Set("tandem.round.accepted_tokens", report.accepted);
  const OriginShare& local = report.shares[static_cast<size_t>(DraftOrigin::kLocal)];
  round.Set("tandem.round.local_draft_tokens", local.nodes);
  round.Set("tandem.round.local_accepted_tokens", local.accepted);
  const OriginShare& predicted = report.shares[static_cast<size_t>(DraftOrigin::kPrediction)];
  if (predicted.nodes > 0) {
    round.Set("tandem.round.prediction_draft_tokens", predicted.nodes);
    round.Set("tandem.round.prediction_accepted_tokens", predicted.accepted);
  }
  if (constrained_) {
    const OriginShare& forced = report.shares[static_cast<size_t>(DraftOrigin::kGrammar)];
    round.Set("tandem.round.grammar_draft_tokens", forced.nodes);
    round.Set("tandem.round.grammar_accepted_tokens", forced.accepted);
    round.Set("tandem.round.masked_draft_tokens", report.masked);
    round.Set("tandem.round.mask_seconds", report.mask_seconds);
  }
  round.Set("tandem.round.committed_tokens", report.committed);
  round.Set("tandem.round.forward_seconds", absl::ToDoubleSeconds(report.forward_time));
  round.End(now);
}

SessionTrace::DraftSpan* SessionTrace::FindDraft(SessionId session) {
  const auto found = std::find_if(drafts_.begin(), drafts_.end(),
                                  [session](const DraftSpan& draft) { return draft.session == session; });
  return found == drafts_.end() ? nullptr : &*found;
}

const TraceContext& SessionTrace::OpenDraft(const std::function<std::string()>& endpoint, SessionId session,
                                            const std::string& draft_model, absl::Time now) {
  if (!recording()) return call_.context();
  DraftSpan* draft = FindDraft(session);
  if (draft == nullptr) {
    // A request that goes from drafter to drafter all the time is counted on, below the call itself.
    if (num_drafts_++ >= kMaxDraftSpans) return call_.context();
    draft = &drafts_.emplace_back();
    draft->session = session;
    draft->span = call_.Child("draft session", SpanKind::kClient, now);
    draft->span.SetCall("tandem.v1.Drafter", "Draft");
    draft->span.SetServer(endpoint());
    draft->span.Set("tandem.draft_model", draft_model);
  }
  ++draft->opens;
  return draft->span.context();
}

void SessionTrace::EndDraft(SessionId session, absl::StatusCode code, absl::Time now) {
  DraftSpan* const draft = FindDraft(session);
  if (draft == nullptr) return;
  draft->span.Set("tandem.draft.opens", draft->opens);
  draft->span.Set("tandem.draft.received_nodes", draft->nodes);
  draft->span.SetStatus(code);
  draft->span.End(now);
  drafts_.erase(drafts_.begin() + (draft - drafts_.data()));
}

void SessionTrace::OnDraftRequest(const std::function<std::string()>& endpoint, DraftRequest& request,
                                  absl::Time now) {
  if (auto* const open = std::get_if<OpenSession>(&request.event)) {
    const TraceContext& context = OpenDraft(endpoint, request.session, open->draft_model, now);
    if (!context.valid()) return;
    open->traceparent = FormatTraceparent(context);
    open->tracestate = context.state;
  } else if (std::holds_alternative<CloseSession>(request.event)) {
    EndDraft(request.session, absl::StatusCode::kOk, now);
  }
}

void SessionTrace::OnDraftResponse(const DraftResponse& response, absl::Time now) {
  if (!recording()) return;
  if (const auto* grow = std::get_if<Grow>(&response.event)) {
    DraftSpan* const draft = FindDraft(response.session);
    if (draft != nullptr) draft->nodes += grow->tokens.size();
  } else if (const auto* refused = std::get_if<SessionRefused>(&response.event)) {
    EndDraft(response.session, refused->status.code(), now);
  }
}

void SessionTrace::OnFinished(const absl::Status& status, const SessionSummary& summary, absl::Time now) {
  if (!recording()) return;
  queue_.End(now);
  prefill_.End(now);
  while (!drafts_.empty()) EndDraft(drafts_.back().session, absl::StatusCode::kOk, now);
  if (status.ok()) {
    const bool length = summary.end.reason == OutputEnd::Reason::kMaxTokens;
    call_.Set("gen_ai.response.finish_reasons", std::vector<std::string>{length ? "length" : "stop"});
  }
  call_.Set("gen_ai.usage.input_tokens", summary.prompt_tokens);
  call_.Set("gen_ai.usage.output_tokens", summary.output_tokens);
  call_.Set("tandem.cached_prompt_tokens", summary.cached_prompt_tokens);
  call_.Set("tandem.preemptions", summary.preemptions);
  if (!summary.drafter.empty()) call_.Set("tandem.drafter", summary.drafter);
  call_.Set("tandem.drafter.lost", !summary.drafter_lost.empty());
  call_.Set("tandem.rounds", summary.rounds);
  call_.Set("tandem.rounds.without_span", num_rounds_ - std::min(num_rounds_, kMaxRoundSpans));
  call_.Set("tandem.rounds.drafted", summary.drafted_rounds);
  call_.Set("tandem.rounds.hit", summary.hits);
  call_.Set("tandem.rounds.missed", summary.misses);
  call_.Set("tandem.rounds.merged", summary.merged_rounds);
  call_.Set("tandem.draft_tokens", summary.draft_tokens);
  call_.Set("tandem.accepted_tokens", summary.accepted_tokens);
  for (size_t i = 0; i < kNumSourceKinds; ++i) {
    const auto source = static_cast<SourceKind>(i);
    if (source == SourceKind::kGrammar && !constrained_) continue;
    const DraftTotals totals = TotalsBy(summary, source);
    if (source == SourceKind::kPrediction && totals.draft_tokens == 0) continue;
    call_.Set(kDraftTokensAttributes[i], totals.draft_tokens);
    call_.Set(kAcceptedTokensAttributes[i], totals.accepted_tokens);
  }
  if (constrained_) call_.Set("tandem.masked_draft_tokens", summary.masked_draft_tokens);
  call_.SetStatus(status.code());
  call_.End(now);
}

}  // namespace tandem
