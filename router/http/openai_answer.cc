#include "router/http/openai_answer.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/rpc/status.h"

namespace tandem::router {
namespace {

std::string Line(const OrderedJson& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, OrderedJson::error_handler_t::replace);
}

struct ErrorKind {
  int status;
  const char* type;
  const char* code;  // Null: none.
};

ErrorKind KindOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kFailedPrecondition:
      return {400, "invalid_request_error", nullptr};
    case absl::StatusCode::kUnauthenticated:
      return {401, "authentication_error", "invalid_api_key"};
    case absl::StatusCode::kPermissionDenied:
      return {403, "permission_error", nullptr};
    case absl::StatusCode::kNotFound:
      return {404, "invalid_request_error", "model_not_found"};
    case absl::StatusCode::kResourceExhausted:
      return {429, "rate_limit_error", "rate_limit_exceeded"};
    case absl::StatusCode::kCancelled:
      return {499, "invalid_request_error", "cancelled"};
    case absl::StatusCode::kUnavailable:
      return {503, "server_error", "overloaded"};
    case absl::StatusCode::kDeadlineExceeded:
      return {504, "server_error", "timeout"};
    default:
      return {500, "server_error", nullptr};
  }
}

const char* FinishReasonOf(v1::FinishReason reason) {
  return reason == v1::FINISH_REASON_MAX_TOKENS ? "length" : "stop";
}

// OpenAI's code for the error: its own, by its reason, or that of its kind. Each answer of 400 has one.
OrderedJson CodeOf(const absl::Status& status, const std::optional<std::string>& field) {
  const std::string reason = ReasonOf(status);
  if (!reason.empty()) return absl::AsciiStrToLower(reason);
  const ErrorKind kind = KindOf(status.code());
  if (kind.code != nullptr) return kind.code;
  if (kind.status != 400) return nullptr;
  // What was asked for has a meaning, but not with this model or this output.
  if (absl::IsFailedPrecondition(status)) return absl::AsciiStrToLower(kUnsupportedValue);
  if (!field.has_value()) return absl::AsciiStrToLower(kInvalidValue);
  if (absl::StartsWith(*field, "tools[") && absl::StrContains(*field, ".parameters"))
    return "invalid_function_parameters";
  for (const char* format : {"response_format.json_schema.schema", "text.format.schema"}) {
    if (absl::StartsWith(*field, format)) return "invalid_json_schema";
  }
  return absl::AsciiStrToLower(kInvalidValue);
}

}  // namespace

int HttpStatusOf(const absl::Status& status) {
  return KindOf(status.code()).status;
}

OrderedJson ErrorJson(const absl::Status& status, const FieldNames* names) {
  FieldNames::Error error = names == nullptr ? FieldNames::AsTold(status) : names->Describe(status);
  const OrderedJson code = CodeOf(status, error.field);
  if (!error.field.has_value() && code == "model_not_found") error.field = "model";
  return {{"error",
           {{"message", error.message},
            {"type", KindOf(status.code()).type},
            {"param", error.field.has_value() ? OrderedJson(*error.field) : OrderedJson()},
            {"code", code}}}};
}

HttpAnswer JsonAnswer(const OrderedJson& json) {
  return {.status = 200, .fields = {{"Content-Type", "application/json"}}, .body = Line(json)};
}

HttpAnswer ErrorAnswer(const absl::Status& status, const FieldNames* names) {
  HttpAnswer answer = JsonAnswer(ErrorJson(status, names));
  answer.status = HttpStatusOf(status);
  if (answer.status == 401) answer.fields.emplace_back("WWW-Authenticate", "Bearer");
  if (const std::optional<absl::Duration> delay = RetryAfter(status); delay.has_value()) {
    // Whole seconds, as HTTP has them, and at least one.
    const int64_t seconds = absl::ToInt64Seconds(absl::Ceil(*delay, absl::Seconds(1)));
    answer.fields.emplace_back("Retry-After", absl::StrCat(std::max<int64_t>(seconds, 1)));
  }
  return answer;
}

std::string ServerSentEvent(const OrderedJson& json, absl::string_view name) {
  return absl::StrCat(name.empty() ? "" : absl::StrCat("event: ", name, "\n"), "data: ", Line(json), "\n\n");
}

CompletionAnswer::CompletionAnswer(const CompletionRequest& request, std::string id, int64_t created)
    : request_(request),
      id_(absl::StrCat(request.chat() ? "chatcmpl-" : "cmpl-", id)),
      created_(created),
      choices_(request.num_choices(), Choice(request.origins, request.stream)) {}

OrderedJson CompletionAnswer::Frame(bool chunk) const {
  const char* const object = !request_.chat() ? "text_completion"
                             : chunk          ? "chat.completion.chunk"
                                              : "chat.completion";
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_}};
}

OrderedJson CompletionAnswer::Usage() const {
  uint64_t prompt = 0;
  uint64_t completion = 0;
  uint64_t cached = 0;
  uint64_t accepted = 0;
  uint64_t drafted = 0;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Choice& choice = choices_[i];
    completion += choice.usage.completion_tokens();
    for (const v1::SourceStats& source : choice.speculation.by_source()) {
      if (source.source() != v1::DRAFT_SOURCE_PREDICTION) continue;
      accepted += source.accepted_tokens();
      drafted += source.draft_tokens();
    }
    // The outputs of one prompt share it.
    if (i % request_.num_outputs != 0) continue;
    prompt += choice.usage.prompt_tokens();
    cached += choice.usage.cached_prompt_tokens();
  }
  return {{"prompt_tokens", prompt},
          {"completion_tokens", completion},
          {"total_tokens", prompt + completion},
          {"prompt_tokens_details", {{"cached_tokens", cached}, {"audio_tokens", 0}}},
          {"completion_tokens_details",
           {{"reasoning_tokens", 0},
            {"audio_tokens", 0},
            {"accepted_prediction_tokens", accepted},
            {"rejected_prediction_tokens", drafted - std::min(accepted, drafted)}}}};
}

OrderedJson CompletionAnswer::UsageSoFar(size_t index) const {
  if (!request_.usage_so_far) return nullptr;
  const Choice& choice = choices_[index];
  const uint64_t prompt = choice.started.prompt_tokens();
  return {{"prompt_tokens", prompt},
          {"completion_tokens", choice.num_tokens},
          {"total_tokens", prompt + choice.num_tokens}};
}

OrderedJson TandemJson(const v1::GenerationStarted& started, const v1::SpeculationStats& stats) {
  OrderedJson json = {{"seed", started.seed()},
                      {"drafter", started.drafter().empty() ? OrderedJson() : OrderedJson(started.drafter())},
                      {"rounds", stats.rounds()},
                      {"drafted_rounds", stats.drafted_rounds()},
                      {"draft_tokens", stats.draft_tokens()},
                      {"accepted_tokens", stats.accepted_tokens()},
                      {"drafter_accepted_tokens", stats.drafter_accepted_tokens()},
                      {"mean_acceptance_length", FiniteNumber(stats.mean_acceptance_length())},
                      {"draft_acceptance_rate", FiniteNumber(stats.draft_acceptance_rate())}};
  if (!stats.drafter_lost().empty()) json["drafter_lost"] = stats.drafter_lost();
  return json;
}

std::string CompletionAnswer::AddPrompt(size_t index, const v1::PromptChunk& prompt,
                                        const PromptEncoder& encoder) {
  Choice& choice = choices_[index];
  const TokenSpelling spelling(encoder, request_.tokens_as_ids);
  if (EchoesLogprobs() && prompt.offset() == 0) {
    const size_t num_added = NumAdded(index, {prompt.tokens().begin(), prompt.tokens().end()}, encoder);
    if (EchoesGivenText(index)) {
      choice.echo.emplace(RequestOf(index).text(), num_added);
    } else {
      choice.echo.emplace(num_added);
    }
  }
  OrderedJson echoed = OrderedJson::array();
  for (int i = 0; i < prompt.tokens_size() && i < prompt.details_size(); ++i) {
    const uint32_t token = prompt.tokens(i);
    // Nothing comes before the first token.
    const bool first = prompt.offset() == 0 && i == 0;
    if (request_.prompt_logprobs.has_value()) {
      choice.prompt_logprobs.push_back(first ? OrderedJson()
                                             : PromptLogprob(token, prompt.details(i), spelling));
    }
    if (!choice.echo.has_value()) continue;
    const size_t offset =
        choice.echo->Next(spelling.Bytes(token), encoder.IsSpecial(static_cast<TokenId>(token)));
    OrderedJson entry = TextLogprob(token, prompt.details(i), offset, spelling);
    if (first) entry["logprob"] = entry["top"] = nullptr;
    echoed.push_back(std::move(entry));
  }
  if (!EchoesLogprobs() || echoed.empty()) return "";
  if (request_.stream) return Chunk(index, "", std::move(echoed), {}, /*first=*/true);
  for (OrderedJson& entry : echoed) choice.logprobs.push_back(std::move(entry));
  return "";
}

OrderedJson CompletionAnswer::Logprobs(size_t index, const v1::GenerationChunk& chunk,
                                       const PromptEncoder& encoder) {
  if (!request_.logprobs.has_value()) return nullptr;
  Choice& choice = choices_[index];
  const TokenSpelling spelling(encoder, request_.tokens_as_ids);
  const bool specials_have_text = RequestOf(index).output().include_special_tokens();
  OrderedJson entries = OrderedJson::array();
  for (int i = 0; i < chunk.tokens_size() && i < chunk.details_size(); ++i) {
    const uint32_t token = chunk.tokens(i);
    if (request_.chat()) {
      entries.push_back(ChatLogprob(token, chunk.details(i), spelling));
      continue;
    }
    // Where it stands does not depend on how much of the text is held back.
    const size_t offset = choice.echoed_characters + choice.characters.whole();
    entries.push_back(TextLogprob(token, chunk.details(i), offset, spelling));
    if (specials_have_text || !encoder.IsSpecial(static_cast<TokenId>(token)))
      choice.characters.Add(spelling.Bytes(token));
  }
  return entries;
}

void CompletionAnswer::BeginEcho(size_t index, const PromptEncoder& encoder) {
  if (!request_.echo) return;
  Choice& choice = choices_[index];
  const v1::GenerateRequest& prompt = RequestOf(index);
  if (request_.chat()) {
    // As vLLM does, what the assistant has said already.
    const v1::ChatMessage& last = *prompt.chat().messages().rbegin();
    if (last.role() == "assistant") {
      choice.parsed.set_content(last.content_parts().empty() ? last.content()
                                                             : absl::StrJoin(last.content_parts(), "\n"));
    }
    return;
  }
  if (EchoesGivenText(index)) {
    choice.text = prompt.text();
  } else {
    const auto& ids =
        prompt.has_truncate_prompt_tokens() ? choice.started.prompt_token_ids() : prompt.token_ids().ids();
    const TokenIds tokens(ids.begin(), ids.end());
    std::string bytes;
    for (size_t i = NumAdded(index, tokens, encoder); i < tokens.size(); ++i)
      absl::StrAppend(&bytes, encoder.TokenBytes(tokens[i]));
    choice.text = TextOfBytes(bytes);
  }
  choice.echoed_characters = NumCharacters(choice.text);
}

bool CompletionAnswer::EchoesGivenText(size_t index) const {
  return RequestOf(index).has_text() && !RequestOf(index).has_truncate_prompt_tokens();
}

size_t CompletionAnswer::NumAdded(size_t index, const TokenIds& tokens, const PromptEncoder& encoder) const {
  const v1::GenerateRequest& prompt = RequestOf(index);
  return prompt.has_text() && !prompt.plain() ? NumAddedTokens(encoder, tokens) : 0;
}

std::string CompletionAnswer::OnStarted(size_t index, const v1::GenerationStarted& started,
                                        const PromptEncoder& encoder) {
  Choice& choice = choices_[index];
  model_ = NameOfModel(started);
  choice.started = started;
  if (request_.logprobs.has_value()) choice.logprobs = OrderedJson::array();
  if (request_.prompt_logprobs.has_value()) choice.prompt_logprobs = OrderedJson::array();
  BeginEcho(index, encoder);
  if (!request_.chat())
    return choice.text.empty() ? "" : Chunk(index, choice.text, nullptr, {}, /*first=*/true);
  std::string out = Chunk(index, {{"role", "assistant"}, {"content", ""}}, nullptr, {}, /*first=*/true);
  if (!choice.parsed.content().empty())
    out += Chunk(index, {{"content", choice.parsed.content()}}, nullptr, {}, /*first=*/true);
  return out;
}

std::string CompletionAnswer::OnFinished(size_t index, const v1::GenerationFinished& finished) {
  Choice& choice = choices_[index];
  std::string out;
  std::vector<OrderedJson> said = Said(index, finished.deltas());
  for (OrderedJson& delta : choice.parsed.Finish()) said.push_back(std::move(delta));
  if (request_.stream && (!finished.text().empty() || !said.empty()))
    out = Pieces(index, finished.text(), std::move(said), nullptr, {});
  choice.text += finished.text();
  choice.finish_reason = FinishReasonOf(finished.reason());
  // An output that a limit has cut says so, with or without calls. A call that something else has cut is
  // none.
  if (choice.finish_reason == "stop" && choice.parsed.LastCallIsCut()) {
    choice.parsed.DropLastCall();
  } else if (choice.finish_reason == "stop" && choice.parsed.has_calls()) {
    choice.finish_reason = "tool_calls";
  }
  choice.matched_stop = finished.matched_stop();
  choice.usage = finished.usage();
  choice.speculation = finished.speculation();
  return out + LastChunk(index);
}

std::string CompletionAnswer::OnEvent(size_t index, const v1::GenerateResponse& event,
                                      const PromptEncoder& encoder) {
  Choice& choice = choices_[index];
  std::string out;
  if (event.has_started()) out = OnStarted(index, event.started(), encoder);
  if (event.has_prompt()) out = AddPrompt(index, event.prompt(), encoder);
  if (event.has_chunk()) {
    const v1::GenerationChunk& chunk = event.chunk();
    const std::vector<uint32_t> tokens(chunk.tokens().begin(), chunk.tokens().end());
    choice.num_tokens += tokens.size();
    OrderedJson logprobs = Logprobs(index, chunk, encoder);
    std::vector<OrderedJson> said = Said(index, chunk.deltas());
    if (request_.stream) {
      out = Pieces(index, chunk.text(), std::move(said), std::move(logprobs), tokens);
    } else {
      choice.text += chunk.text();
      choice.tokens.insert(choice.tokens.end(), tokens.begin(), tokens.end());
      for (OrderedJson& entry : logprobs) choice.logprobs.push_back(std::move(entry));
    }
  }
  if (event.has_finished()) out += OnFinished(index, event.finished());
  return request_.stream ? out : "";
}

std::vector<OrderedJson> CompletionAnswer::Said(
    size_t index, const google::protobuf::RepeatedPtrField<v1::OutputDelta>& deltas) {
  std::vector<OrderedJson> said;
  for (const v1::OutputDelta& delta : deltas) {
    for (OrderedJson& json : choices_[index].parsed.Add(delta)) said.push_back(std::move(json));
  }
  return said;
}

std::string CompletionAnswer::Pieces(size_t index, const std::string& text, std::vector<OrderedJson> said,
                                     OrderedJson logprobs, const std::vector<uint32_t>& tokens) {
  const bool tells = !logprobs.is_null() || (request_.return_token_ids && !tokens.empty());
  if (!request_.chat()) {
    return text.empty() && !tells ? "" : Chunk(index, text, std::move(logprobs), tokens, /*first=*/false);
  }
  std::string out;
  // The first event has the data about the tokens, whether or not their text is certain.
  if (said.empty() && tells)
    out = Chunk(index, {{"content", ""}}, std::move(logprobs), tokens, /*first=*/false);
  for (size_t i = 0; i < said.size(); ++i) {
    out += Chunk(index, std::move(said[i]), i == 0 ? std::move(logprobs) : OrderedJson(),
                 i == 0 ? tokens : std::vector<uint32_t>(), /*first=*/false);
  }
  return out;
}

std::string CompletionAnswer::Chunk(size_t index, OrderedJson said, OrderedJson logprobs,
                                    const std::vector<uint32_t>& tokens, bool first) {
  if (!request_.stream) return "";
  OrderedJson choice = {{"index", index}};
  choice[request_.chat() ? "delta" : "text"] = std::move(said);
  choice["logprobs"] = LogprobsField(request_.chat(), logprobs, SIZE_MAX);
  choice["finish_reason"] = nullptr;
  if (request_.return_token_ids && !first) choice["token_ids"] = tokens;
  OrderedJson frame = Frame(/*chunk=*/true);
  // The first event of a choice has the prompt; in chats vLLM has it beside the choices.
  if (request_.return_token_ids && !std::exchange(choices_[index].told_prompt, true))
    (request_.chat() ? frame : choice)["prompt_token_ids"] = PromptTokensOf(index);
  frame["choices"] = OrderedJson::array({std::move(choice)});
  // With include_usage every event before the last has the field, which is null unless more was requested.
  if (request_.include_usage) frame["usage"] = UsageSoFar(index);
  return ServerSentEvent(frame);
}

std::string CompletionAnswer::LastChunk(size_t index) const {
  if (!request_.stream) return "";
  const Choice& ended = choices_[index];
  OrderedJson choice = {{"index", index}};
  if (request_.chat()) {
    choice["delta"] = OrderedJson::object();
  } else {
    choice["text"] = "";
  }
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = ended.finish_reason;
  choice["stop_reason"] = ended.matched_stop.empty() ? OrderedJson() : OrderedJson(ended.matched_stop);
  choice["tandem"] = TandemJson(ended.started, ended.speculation);
  OrderedJson frame = Frame(/*chunk=*/true);
  frame["choices"] = OrderedJson::array({std::move(choice)});
  if (request_.include_usage) frame["usage"] = UsageSoFar(index);
  return ServerSentEvent(frame);
}

std::string CompletionAnswer::Failure(const absl::Status& status) {
  return absl::StrCat(ServerSentEvent(ErrorJson(status, &request_.names)), "data: [DONE]\n\n");
}

std::string CompletionAnswer::Ending() {
  std::string out;
  if (request_.include_usage) {
    OrderedJson frame = Frame(/*chunk=*/true);
    frame["choices"] = OrderedJson::array();
    frame["usage"] = Usage();
    out = ServerSentEvent(frame);
  }
  return out + "data: [DONE]\n\n";
}

OrderedJson CompletionAnswer::Whole() {
  OrderedJson choices = OrderedJson::array();
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Choice& choice = choices_[i];
    OrderedJson json = {{"index", i}};
    if (request_.chat()) {
      json["message"] = choice.parsed.Message();
    } else {
      json["text"] = choice.text;
    }
    json["logprobs"] = LogprobsField(request_.chat(), choice.logprobs, NumCharacters(choice.text));
    json["finish_reason"] = choice.finish_reason;
    json["stop_reason"] = choice.matched_stop.empty() ? OrderedJson() : OrderedJson(choice.matched_stop);
    if (request_.return_token_ids) json["token_ids"] = choice.tokens;
    if (request_.return_token_ids && !request_.chat()) json["prompt_token_ids"] = PromptTokensOf(i);
    // In chats vLLM has it beside the choices.
    if (request_.prompt_logprobs.has_value() && !request_.chat())
      json["prompt_logprobs"] = PromptLogprobsOf(i);
    json["tandem"] = TandemJson(choice.started, choice.speculation);
    choices.push_back(std::move(json));
  }
  OrderedJson frame = Frame(/*chunk=*/false);
  frame["choices"] = std::move(choices);
  frame["usage"] = Usage();
  if (request_.prompt_logprobs.has_value() && request_.chat()) frame["prompt_logprobs"] = PromptLogprobsOf(0);
  if (request_.return_token_ids && request_.chat()) frame["prompt_token_ids"] = PromptTokensOf(0);
  return frame;
}

}  // namespace tandem::router
