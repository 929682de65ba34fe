#include "router/serving/request.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/rpc/sampling_wire.h"
#include "common/rpc/status.h"
#include "common/speculation/policies/window_policy.h"
#include "router/config/config.h"
#include "router/models/tool_choice.h"

namespace tandem::router {
namespace {

template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

absl::Status ValidateChat(const v1::ChatPrompt& chat, bool constrained) {
  if (chat.messages().empty()) return Invalid("chat.messages: empty, expected at least one message");
  if (chat.messages_size() > kMaxChatMessages) {
    return Invalid("chat.messages: ", chat.messages_size(), " messages, expected at most ", kMaxChatMessages);
  }
  size_t bytes = 0;
  for (int i = 0; i < chat.messages_size(); ++i) {
    const v1::ChatMessage& message = chat.messages(i);
    if (message.role().empty()) return Invalid("chat.messages[", i, "].role: empty");
    if (message.has_content() && !message.content_parts().empty())
      return Invalid("chat.messages[", i, "].content_parts: set beside content, expected one of them");
    bytes += message.ByteSizeLong();
  }
  bytes += chat.template_variables().size() + chat.documents().size();
  for (const v1::Tool& tool : chat.tools()) bytes += tool.ByteSizeLong();
  if (bytes > kMaxPromptBytes) {
    return Invalid("chat.messages: ", bytes, " bytes in all, tools included, expected at most ",
                   kMaxPromptBytes);
  }
  return ValidateTools(chat, constrained);
}

absl::Status ValidatePrompt(const v1::GenerateRequest& request) {
  if (request.plain() && !request.has_text())
    return Invalid("plain: only with text; other prompts have no tokens added to them");
  if (request.has_truncate_prompt_tokens() &&
      (request.truncate_prompt_tokens() < -1 || request.truncate_prompt_tokens() == 0)) {
    return Invalid("truncate_prompt_tokens: ", request.truncate_prompt_tokens(),
                   ", expected -1 or at least 1");
  }
  switch (request.prompt_case()) {
    case v1::GenerateRequest::kText:
      if (request.text().empty()) return Invalid("text: empty, expected a prompt");
      if (request.text().size() > kMaxPromptBytes) {
        return Invalid("text: ", request.text().size(), " bytes, expected at most ", kMaxPromptBytes);
      }
      return absl::OkStatus();
    case v1::GenerateRequest::kTokenIds:
      if (request.token_ids().ids().empty()) return Invalid("token_ids: empty, expected a prompt");
      return absl::OkStatus();
    case v1::GenerateRequest::kChat:
      return ValidateChat(request.chat(), request.has_constraint());
    case v1::GenerateRequest::PROMPT_NOT_SET:
      return Invalid("prompt: missing, expected text, token_ids or chat");
  }
  return Invalid("prompt: unknown kind");
}

// Of a prompt that is only scored.
absl::Status ValidateScoring(const v1::GenerateRequest& request) {
  if (!request.output().has_prompt_logprobs())
    return Invalid("stopping.max_tokens: 0, expected at least 1 without prompt_logprobs");
  if (request.num_outputs() > 1)
    return Invalid("stopping.max_tokens: 0, expected at least 1 with several outputs");
  if (request.has_resume()) return Invalid("stopping.max_tokens: 0, expected at least 1 with resume");
  if (request.speculation().mode() == v1::SPECULATION_MODE_ON)
    return Invalid("speculation.mode: ON, but stopping.max_tokens is 0");
  return absl::OkStatus();
}

absl::Status ValidateStopping(const v1::GenerateRequest& request) {
  const v1::StopConditions& stopping = request.stopping();
  if (stopping.has_max_tokens() && stopping.max_tokens() == 0)
    TANDEM_RETURN_IF_ERROR(ValidateScoring(request));
  if (stopping.has_max_tokens() && stopping.min_tokens() > stopping.max_tokens()) {
    return Invalid("stopping.min_tokens: ", stopping.min_tokens(), ", expected at most max_tokens, ",
                   stopping.max_tokens());
  }
  if (stopping.stop_size() > kMaxStopStrings) {
    return Invalid("stopping.stop: ", stopping.stop_size(), " strings, expected at most ", kMaxStopStrings);
  }
  for (int i = 0; i < stopping.stop_size(); ++i) {
    const size_t bytes = stopping.stop(i).size();
    if (bytes == 0 || bytes > kMaxStopBytes) {
      return Invalid("stopping.stop[", i, "]: ", bytes, " bytes, expected 1 to ", kMaxStopBytes);
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateBadWords(const v1::SamplingParameters& sampling) {
  if (sampling.bad_words_size() > kMaxBadWords) {
    return Invalid("sampling.bad_words: ", sampling.bad_words_size(), " words, expected at most ",
                   kMaxBadWords);
  }
  for (int i = 0; i < sampling.bad_words_size(); ++i) {
    const size_t bytes = sampling.bad_words(i).size();
    if (bytes == 0 || bytes > kMaxBadWordBytes)
      return Invalid("sampling.bad_words[", i, "]: ", bytes, " bytes, expected 1 to ", kMaxBadWordBytes);
  }
  return absl::OkStatus();
}

// What it says is for the verifier to judge, which compiles it.
absl::Status ValidateConstraint(const v1::GenerateRequest& request) {
  const size_t bytes = request.constraint().ByteSizeLong();
  if (bytes > kMaxConstraintBytes) {
    return Invalid("constraint: ", bytes, " bytes, expected at most ", kMaxConstraintBytes);
  }
  if (request.constraint().form_case() == v1::Constraint::FORM_NOT_SET) {
    return Invalid(
        "constraint: expected json_schema, json_object, regex, grammar, choices or structural_tags");
  }
  return absl::OkStatus();
}

// Options for drafting are refused if the mode turns drafting off, so that no option is silently ignored.
absl::Status ValidateSpeculation(const v1::SpeculationOptions& speculation) {
  if (!v1::SpeculationMode_IsValid(speculation.mode())) {
    return Invalid("speculation.mode: ", static_cast<int>(speculation.mode()), ", expected 0, 1 or 2");
  }
  if (speculation.mode() == v1::SPECULATION_MODE_OFF) {
    constexpr absl::string_view kOff = "set, but speculation.mode is OFF";
    if (!speculation.drafter().empty()) return Invalid("speculation.drafter: ", kOff);
    if (!speculation.partner().empty()) return Invalid("speculation.partner: ", kOff);
    if (!speculation.window_policy().empty()) return Invalid("speculation.window_policy: ", kOff);
    if (speculation.max_window() > 0) return Invalid("speculation.max_window: ", kOff);
    return absl::OkStatus();
  }
  if (!speculation.partner().empty() && speculation.drafter().empty()) {
    return Invalid("speculation.partner: set, but speculation.drafter is not");
  }
  if (!speculation.partner().empty() && speculation.partner() == speculation.drafter()) {
    return Invalid("speculation.partner: the drafter itself, expected another one");
  }
  if (speculation.window_policy().empty()) return absl::OkStatus();
  const std::vector<std::string> known = WindowPolicyNames();
  if (std::find(known.begin(), known.end(), speculation.window_policy()) != known.end())
    return absl::OkStatus();
  return Invalid("speculation.window_policy: \"", absl::CHexEscape(speculation.window_policy().substr(0, 64)),
                 "\", expected one of ", absl::StrJoin(known, ", "));
}

// Of what a text or list may be that is only drafted from.
absl::Status ValidatePrediction(const v1::GenerateRequest& request) {
  if (!request.has_prediction()) return absl::OkStatus();
  if (request.speculation().mode() == v1::SPECULATION_MODE_OFF)
    return Invalid("prediction: set, but speculation.mode is OFF");
  const v1::Prediction& prediction = request.prediction();
  switch (prediction.content_case()) {
    case v1::Prediction::kText:
      if (prediction.text().size() <= kMaxPredictionBytes) return absl::OkStatus();
      return Invalid("prediction.text: ", prediction.text().size(), " bytes, expected at most ",
                     kMaxPredictionBytes);
    case v1::Prediction::kTokenIds:
      if (prediction.token_ids().ids_size() <= kMaxPredictionTokens) return absl::OkStatus();
      return Invalid("prediction.token_ids: ", prediction.token_ids().ids_size(),
                     " tokens, expected at most ", kMaxPredictionTokens);
    case v1::Prediction::CONTENT_NOT_SET:
      break;
  }
  return Invalid("prediction: empty, expected text or token_ids");
}

absl::Status ValidateOutputs(const v1::GenerateRequest& request) {
  if (request.num_outputs() > kMaxOutputs)
    return Invalid("num_outputs: ", request.num_outputs(), ", expected at most ", kMaxOutputs);
  if (request.priority() < -kMostPriority || request.priority() > kMostPriority) {
    return Invalid("priority: ", request.priority(), ", expected [", -kMostPriority, ", ", kMostPriority,
                   "]");
  }
  if (request.num_outputs() <= 1) return absl::OkStatus();
  if (request.has_resume()) {
    return Invalid("num_outputs: ", request.num_outputs(),
                   ", expected 1 with resume: each output is resumed by itself");
  }
  // Their own ids have a number behind it.
  if (request.request_id().size() + 3 > kMaxRequestIdBytes) {
    return Invalid("request_id: ", request.request_id().size(), " bytes, expected at most ",
                   kMaxRequestIdBytes - 3, " with several outputs");
  }
  return absl::OkStatus();
}

// `field` names the list in messages.
absl::Status ValidateTokens(absl::string_view field, const google::protobuf::RepeatedField<uint32_t>& tokens,
                            int32_t vocab_size) {
  for (int i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= static_cast<uint32_t>(vocab_size)) {
      return Invalid(field, "[", i, "]: ", tokens[i], ", expected a token id below ", vocab_size);
    }
  }
  return absl::OkStatus();
}

// Why a prompt could not be encoded: a model that lacks the means (a chat template, say) is a
// FailedPrecondition, anything else is the prompt's fault, a template that ran out of its budget on it
// included.
absl::Status PromptError(absl::string_view field, const absl::Status& status) {
  const bool model_lacks_it = absl::IsNotFound(status) || absl::IsUnimplemented(status);
  return absl::Status(
      model_lacks_it ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kInvalidArgument,
      absl::StrCat(field, ": ", status.message()));
}

// The cost, in tokens, of a text that cannot be encoded. It is unknown, so four bytes count as one token.
uint64_t CostOfRefusal(const v1::GenerateRequest& request, uint64_t most) {
  return std::min<uint64_t>(most, 1 + request.ByteSizeLong() / 4);
}

// The most tokens that the prompt may have: there must be room for one more, unless it is only scored.
size_t MostPromptTokens(const v1::GenerateRequest& request, const ServedModel& model) {
  const bool scored = request.stopping().has_max_tokens() && request.stopping().max_tokens() == 0;
  return static_cast<size_t>(std::max(model.context_length, 1)) - (scored ? 0 : 1);
}

absl::Status TooLong(absl::string_view field, absl::string_view length, size_t most,
                     const ServedModel& model) {
  return WithReason(Invalid(field, ": ", length, " tokens, expected at most ", most,
                            ": the model's maximum context length is ", model.context_length, " tokens"),
                    kContextLengthExceeded);
}

// Cuts the prompt as the request asks. `num_added`: tokens at its front that the tokenizer put there.
void Truncate(const v1::GenerateRequest& request, const ServedModel& model, size_t num_added,
              TokenIds& tokens) {
  if (!request.has_truncate_prompt_tokens()) return;
  // An output that takes the room that there is needs that of one token.
  const bool limited = request.stopping().has_max_tokens() && !request.stopping().fit_max_tokens();
  const int64_t limit = limited ? request.stopping().max_tokens() : 1;
  const int64_t kept = request.truncate_prompt_tokens() > 0
                           ? request.truncate_prompt_tokens()
                           : std::max<int64_t>(model.context_length - limit, 1);
  if (static_cast<int64_t>(tokens.size()) <= kept) return;
  const auto first = static_cast<ptrdiff_t>(std::min(num_added, static_cast<size_t>(kept)));
  tokens.erase(tokens.begin() + first, tokens.end() - (static_cast<ptrdiff_t>(kept) - first));
}

// The tokens of a prompt that is text or a chat, which `field` names.
absl::StatusOr<TokenIds> EncodePrompt(absl::string_view field, const v1::GenerateRequest& request,
                                      const ServedModel& model, uint64_t& tokenized) {
  const size_t most = MostPromptTokens(request, model);
  // A text that is cut is read to its end, which its bytes bound.
  const size_t read = request.has_truncate_prompt_tokens() ? std::numeric_limits<size_t>::max() : most;
  absl::StatusOr<TokenIds> tokens = request.has_text()
                                        ? model.encoder->EncodeText(request.text(), read, request.plain())
                                        : model.encoder->EncodeChat(request.chat(), read);
  if (absl::IsOutOfRange(tokens.status())) {
    tokenized = most + 1;
    return TooLong(field, absl::StrCat("more than ", most), most, model);
  }
  if (!tokens.ok()) {
    tokenized = CostOfRefusal(request, most + 1);
    return PromptError(field, tokens.status());
  }
  tokenized = tokens->size();
  const bool has_added = request.has_text() && !request.plain() && request.has_truncate_prompt_tokens();
  Truncate(request, model, has_added ? NumAddedTokens(*model.encoder, *tokens) : 0, *tokens);
  return tokens;
}

// The prompt's tokens, at least one and few enough to leave room for one more.
absl::StatusOr<v1::TokenIds> PromptTokens(const v1::GenerateRequest& request, const ServedModel& model,
                                          uint64_t& tokenized) {
  TokenIds tokens;
  absl::string_view field;
  switch (request.prompt_case()) {
    case v1::GenerateRequest::kTokenIds:
      field = "token_ids";
      TANDEM_RETURN_IF_ERROR(ValidateTokens("token_ids.ids", request.token_ids().ids(), model.vocab_size));
      tokens.assign(request.token_ids().ids().begin(), request.token_ids().ids().end());
      Truncate(request, model, /*num_added=*/0, tokens);
      break;
    case v1::GenerateRequest::kText:
    case v1::GenerateRequest::kChat: {
      field = request.has_text() ? "text" : "chat";
      TANDEM_ASSIGN_OR_RETURN(tokens, EncodePrompt(field, request, model, tokenized));
      break;
    }
    case v1::GenerateRequest::PROMPT_NOT_SET:
      break;
  }
  if (tokens.empty()) return Invalid(field, ": the prompt has no tokens");
  const size_t most = MostPromptTokens(request, model);
  if (tokens.size() > most) return TooLong(field, absl::StrCat(tokens.size()), most, model);
  v1::TokenIds prompt;
  prompt.mutable_ids()->Add(tokens.begin(), tokens.end());
  return prompt;
}

// A word's tokens at the start of a text, and behind a blank where these begin otherwise and are as many: as
// vLLM has it.
absl::Status BanWord(absl::string_view word, const std::string& field, const ServedModel& model,
                     v1::SamplingParameters& sampling) {
  TokenIds first;
  for (const absl::string_view before : {"", " "}) {
    const std::string text = absl::StrCat(before, absl::StripLeadingAsciiWhitespace(word));
    const absl::StatusOr<TokenIds> tokens =
        model.encoder->EncodeText(text, kMaxBadWordTokens, /*plain=*/true);
    if (absl::IsOutOfRange(tokens.status()))
      return Invalid(field, ": more than ", kMaxBadWordTokens, " tokens");
    if (!tokens.ok()) return PromptError(field, tokens.status());
    if (before.empty()) {
      if (tokens->empty()) return Invalid(field, ": the word has no tokens");
      first = *tokens;
    } else if (tokens->size() != first.size() || tokens->front() == first.front()) {
      return absl::OkStatus();
    }
    sampling.add_banned_sequences()->mutable_ids()->Add(tokens->begin(), tokens->end());
  }
  return absl::OkStatus();
}

// Turns the words that the output may not have into tokens.
absl::Status BanWords(const ServedModel& model, v1::SamplingParameters& sampling) {
  for (int i = 0; i < sampling.bad_words_size(); ++i) {
    TANDEM_RETURN_IF_ERROR(
        BanWord(sampling.bad_words(i), absl::StrCat("sampling.bad_words[", i, "]"), model, sampling));
  }
  sampling.clear_bad_words();
  return absl::OkStatus();
}

// The prediction's tokens. `tokenized` grows by what is made of a text.
absl::Status PreparePrediction(const v1::Prediction& prediction, const ServedModel& model,
                               v1::TokenIds& prepared, uint64_t& tokenized) {
  if (prediction.has_token_ids()) {
    prepared = prediction.token_ids();
    return ValidateTokens("prediction.token_ids.ids", prepared.ids(), model.vocab_size);
  }
  if (prediction.text().empty()) return absl::OkStatus();
  const absl::StatusOr<TokenIds> tokens =
      model.encoder->EncodeText(prediction.text(), kMaxPredictionTokens, /*plain=*/true);
  if (absl::IsOutOfRange(tokens.status())) {
    tokenized += kMaxPredictionTokens;
    return Invalid("prediction.text: more than ", kMaxPredictionTokens, " tokens");
  }
  if (!tokens.ok()) return PromptError("prediction.text", tokens.status());
  tokenized += tokens->size();
  prepared.mutable_ids()->Add(tokens->begin(), tokens->end());
  return absl::OkStatus();
}

// What a chat's tools and the parsing of its output ask of the verifier.
absl::Status PrepareChat(const v1::ChatPrompt& chat, const ServedModel& model,
                         v1::VerifierGenerateRequest& prepared) {
  TANDEM_ASSIGN_OR_RETURN(std::optional<v1::Constraint> constraint, ConstraintOfTools(chat, model));
  if (constraint.has_value()) *prepared.mutable_constraint() = *std::move(constraint);
  // Or the marks that the output is parsed by would have no text.
  const bool offers = OffersTools(chat);
  if ((offers && model.has_special_call_marks) ||
      ((offers || chat.parse_output()) && model.has_special_reasoning_marks)) {
    prepared.mutable_output()->set_include_special_tokens(true);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateRequest(const v1::GenerateRequest& request) {
  const std::string& id = request.request_id();
  if (id.size() > kMaxRequestIdBytes) {
    return Invalid("request_id: ", id.size(), " bytes, expected at most ", kMaxRequestIdBytes);
  }
  if (!std::all_of(id.begin(), id.end(), [](char c) { return absl::ascii_isgraph(c); })) {
    return Invalid("request_id: expected printable ASCII characters without blanks");
  }
  if (!request.adapter().empty() && !IsGoodName(request.adapter())) {
    return Invalid("adapter: expected at most ", kMaxNameBytes, " printable ASCII characters without blanks");
  }
  TANDEM_RETURN_IF_ERROR(ValidatePrompt(request));
  TANDEM_RETURN_IF_ERROR(ValidateStopping(request));
  TANDEM_RETURN_IF_ERROR(ValidateBadWords(request.sampling()));
  if (request.cache_salt().size() > kMaxCacheSaltBytes) {
    return Invalid("cache_salt: ", request.cache_salt().size(), " bytes, expected at most ",
                   kMaxCacheSaltBytes);
  }
  TANDEM_RETURN_IF_ERROR(ValidateSpeculation(request.speculation()));
  TANDEM_RETURN_IF_ERROR(ValidatePrediction(request));
  TANDEM_RETURN_IF_ERROR(ValidateOutputs(request));
  if (request.has_constraint()) {
    TANDEM_RETURN_IF_ERROR(ValidateConstraint(request));
    if (request.stopping().min_tokens() > 0) {
      return Invalid("stopping.min_tokens: ", request.stopping().min_tokens(),
                     ", expected 0 with a constraint, which says where the output may end");
    }
  }
  // Whatever seed the router would draw is not the one that the output began with.
  if (!request.resume().emitted().ids().empty() && !request.sampling().has_seed()) {
    return Invalid("resume: sampling.seed is expected, as the stream that broke off had it in `started`");
  }
  if (request.output().has_logprobs() && request.output().logprobs() > kMaxLogprobs) {
    return Invalid("output.logprobs: ", request.output().logprobs(), ", expected at most ", kMaxLogprobs);
  }
  if (request.output().has_prompt_logprobs() && request.output().prompt_logprobs() > kMaxLogprobs) {
    return Invalid("output.prompt_logprobs: ", request.output().prompt_logprobs(), ", expected at most ",
                   kMaxLogprobs);
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::VerifierGenerateRequest> PrepareRequest(const v1::GenerateRequest& request,
                                                           const ServedModel& model,
                                                           const std::function<uint64_t()>& draw,
                                                           uint64_t& tokenized) {
  tokenized = 0;
  v1::VerifierGenerateRequest prepared;
  prepared.set_request_id(request.request_id());
  prepared.set_model(model.name);
  TANDEM_RETURN_IF_ERROR(
      ValidateTokens("stopping.stop_token_ids", request.stopping().stop_token_ids(), model.vocab_size));
  *prepared.mutable_sampling() = request.sampling();
  TANDEM_RETURN_IF_ERROR(BanWords(model, *prepared.mutable_sampling()));
  if (!prepared.sampling().has_seed()) prepared.mutable_sampling()->set_seed(draw());
  TANDEM_ASSIGN_OR_RETURN(const SamplingParameters sampling,
                          SamplingFromProto(prepared.sampling(), model.defaults, model.vocab_size));
  *prepared.mutable_sampling() = SamplingToProto(sampling);
  *prepared.mutable_stopping() = request.stopping();
  *prepared.mutable_output() = request.output();
  // These are between the client and the router.
  prepared.mutable_output()->clear_live_page();
  prepared.mutable_output()->clear_prompt_token_ids();
  *prepared.mutable_speculation() = request.speculation();
  if (request.has_constraint()) *prepared.mutable_constraint() = request.constraint();
  if (request.has_chat()) TANDEM_RETURN_IF_ERROR(PrepareChat(request.chat(), model, prepared));
  TANDEM_ASSIGN_OR_RETURN(*prepared.mutable_prompt(), PromptTokens(request, model, tokenized));
  v1::StopConditions& stopping = *prepared.mutable_stopping();
  const auto room = static_cast<uint32_t>(model.context_length - prepared.prompt().ids_size());
  // Without a number, as many as fit.
  if (stopping.fit_max_tokens() && stopping.max_tokens() > room) stopping.clear_max_tokens();
  stopping.clear_fit_max_tokens();
  TANDEM_RETURN_IF_ERROR(
      ValidateTokens("resume.emitted.ids", request.resume().emitted().ids(), model.vocab_size));
  if (request.resume().emitted().ids_size() > model.context_length - prepared.prompt().ids_size()) {
    return Invalid("resume.emitted: ", request.resume().emitted().ids_size(),
                   " tokens, expected at most the ", model.context_length - prepared.prompt().ids_size(),
                   " that the model's context has room for");
  }
  if (request.has_resume()) *prepared.mutable_emitted() = request.resume().emitted();
  // A client that has some of the output already has the prompt.
  if (!prepared.emitted().ids().empty()) prepared.mutable_output()->clear_prompt_logprobs();
  prepared.set_priority(request.priority());
  TANDEM_RETURN_IF_ERROR(
      PreparePrediction(request.prediction(), model, *prepared.mutable_prediction(), tokenized));
  if (prepared.prediction().ids().empty()) prepared.clear_prediction();
  return prepared;
}

}  // namespace tandem::router
