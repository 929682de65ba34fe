#include "router/http/openai_answer.h"

#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/utf8.h"
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

// The field that a message of the form "sampling.top_p: ..." is about, under the name it has here.
std::optional<std::string> ParameterOf(absl::string_view message) {
  const size_t colon = message.find(": ");
  if (colon == absl::string_view::npos || colon == 0) return std::nullopt;
  const absl::string_view field = message.substr(0, colon);
  for (const char c : field) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '.' && c != '[' && c != ']')
      return std::nullopt;
  }
  // Where the name is another one.
  if (field == "sampling.allowed_tokens") return "allowed_token_ids";
  if (field == "sampling.banned_tokens") return "tandem.banned_token_ids";
  for (const absl::string_view group : {"sampling.", "stopping.", "output.", "chat."}) {
    if (field.substr(0, group.size()) == group) return std::string(field.substr(group.size()));
  }
  return std::string(field);
}

const char* FinishReasonOf(v1::FinishReason reason) {
  return reason == v1::FINISH_REASON_MAX_TOKENS ? "length" : "stop";
}

OrderedJson BytesOf(absl::string_view text) {
  OrderedJson bytes = OrderedJson::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

std::string TextOf(absl::string_view bytes) {
  return CleanUtf8(bytes);
}

// Of a token that cannot be: JSON has no infinity.
double Finite(float logprob) {
  return std::isfinite(logprob) ? static_cast<double>(logprob) : -9999.0;
}

}  // namespace

int HttpStatusOf(const absl::Status& status) {
  return KindOf(status.code()).status;
}

OrderedJson ErrorJson(const absl::Status& status) {
  const ErrorKind kind = KindOf(status.code());
  const absl::string_view message(status.message().data(), status.message().size());
  const std::optional<std::string> parameter =
      absl::IsInvalidArgument(status) ? ParameterOf(message) : std::nullopt;
  return {{"error",
           {{"message", std::string(message)},
            {"type", kind.type},
            {"param", parameter.has_value() ? OrderedJson(*parameter) : OrderedJson()},
            {"code", kind.code == nullptr ? OrderedJson() : OrderedJson(kind.code)}}}};
}

HttpAnswer JsonAnswer(const OrderedJson& json) {
  return {.status = 200, .fields = {{"Content-Type", "application/json"}}, .body = Line(json)};
}

HttpAnswer ErrorAnswer(const absl::Status& status) {
  HttpAnswer answer = JsonAnswer(ErrorJson(status));
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
      choices_(request.num_choices()) {}

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
                      {"mean_acceptance_length", Finite(stats.mean_acceptance_length())},
                      {"draft_acceptance_rate", Finite(stats.draft_acceptance_rate())}};
  if (!stats.drafter_lost().empty()) json["drafter_lost"] = stats.drafter_lost();
  return json;
}

namespace {

std::string TokenText(uint32_t token, const PromptEncoder& encoder) {
  return TextOf(encoder.TokenBytes(static_cast<TokenId>(token)));
}

// An entry of the older API's log probabilities.
OrderedJson TextEntry(uint32_t token, const v1::TokenDetail& detail, size_t offset,
                      const PromptEncoder& encoder) {
  // Of tokens with one text the likelier one, which comes first, counts.
  OrderedJson top = OrderedJson::object();
  for (const v1::TokenLogprob& other : detail.top_logprobs())
    top.emplace(TokenText(other.token(), encoder), Finite(other.logprob()));
  return {{"token", TokenText(token, encoder)},
          {"logprob", Finite(detail.logprob())},
          {"top", std::move(top)},
          {"offset", offset}};
}

// A token of the prompt as vLLM has it: an object of token ids. A rank is known of the likeliest alone.
OrderedJson PromptEntry(uint32_t token, const v1::TokenDetail& detail, const PromptEncoder& encoder) {
  OrderedJson entry = OrderedJson::object();
  const auto add = [&](uint32_t id, float logprob, OrderedJson rank) {
    entry.emplace(absl::StrCat(id), OrderedJson({{"logprob", Finite(logprob)},
                                                 {"rank", std::move(rank)},
                                                 {"decoded_token", TokenText(id, encoder)}}));
  };
  for (int i = 0; i < detail.top_logprobs_size(); ++i)
    add(detail.top_logprobs(i).token(), detail.top_logprobs(i).logprob(), i + 1);
  add(token, detail.logprob(), nullptr);
  return entry;
}

}  // namespace

std::string CompletionAnswer::AddPrompt(size_t index, const v1::PromptChunk& prompt,
                                        const PromptEncoder& encoder) {
  Choice& choice = choices_[index];
  OrderedJson echoed = OrderedJson::array();
  for (int i = 0; i < prompt.tokens_size() && i < prompt.details_size(); ++i) {
    const uint32_t token = prompt.tokens(i);
    // Nothing comes before the first token.
    const bool first = prompt.offset() == 0 && i == 0;
    if (request_.prompt_logprobs.has_value()) {
      choice.prompt_logprobs.push_back(first ? OrderedJson()
                                             : PromptEntry(token, prompt.details(i), encoder));
    }
    if (!EchoesLogprobs()) continue;
    OrderedJson entry = TextEntry(token, prompt.details(i), choice.echoed_bytes, encoder);
    if (first) entry["logprob"] = entry["top"] = nullptr;
    echoed.push_back(std::move(entry));
    choice.echoed_bytes += encoder.TokenBytes(static_cast<TokenId>(token)).size();
  }
  if (!EchoesLogprobs() || echoed.empty()) return "";
  if (request_.stream) return Chunk(index, "", std::move(echoed), {}, /*first=*/true);
  for (OrderedJson& entry : echoed) choice.logprobs.push_back(std::move(entry));
  return "";
}

OrderedJson CompletionAnswer::Logprobs(const v1::GenerationChunk& chunk, size_t text_offset,
                                       const PromptEncoder& encoder) const {
  if (!request_.logprobs.has_value()) return nullptr;
  const auto text_of = [&encoder](uint32_t token) { return TokenText(token, encoder); };
  OrderedJson entries = OrderedJson::array();
  for (int i = 0; i < chunk.tokens_size() && i < chunk.details_size(); ++i) {
    const v1::TokenDetail& detail = chunk.details(i);
    const uint32_t token = chunk.tokens(i);
    if (request_.chat()) {
      OrderedJson top = OrderedJson::array();
      for (const v1::TokenLogprob& other : detail.top_logprobs()) {
        top.push_back({{"token", text_of(other.token())},
                       {"logprob", Finite(other.logprob())},
                       {"bytes", BytesOf(encoder.TokenBytes(static_cast<TokenId>(other.token())))}});
      }
      entries.push_back({{"token", text_of(token)},
                         {"logprob", Finite(detail.logprob())},
                         {"bytes", BytesOf(encoder.TokenBytes(static_cast<TokenId>(token)))},
                         {"top_logprobs", std::move(top)}});
    } else {
      entries.push_back(TextEntry(token, detail, text_offset, encoder));
    }
    text_offset += detail.text_bytes();
  }
  return entries;
}

namespace {

// As an answer has them: for chats a list, for the older API columns.
OrderedJson LogprobsField(bool chat, const OrderedJson& entries) {
  if (entries.is_null()) return nullptr;
  if (chat) return {{"content", entries}, {"refusal", nullptr}};
  OrderedJson json = {{"tokens", OrderedJson::array()},
                      {"token_logprobs", OrderedJson::array()},
                      {"top_logprobs", OrderedJson::array()},
                      {"text_offset", OrderedJson::array()}};
  for (const OrderedJson& entry : entries) {
    json["tokens"].push_back(entry["token"]);
    json["token_logprobs"].push_back(entry["logprob"]);
    json["top_logprobs"].push_back(entry["top"]);
    json["text_offset"].push_back(entry["offset"]);
  }
  return json;
}

}  // namespace

std::string CompletionAnswer::EchoOf(size_t choice, const PromptEncoder& encoder) const {
  if (!request_.echo) return "";
  const v1::GenerateRequest& prompt = request_.prompts[choice / request_.num_outputs];
  if (prompt.has_text()) return prompt.text();
  std::string text;
  for (const uint32_t id : prompt.token_ids().ids()) {
    const absl::string_view bytes = encoder.TokenBytes(static_cast<TokenId>(id));
    text.append(bytes.data(), bytes.size());
  }
  return TextOf(text);
}

std::string CompletionAnswer::OnEvent(size_t index, const v1::GenerateResponse& event,
                                      const PromptEncoder& encoder) {
  Choice& choice = choices_[index];
  std::string out;
  if (event.has_started()) {
    model_ = NameOfModel(event.started());
    choice.started = event.started();
    if (request_.logprobs.has_value()) choice.logprobs = OrderedJson::array();
    if (request_.prompt_logprobs.has_value()) choice.prompt_logprobs = OrderedJson::array();
    choice.text = EchoOf(index, encoder);
    if (request_.chat()) {
      out = Chunk(index, {{"role", "assistant"}, {"content", ""}}, nullptr, {}, /*first=*/true);
    } else if (!choice.text.empty()) {
      out = Chunk(index, choice.text, nullptr, {}, /*first=*/true);
    }
  }
  if (event.has_prompt()) out = AddPrompt(index, event.prompt(), encoder);
  if (event.has_chunk()) {
    const v1::GenerationChunk& chunk = event.chunk();
    const std::vector<uint32_t> tokens(chunk.tokens().begin(), chunk.tokens().end());
    choice.num_tokens += tokens.size();
    OrderedJson logprobs = Logprobs(chunk, choice.text.size(), encoder);
    for (const v1::OutputDelta& delta : chunk.deltas()) choice.parsed.Add(delta);
    if (request_.stream) {
      out = Pieces(index, chunk.text(), chunk.deltas(), std::move(logprobs), tokens);
      choice.text.append(chunk.text().size(), ' ');  // Only its length counts.
    } else {
      choice.text += chunk.text();
      choice.tokens.insert(choice.tokens.end(), tokens.begin(), tokens.end());
      for (OrderedJson& entry : logprobs) choice.logprobs.push_back(std::move(entry));
    }
  }
  if (event.has_finished()) {
    const v1::GenerationFinished& finished = event.finished();
    for (const v1::OutputDelta& delta : finished.deltas()) choice.parsed.Add(delta);
    if (request_.stream && (!finished.text().empty() || finished.deltas_size() > 0))
      out = Pieces(index, finished.text(), finished.deltas(), nullptr, {});
    choice.text += finished.text();
    choice.finish_reason = FinishReasonOf(finished.reason());
    // An output that a limit has cut says so, with or without calls.
    if (!choice.parsed.calls.empty() && choice.finish_reason == "stop") choice.finish_reason = "tool_calls";
    choice.matched_stop = finished.matched_stop();
    choice.usage = finished.usage();
    choice.speculation = finished.speculation();
    out += LastChunk(index);
  }
  return request_.stream ? out : "";
}

std::string CompletionAnswer::Pieces(size_t index, const std::string& text,
                                     const google::protobuf::RepeatedPtrField<v1::OutputDelta>& deltas,
                                     OrderedJson logprobs, const std::vector<uint32_t>& tokens) const {
  const bool tells = !logprobs.is_null() || (request_.return_token_ids && !tokens.empty());
  if (!request_.chat()) {
    return text.empty() && !tells ? "" : Chunk(index, text, std::move(logprobs), tokens, /*first=*/false);
  }
  std::string out;
  // The first event has the data about the tokens, whether or not their text is certain.
  if (deltas.empty() && tells)
    out = Chunk(index, {{"content", ""}}, std::move(logprobs), tokens, /*first=*/false);
  for (int i = 0; i < deltas.size(); ++i) {
    out += Chunk(index, ChatDelta(deltas[i]), i == 0 ? std::move(logprobs) : OrderedJson(),
                 i == 0 ? tokens : std::vector<uint32_t>(), /*first=*/false);
  }
  return out;
}

std::string CompletionAnswer::Chunk(size_t index, OrderedJson said, OrderedJson logprobs,
                                    const std::vector<uint32_t>& tokens, bool first) const {
  if (!request_.stream) return "";
  OrderedJson choice = {{"index", index}};
  choice[request_.chat() ? "delta" : "text"] = std::move(said);
  choice["logprobs"] = LogprobsField(request_.chat(), logprobs);
  choice["finish_reason"] = nullptr;
  if (request_.return_token_ids && !first) choice["token_ids"] = tokens;
  OrderedJson frame = Frame(/*chunk=*/true);
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
  return absl::StrCat(ServerSentEvent(ErrorJson(status)), "data: [DONE]\n\n");
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
      json["message"] = ChatMessageJson(choice.parsed);
    } else {
      json["text"] = choice.text;
    }
    json["logprobs"] = LogprobsField(request_.chat(), choice.logprobs);
    json["finish_reason"] = choice.finish_reason;
    json["stop_reason"] = choice.matched_stop.empty() ? OrderedJson() : OrderedJson(choice.matched_stop);
    if (request_.return_token_ids) json["token_ids"] = choice.tokens;
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
  return frame;
}

}  // namespace tandem::router
