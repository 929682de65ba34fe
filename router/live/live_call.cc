#include "router/live/live_call.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace tandem::router {

void LiveCall::Show(LiveStart start, std::shared_ptr<const PromptEncoder> encoder) {
  start_ = std::move(start);
  encoder_ = std::move(encoder);
}

void LiveCall::OnStage(Stage stage, const GenerationFacts& facts, absl::Time) {
  if (view_ == nullptr || stage != Stage::kAdmit) return;
  tenant_ = facts.tenant->name;
  view_->tallies.OnBegun(tenant_);
}

void LiveCall::OnPrepared(const GenerationFacts&, v1::VerifierGenerateRequest& request, absl::Time) {
  if (view_ == nullptr || encoder_ == nullptr) return;
  v1::OutputOptions& output = *request.mutable_output();
  generation_ = view_->feed.NextGeneration();
  client_wants_trace_ = output.round_trace();
  client_wants_tree_ = output.round_tree();
  output.set_round_trace(true);
  output.set_round_tree(true);
  view_->feed.Publish("start", StartJson(generation_, std::exchange(start_, {})));
}

void LiveCall::OnEvent(const GenerationFacts&, v1::GenerateResponse& event, absl::Time) {
  if (view_ == nullptr) return;
  if (event.has_started() && encoder_ != nullptr) {
    view_->feed.Publish("started", StartedJson(generation_, event.started()));
  }
  if (event.has_chunk()) OnChunk(*event.mutable_chunk());
  if (event.has_finished()) finished_ = event.finished();
}

void LiveCall::OnChunk(v1::GenerationChunk& chunk) {
  num_tokens_ += static_cast<uint64_t>(chunk.tokens_size());
  if (encoder_ == nullptr) return;
  view_->feed.Publish("round", RoundJson(generation_, num_rounds_++, chunk, *encoder_));
  if (!client_wants_trace_) {
    chunk.clear_round();
  } else if (!client_wants_tree_ && chunk.has_round()) {
    chunk.mutable_round()->clear_tree();
  }
}

void LiveCall::OnTurn(Turn turn, const absl::Status& reason, const GenerationFacts&, absl::Time) {
  if (view_ == nullptr || encoder_ == nullptr) return;
  if (turn == Turn::kRetry) {
    view_->feed.Publish(
        "note", NoteJson(generation_, absl::StrCat("Continues on another verifier: ", reason.message())));
  } else if (turn == Turn::kWait) {
    view_->feed.Publish("note",
                        NoteJson(generation_, absl::StrCat("Waits for a verifier: ", reason.message())));
  }
}

void LiveCall::OnEnded(const GenerationFacts&, const absl::Status& status, absl::Time) {
  if (view_ == nullptr || tenant_.empty()) return;
  view_->tallies.OnEnded(tenant_, status, static_cast<uint32_t>(num_tokens_), finished_.speculation());
  if (encoder_ != nullptr) view_->feed.Publish("end", EndJson(generation_, status, finished_));
}

}  // namespace tandem::router
