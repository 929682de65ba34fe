#include "router/vllm/vllm_wire.h"

#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/rpc/status.h"
#include "google/protobuf/message.h"
#include "google/protobuf/unknown_field_set.h"

namespace tandem::router {
namespace {

template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// `prefix` is the message's place: "sampling_params.".
absl::Status CheckKnown(const google::protobuf::Message& message, absl::string_view prefix) {
  const google::protobuf::UnknownFieldSet& unknown = message.GetReflection()->GetUnknownFields(message);
  if (unknown.empty()) return absl::OkStatus();
  return Invalid(prefix, "field ", unknown.field(0).number(), ": not supported");
}

absl::Status RefuseUnsupported(const engine::GenerateRequest& asked) {
  TANDEM_RETURN_IF_ERROR(CheckKnown(asked, ""));
  TANDEM_RETURN_IF_ERROR(CheckKnown(asked.tokenized(), "tokenized."));
  TANDEM_RETURN_IF_ERROR(CheckKnown(asked.sampling_params(), "sampling_params."));
  TANDEM_RETURN_IF_ERROR(CheckKnown(asked.sampling_params().choice(), "sampling_params.choice."));
  constexpr absl::string_view kNoTransfer = ": keys and values are not taken from other servers";
  constexpr absl::string_view kTextOnly = ": prompts are text";
  if (asked.has_kv_transfer_params()) return Invalid("kv_transfer_params", kNoTransfer);
  if (asked.has_kv_transfer_params_json()) return Invalid("kv_transfer_params_json", kNoTransfer);
  if (asked.has_mm_inputs()) return Invalid("mm_inputs", kTextOnly);
  if (asked.has_media_refs()) return Invalid("media_refs", kTextOnly);
  if (asked.extra_mm_inputs_size() > 0) return Invalid("extra_mm_inputs", kTextOnly);
  if (asked.has_data_parallel_rank()) {
    return Invalid("data_parallel_rank: the router chooses the verifier");
  }
  const engine::SamplingParams& params = asked.sampling_params();
  if (params.has_structural_tag()) {
    return Invalid("sampling_params.structural_tag: not supported by this service");
  }
  if (params.has_seed() && params.seed() < -1) {
    return Invalid("sampling_params.seed: ", params.seed(), ", expected at least 0, or -1 for any");
  }
  for (const auto& [name, value] : {std::pair{"logprobs", params.has_logprobs() ? params.logprobs() : 0},
                                    {"prompt_logprobs", params.prompt_logprobs()}}) {
    if (value < 0) return Invalid("sampling_params.", name, ": ", value, ", expected at least 0");
  }
  for (const auto& [token, bias] : params.logit_bias()) {
    if (token < 0) return Invalid("sampling_params.logit_bias: token ", token, ", expected at least 0");
  }
  return absl::OkStatus();
}

void FillSampling(const engine::SamplingParams& params, v1::SamplingParameters& sampling) {
  const auto or_one = [](float value) { return value == 0.0f ? 1.0f : value; };
  sampling.set_temperature(params.has_temperature() ? params.temperature() : 1.0f);
  sampling.set_top_p(or_one(params.top_p()));
  sampling.set_top_k(params.top_k());
  sampling.set_min_p(params.min_p());
  sampling.set_frequency_penalty(params.frequency_penalty());
  sampling.set_presence_penalty(params.presence_penalty());
  sampling.set_repetition_penalty(or_one(params.repetition_penalty()));
  for (const auto& [token, bias] : params.logit_bias()) {
    (*sampling.mutable_logit_bias())[static_cast<uint32_t>(token)] = bias;
  }
  if (params.seed() >= 0 && params.has_seed()) sampling.set_seed(static_cast<uint64_t>(params.seed()));
}

void FillStopping(const engine::SamplingParams& params, v1::StopConditions& stopping) {
  if (params.has_max_tokens()) stopping.set_max_tokens(params.max_tokens());
  stopping.set_min_tokens(params.min_tokens());
  *stopping.mutable_stop() = params.stop();
  *stopping.mutable_stop_token_ids() = params.stop_token_ids();
  stopping.set_ignore_eos(params.ignore_eos());
}

void FillOutput(const engine::SamplingParams& params, v1::OutputOptions& output) {
  output.set_include_special_tokens(!params.skip_special_tokens());
  if (params.has_logprobs()) output.set_logprobs(static_cast<uint32_t>(params.logprobs()));
  if (params.has_prompt_logprobs()) {
    output.set_prompt_logprobs(static_cast<uint32_t>(params.prompt_logprobs()));
  }
}

void FillConstraint(const engine::SamplingParams& params, v1::GenerateRequest& request) {
  switch (params.constraint_case()) {
    case engine::SamplingParams::kJsonSchema:
      request.mutable_constraint()->mutable_json_schema()->set_schema(params.json_schema());
      break;
    case engine::SamplingParams::kRegex:
      request.mutable_constraint()->set_regex(params.regex());
      break;
    case engine::SamplingParams::kGrammar:
      request.mutable_constraint()->set_grammar(params.grammar());
      break;
    case engine::SamplingParams::kJsonObject:
      if (params.json_object()) request.mutable_constraint()->mutable_json_object();
      break;
    case engine::SamplingParams::kChoice:
      *request.mutable_constraint()->mutable_choices()->mutable_choices() = params.choice().choices();
      break;
    case engine::SamplingParams::kStructuralTag:  // Refused before.
    case engine::SamplingParams::CONSTRAINT_NOT_SET:
      break;
  }
}

void FillTop(const v1::TokenDetail& detail, int32_t count, engine::TopLogProbs& top) {
  for (int i = 0; i < detail.top_logprobs_size() && i < count; ++i) {
    top.add_token_ids(detail.top_logprobs(i).token());
    top.add_values(detail.top_logprobs(i).logprob());
  }
}

}  // namespace

absl::StatusOr<v1::GenerateRequest> RequestOf(const engine::GenerateRequest& asked) {
  TANDEM_RETURN_IF_ERROR(RefuseUnsupported(asked));
  v1::GenerateRequest request;
  request.set_request_id(asked.request_id());
  if (asked.has_text()) request.set_text(asked.text());
  if (asked.has_tokenized()) *request.mutable_token_ids()->mutable_ids() = asked.tokenized().input_ids();
  const engine::SamplingParams& params = asked.sampling_params();
  FillSampling(params, *request.mutable_sampling());
  FillStopping(params, *request.mutable_stopping());
  FillOutput(params, *request.mutable_output());
  FillConstraint(params, request);
  request.set_num_outputs(params.n());
  if (params.has_truncate_prompt_tokens())
    request.set_truncate_prompt_tokens(params.truncate_prompt_tokens());
  return request;
}

absl::Status WithVllmNames(const absl::Status& status) {
  if (!absl::IsInvalidArgument(status)) return status;
  absl::string_view message = status.message();
  for (const auto& [ours, theirs] :
       {std::pair<absl::string_view, absl::string_view>{"sampling.", "sampling_params."},
        {"stopping.", "sampling_params."},
        {"output.", "sampling_params."},
        {"token_ids.ids", "tokenized.input_ids"},
        {"token_ids", "tokenized.input_ids"},
        {"num_outputs", "sampling_params.n"},
        {"truncate_prompt_tokens", "sampling_params.truncate_prompt_tokens"},
        {"constraint", "sampling_params.constraint"},
        {"prompt:", "input:"}}) {
    if (!absl::StartsWith(message, ours)) continue;
    return Restated(status, status.code(), absl::StrCat(theirs, message.substr(ours.size())));
  }
  return status;
}

VllmAnswer::VllmAnswer(const engine::GenerateRequest& asked)
    : stream_(asked.stream()),
      logprobs_(asked.sampling_params().has_logprobs()
                    ? std::optional<int32_t>(asked.sampling_params().logprobs())
                    : std::nullopt),
      prompt_logprobs_(asked.sampling_params().prompt_logprobs()),
      stop_tokens_(asked.sampling_params().stop_token_ids().begin(),
                   asked.sampling_params().stop_token_ids().end()) {}

std::optional<engine::GenerateResponse> VllmAnswer::OnEvent(const v1::GenerateResponse& event) {
  Output& output = OutputOf(event);
  engine::GenerateComplete& complete = output.complete;
  switch (event.event_case()) {
    case v1::GenerateResponse::kStarted:
      complete.set_index(event.output());
      complete.set_prompt_tokens(event.started().prompt_tokens());
      return std::nullopt;
    case v1::GenerateResponse::kChunk: {
      const v1::GenerationChunk& tokens = event.chunk();
      complete.mutable_output_ids()->MergeFrom(tokens.tokens());
      if (logprobs_.has_value()) AddLogprobs(tokens, *complete.mutable_output_logprobs());
      if (!stream_) return std::nullopt;
      engine::GenerateResponse response;
      engine::GenerateStreamChunk& chunk = *response.mutable_chunk();
      *chunk.mutable_token_ids() = tokens.tokens();
      chunk.set_prompt_tokens(complete.prompt_tokens());
      chunk.set_completion_tokens(static_cast<uint32_t>(tokens.tokens_size()));
      chunk.set_index(event.output());
      if (logprobs_.has_value()) AddLogprobs(tokens, *chunk.mutable_output_logprobs());
      if (!output.begun && complete.has_input_logprobs())
        *chunk.mutable_input_logprobs() = complete.input_logprobs();
      output.begun = true;
      return response;
    }
    case v1::GenerateResponse::kFinished:
      return Finish(event.finished(), output);
    case v1::GenerateResponse::kPrompt:
      AddPrompt(event.prompt(), *complete.mutable_input_logprobs());
      return std::nullopt;
    case v1::GenerateResponse::EVENT_NOT_SET:
      return std::nullopt;
  }
  return std::nullopt;
}

VllmAnswer::Output& VllmAnswer::OutputOf(const v1::GenerateResponse& event) {
  if (event.output() >= outputs_.size()) outputs_.resize(event.output() + 1);
  return outputs_[event.output()];
}

void VllmAnswer::AddLogprobs(const v1::GenerationChunk& chunk, engine::OutputLogProbs& logprobs) const {
  for (int i = 0; i < chunk.tokens_size() && i < chunk.details_size(); ++i) {
    logprobs.add_token_ids(chunk.tokens(i));
    logprobs.add_token_logprobs(chunk.details(i).logprob());
    if (*logprobs_ > 0) FillTop(chunk.details(i), *logprobs_, *logprobs.add_top_logprobs());
  }
}

void VllmAnswer::AddPrompt(const v1::PromptChunk& prompt, engine::InputLogProbs& logprobs) const {
  for (int i = 0; i < prompt.tokens_size() && i < prompt.details_size(); ++i) {
    logprobs.add_token_ids(prompt.tokens(i));
    engine::InputTokenLogProb& value = *logprobs.add_token_logprobs();
    // Nothing comes before the first token.
    if (prompt.offset() + static_cast<uint32_t>(i) > 0) value.set_value(prompt.details(i).logprob());
    FillTop(prompt.details(i), prompt_logprobs_, *logprobs.add_top_logprobs());
  }
}

engine::GenerateResponse VllmAnswer::Finish(const v1::GenerationFinished& finished, Output& output) const {
  engine::GenerateResponse response;
  engine::GenerateComplete& complete = *response.mutable_complete();
  complete = std::move(output.complete);
  complete.set_finish_reason(finished.reason() == v1::FINISH_REASON_MAX_TOKENS ? "length" : "stop");
  complete.set_completion_tokens(finished.usage().completion_tokens());
  complete.set_cached_tokens(finished.usage().cached_prompt_tokens());
  complete.set_spec_accepted_tokens(finished.speculation().accepted_tokens());
  complete.set_spec_draft_tokens(finished.speculation().draft_tokens());
  const int size = complete.output_ids_size();
  if (finished.reason() == v1::FINISH_REASON_STOP_STRING) {
    complete.set_matched_stop_str(finished.matched_stop());
  } else if (finished.reason() == v1::FINISH_REASON_STOP_TOKEN && size > 0 &&
             stop_tokens_.count(complete.output_ids(size - 1)) > 0) {
    complete.set_matched_token_id(complete.output_ids(size - 1));
  }
  return response;
}

}  // namespace tandem::router
