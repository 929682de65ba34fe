#include "router/serving/single_call.h"

#include "common/rpc/status.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "router/serving/generation_stream.h"

namespace tandem::router {
namespace {

void AddDeltas(const google::protobuf::RepeatedPtrField<v1::OutputDelta>& deltas,
               v1::GenerateResult& answer) {
  for (const v1::OutputDelta& delta : deltas) {
    answer.mutable_content()->append(delta.content());
    answer.mutable_reasoning()->append(delta.reasoning());
    if (!delta.has_tool_call()) continue;
    const v1::ToolCallDelta& part = delta.tool_call();
    while (answer.tool_calls_size() <= static_cast<int>(part.index())) answer.add_tool_calls();
    v1::ToolCall& call = *answer.mutable_tool_calls(static_cast<int>(part.index()));
    if (!part.id().empty()) call.set_id(part.id());
    if (!part.name().empty()) call.set_name(part.name());
    call.mutable_arguments()->append(part.arguments());
  }
}

}  // namespace

void AddEvent(const v1::GenerateResponse& event, v1::GenerateResult& whole) {
  while (whole.others_size() < static_cast<int>(event.output())) whole.add_others();
  v1::GenerateResult& answer =
      event.output() == 0 ? whole : *whole.mutable_others(static_cast<int>(event.output()) - 1);
  switch (event.event_case()) {
    case v1::GenerateResponse::kStarted:
      *answer.mutable_started() = event.started();
      break;
    case v1::GenerateResponse::kChunk:
      answer.mutable_tokens()->MergeFrom(event.chunk().tokens());
      answer.mutable_text()->append(event.chunk().text());
      answer.mutable_details()->MergeFrom(event.chunk().details());
      AddDeltas(event.chunk().deltas(), answer);
      break;
    case v1::GenerateResponse::kFinished: {
      v1::GenerationFinished& finished = *answer.mutable_finished();
      finished = event.finished();
      answer.mutable_text()->append(finished.text());
      AddDeltas(finished.deltas(), answer);
      finished.clear_text();
      finished.clear_deltas();
      break;
    }
    case v1::GenerateResponse::kPrompt:
      answer.mutable_prompt()->MergeFrom(event.prompt().details());
      answer.mutable_prompt_tokens()->MergeFrom(event.prompt().tokens());
      break;
    case v1::GenerateResponse::EVENT_NOT_SET:
      break;
  }
}

SingleCall::SingleCall(Router& router, grpc::CallbackServerContext& context, v1::GenerateResult& answer)
    : context_(context), answer_(answer), call_(OutputsCall::Create(router, CallHeadOf(context), *this)) {}

grpc::ServerUnaryReactor* SingleCall::Start(Router& router, grpc::CallbackServerContext* context,
                                            absl::FunctionRef<absl::StatusOr<GenerateCall::Request>()> read,
                                            v1::GenerateResult* answer) {
  auto* const single = new SingleCall(router, *context, *answer);
  single->call_->Start(read);
  return single;
}

void SingleCall::Write(const v1::GenerateResponse& event) {
  AddEvent(event, answer_);
  taken_.Set(gpr_now(GPR_CLOCK_MONOTONIC), [call = call_](bool) { call->OnWriteDone(true); });
}

void SingleCall::Finish(const absl::Status& status) {
  grpc::ServerUnaryReactor::Finish(ToGrpcStatus(status));
}

void SingleCall::OnDone() {
  call_->OnDone();
  delete this;
}

}  // namespace tandem::router
