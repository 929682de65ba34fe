#include "router/spool/recorded_call.h"

#include <algorithm>
#include <utility>

namespace tandem::router {

RecordedCall::RecordedCall(Spool* spool, const std::string& tenant, uint64_t vocabulary_fingerprint,
                           v1::VerifierGenerateRequest& prepared)
    : spool_(spool),
      client_wants_logprobs_(prepared.output().has_logprobs()),
      client_top_(prepared.output().logprobs()) {
  prepared.mutable_output()->set_logprobs(kTop);
  record_.tenant = tenant;
  record_.request_id = prepared.request_id();
  record_.model = prepared.model();
  record_.adapter = prepared.adapter();
  record_.vocabulary_fingerprint = vocabulary_fingerprint;
  // Absent: 1.
  record_.temperature = prepared.sampling().has_temperature() ? prepared.sampling().temperature() : 1.0f;
  record_.prompt.assign(prepared.prompt().ids().begin(), prepared.prompt().ids().end());
}

void RecordedCall::OnEvent(v1::GenerateResponse& event) {
  if (!event.has_chunk()) return;
  v1::GenerationChunk& chunk = *event.mutable_chunk();
  whole_ = whole_ && chunk.details_size() == chunk.tokens_size();
  for (int i = 0; i < chunk.details_size(); ++i) {
    v1::TokenDetail& detail = *chunk.mutable_details(i);
    if (whole_) {
      SpoolRecord::OutputToken& token = record_.output.emplace_back();
      token.chosen = {.token = chunk.tokens(i), .logprob = detail.logprob()};
      for (const v1::TokenLogprob& top : detail.top_logprobs()) {
        token.top.push_back({.token = top.token(), .logprob = top.logprob()});
      }
    }
    if (!client_wants_logprobs_) detail.clear_logprob();
    const int keep = client_wants_logprobs_ ? static_cast<int>(client_top_) : 0;
    const int extra = std::max(detail.top_logprobs_size() - keep, 0);
    detail.mutable_top_logprobs()->DeleteSubrange(detail.top_logprobs_size() - extra, extra);
  }
}

void RecordedCall::End(absl::Time now) {
  if (!whole_ || record_.output.empty()) return;
  record_.time = now;
  spool_->Offer(std::move(record_));
}

}  // namespace tandem::router
