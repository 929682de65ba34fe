#include "router/live/live_call.h"

#include <utility>

namespace tandem::router {

void LiveCall::OnAdmitted(const std::string& tenant) {
  if (view_ == nullptr) return;
  tenant_ = tenant;
  view_->tallies.OnBegun(tenant_);
}

void LiveCall::Show(const LiveStart& start, std::shared_ptr<const PromptEncoder> encoder,
                    v1::OutputOptions& output) {
  if (view_ == nullptr) return;
  encoder_ = std::move(encoder);
  generation_ = view_->feed.NextGeneration();
  client_wants_trace_ = output.round_trace();
  client_wants_tree_ = output.round_tree();
  output.set_round_trace(true);
  output.set_round_tree(true);
  view_->feed.Publish("start", StartJson(generation_, start));
}

void LiveCall::OnEvent(v1::GenerateResponse& event) {
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

void LiveCall::OnNote(absl::string_view note) {
  if (view_ == nullptr || encoder_ == nullptr) return;
  view_->feed.Publish("note", NoteJson(generation_, note));
}

void LiveCall::OnEnded(const absl::Status& status) {
  if (view_ == nullptr || tenant_.empty()) return;
  view_->tallies.OnEnded(tenant_, status, static_cast<uint32_t>(num_tokens_), finished_.speculation());
  if (encoder_ != nullptr) view_->feed.Publish("end", EndJson(generation_, status, finished_));
}

}  // namespace tandem::router
