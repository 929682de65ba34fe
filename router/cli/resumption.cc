#include "router/cli/resumption.h"

namespace tandem::cli {

bool Resumption::OnEvent(const v1::GenerateResponse& event) {
  switch (event.event_case()) {
    case v1::GenerateResponse::kStarted: {
      if (started_) return false;
      started_ = true;
      const v1::GenerationStarted& started = event.started();
      request_.set_request_id(started.request_id());
      request_.set_model(started.model());
      request_.mutable_sampling()->set_seed(started.seed());
      // Where there is more room the output would be longer.
      if (started.max_tokens() > 0) request_.mutable_stopping()->set_max_tokens(started.max_tokens());
      return true;
    }
    case v1::GenerateResponse::kPrompt: {
      if (event.prompt().offset() < prompt_told_) return false;
      prompt_told_ = event.prompt().offset() + static_cast<uint32_t>(event.prompt().tokens_size());
      return true;
    }
    case v1::GenerateResponse::kChunk:
      if (event.chunk().arithmetic() != 0) {
        request_.mutable_resume()->set_arithmetic(event.chunk().arithmetic());
      }
      request_.mutable_resume()->mutable_emitted()->mutable_ids()->MergeFrom(event.chunk().tokens());
      return true;
    case v1::GenerateResponse::kFinished:
      finished_ = true;
      return true;
    case v1::GenerateResponse::EVENT_NOT_SET:
      break;
  }
  return true;
}

}  // namespace tandem::cli
