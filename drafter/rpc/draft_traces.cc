#include "drafter/rpc/draft_traces.h"

#include <variant>

namespace tandem {

DraftTraces::~DraftTraces() {
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    entry = End(entry, absl::StatusCode::kUnavailable);
  }
}

void DraftTraces::OnOpen(const Key& key, const OpenSession& open) {
  const auto [found, is_new] = entries_.try_emplace(key);
  Entry& entry = found->second;
  ++entry.opens;
  if (!is_new) return;
  const TraceContext trace = ParseTraceContext(open.traceparent, open.tracestate);
  entry.ids.request_id = open.request_id;
  unanswered_ = true;
  // An Open without a trace is of a verifier that has none: no request, no new trace.
  if (!trace.valid()) return;
  const absl::Time now = clock_->Now();
  entry.session = tracer_.StartServer("draft session", trace, now);
  entry.ids.trace_id = TraceIdText(trace);
  entry.session.SetCall("tandem.v1.Drafter", "Draft");
  entry.session.Set("tandem.draft_model", open.draft_model);
  entry.session.Set("tandem.request_id", open.request_id);
  entry.session.Set("gen_ai.usage.input_tokens", open.prompt_length);
  entry.prefill = entry.session.Child("prefill", SpanKind::kInternal, now);
}

void DraftTraces::OnRequest(LinkId link, const DraftRequest& request) {
  const Key key(link, request.session);
  if (const auto* open = std::get_if<OpenSession>(&request.event)) return OnOpen(key, *open);
  const auto entry = entries_.find(key);
  if (entry == entries_.end()) return;
  if (const auto* commit = std::get_if<Commit>(&request.event)) {
    ++entry->second.commits;
    entry->second.committed_tokens += commit->tokens.size();
  } else {
    End(entry, absl::StatusCode::kOk);
  }
}

void DraftTraces::OnResponse(LinkId link, const DraftResponse& response) {
  const auto entry = entries_.find(Key(link, response.session));
  if (entry == entries_.end()) return;
  if (const auto* grow = std::get_if<Grow>(&response.event)) {
    ++entry->second.growth_messages;
    entry->second.nodes += grow->tokens.size();
    if (entry->second.prefill.recording() && !grow->tokens.empty()) entry->second.prefill.End(clock_->Now());
  } else if (std::holds_alternative<SessionOpened>(response.event)) {
    entry->second.answered = true;
  } else if (const auto* refused = std::get_if<SessionRefused>(&response.event)) {
    End(entry, refused->status.code());
  }
}

void DraftTraces::OnLinkClosed(LinkId link) {
  auto entry = entries_.lower_bound(Key(link, 0));
  while (entry != entries_.end() && entry->first.first == link) {
    entry = End(entry, absl::StatusCode::kUnavailable);
  }
}

void DraftTraces::DropUnanswered() {
  if (!std::exchange(unanswered_, false)) return;
  std::erase_if(entries_, [](const auto& entry) { return !entry.second.answered; });
}

DraftTraces::Ids DraftTraces::IdsOf(LinkId link, SessionId session) const {
  const auto entry = entries_.find(Key(link, session));
  return entry == entries_.end() ? Ids() : entry->second.ids;
}

DraftTraces::Entries::iterator DraftTraces::End(Entries::iterator entry, absl::StatusCode code) {
  Entry& ending = entry->second;
  if (ending.session.recording()) {
    const absl::Time now = clock_->Now();
    ending.prefill.End(now);
    ending.session.Set("tandem.draft.opens", ending.opens);
    ending.session.Set("tandem.draft.commits", ending.commits);
    ending.session.Set("tandem.draft.committed_tokens", ending.committed_tokens);
    ending.session.Set("tandem.draft.growth_messages", ending.growth_messages);
    ending.session.Set("tandem.draft.sent_nodes", ending.nodes);
    ending.session.SetStatus(code);
    ending.session.End(now);
  }
  return entries_.erase(entry);
}

}  // namespace tandem
