#include "router/http/openai_request.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/config/strict_json.h"
#include "common/rpc/status.h"
#include "router/http/openai_constraint.h"
#include "router/http/openai_json.h"
#include "router/http/openai_messages.h"
#include "router/serving/request.h"

namespace tandem::router {
namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();

void ReadTokens(JsonFields& fields, absl::string_view name,
                google::protobuf::RepeatedField<uint32_t>& tokens) {
  const Json* const ids = fields.Find(name);
  if (ids == nullptr) return;
  if (!ids->is_array()) return fields.Fail(name, "expected a list of token ids", kInvalidType);
  for (size_t i = 0; i < ids->size(); ++i) {
    const std::optional<uint32_t> token = TokenIdOf((*ids)[i]);
    if (!token.has_value()) {
      return fields.Fail(absl::StrCat(name, "[", i, "]"),
                         absl::StrCat("found ", PrintableValue((*ids)[i]), ", expected a token id"),
                         (*ids)[i].is_number() ? kInvalidValue : kInvalidType);
    }
    tokens.Add(*token);
  }
}

void ReadTokenLimit(JsonFields& fields, FieldNames& names, v1::StopConditions& stopping) {
  const auto max_tokens = fields.Integer("max_tokens", 0, kMaxInt);
  const auto max_completion_tokens = fields.Integer("max_completion_tokens", 0, kMaxInt);
  if (max_tokens.has_value() && max_completion_tokens.has_value() && *max_tokens != *max_completion_tokens)
    fields.Fail("max_tokens", "differs from max_completion_tokens; expected one of them");
  if (max_completion_tokens.has_value()) names.Set("stopping.max_tokens", "max_completion_tokens");
  if (const auto most = max_completion_tokens.has_value() ? max_completion_tokens : max_tokens)
    stopping.set_max_tokens(static_cast<uint32_t>(*most));
}

void ReadNumOutputs(JsonFields& fields, CompletionRequest& completion, v1::GenerateRequest& request) {
  const auto number = fields.Integer("n", 1, kMaxOutputs);
  if (number.has_value()) completion.num_outputs = static_cast<uint32_t>(*number);
  if (completion.num_outputs > 1) request.set_num_outputs(completion.num_outputs);
  const auto best_of = fields.Integer("best_of", 0, kMaxInt);
  if (best_of.value_or(1) > 1 && best_of != completion.num_outputs) {
    fields.Fail("best_of", "expected 1 or n: the answer contains all outputs that are generated",
                kUnsupportedParameter);
  }
  fields.Refuse("use_beam_search", "expected false");
}

void ReadPromptLogprobs(JsonFields& fields, CompletionRequest& completion, v1::GenerateRequest& request) {
  const auto number = fields.Integer("prompt_logprobs", 0, kMaxLogprobs);
  if (!number.has_value()) return;
  if (completion.stream) fields.Fail("prompt_logprobs", "not together with stream, as in vLLM");
  completion.prompt_logprobs = static_cast<uint32_t>(*number);
  request.mutable_output()->set_prompt_logprobs(*completion.prompt_logprobs);
}

void ReadStreamOptions(JsonFields& fields, CompletionRequest& completion) {
  if (const auto stream = fields.Flag("stream")) completion.stream = *stream;
  const Json* const options = fields.Find("stream_options");
  if (options == nullptr) return;
  JsonFields own(*options, fields, "stream_options.");
  if (const auto usage = own.Flag("include_usage")) completion.include_usage = *usage;
  own.Ignore("include_obfuscation");
  // Without include_usage it has no effect, as in vLLM.
  completion.usage_so_far = own.Flag("continuous_usage_stats").value_or(false) && completion.include_usage;
  fields.Update(own.Finish());
  if (!completion.stream) fields.Fail("stream_options", "set, but stream is not");
}

// What llama.cpp and SGLang call constraints: without effect they would be missed.
void RefuseForeignConstraints(JsonFields& fields) {
  for (const char* name : {"grammar", "ebnf"})
    fields.Refuse(name, "not supported; expected guided_grammar", "");
  fields.Refuse("regex", "not supported; expected guided_regex", "");
  fields.Refuse("json_schema", "not supported; expected response_format", Json::object());
}

// What both kinds of request have.
void ReadCommon(absl::string_view body, JsonFields& fields, CompletionRequest& completion,
                v1::GenerateRequest& request) {
  if (auto model = fields.Text("model")) request.set_model(*std::move(model));
  ReadSampling(fields, *request.mutable_sampling());
  ReadTokenLimit(fields, completion.names, *request.mutable_stopping());
  ReadStopping(fields, *request.mutable_stopping());
  ReadTandem(fields, request);
  ReadStreamOptions(fields, completion);
  ReadNumOutputs(fields, completion, request);
  ReadPromptLogprobs(fields, completion, request);
  ReadPriority(fields, request);
  ReadPrediction(fields, request);
  ReadPromptOptions(fields, request);
  if (const auto skip = fields.Flag("skip_special_tokens"))
    request.mutable_output()->set_include_special_tokens(!*skip);
  completion.return_token_ids = fields.Flag("return_token_ids").value_or(false);
  request.mutable_output()->set_prompt_token_ids(completion.return_token_ids);
  completion.tokens_as_ids = fields.Flag("return_tokens_as_token_ids").value_or(false);
  ReadConstraint(body, fields, completion.names, request);
  AcceptOthers(fields);
  RefuseOthers(fields);
  RefuseForeignConstraints(fields);
}

// A prompt is text, or token ids.
bool SetPrompt(const Json& prompt, v1::GenerateRequest& request) {
  if (prompt.is_string()) {
    request.set_text(prompt.get<std::string>());
    return true;
  }
  if (!prompt.is_array() || prompt.empty()) return false;
  v1::TokenIds tokens;
  for (const Json& id : prompt) {
    const std::optional<uint32_t> token = TokenIdOf(id);
    if (!token.has_value()) return false;
    tokens.add_ids(*token);
  }
  *request.mutable_token_ids() = std::move(tokens);
  return true;
}

// `prompt` is one, or a list of them.
void ReadPrompts(JsonFields& fields, const v1::GenerateRequest& common, CompletionRequest& completion) {
  static constexpr absl::string_view kExpected =
      "expected a text, a list of token ids, or a list of either; none empty";
  const Json* const prompt = fields.Find("prompt");
  if (prompt == nullptr) return fields.Missing("prompt");
  v1::GenerateRequest single = common;
  if (SetPrompt(*prompt, single)) return completion.prompts.push_back(std::move(single));
  if (!prompt->is_array() || prompt->empty()) return fields.Fail("prompt", kExpected);
  if (prompt->size() > kMaxPromptsPerCall) {
    return fields.Fail("prompt",
                       absl::StrCat(prompt->size(), " of them, expected at most ", kMaxPromptsPerCall));
  }
  for (const Json& each : *prompt) {
    completion.prompts.push_back(common);
    if (!SetPrompt(each, completion.prompts.back()))
      return fields.Fail(absl::StrCat("prompt[", completion.prompts.size() - 1, "]"), kExpected);
  }
}

}  // namespace

FieldNames CompletionRequest::NamesOf(size_t prompt) const {
  FieldNames own = names;
  if (prompts.size() > 1) {
    const std::string name = absl::StrCat("prompt[", prompt, "]");
    for (const char* ours : {"text", "token_ids", "token_ids.ids", "prompt", "prompt.ids"})
      own.Set(ours, name);
  }
  return own;
}

absl::StatusOr<CompletionRequest> ReadFor(ReadRequest read, absl::string_view body, bool refuse_unknown,
                                          bool refuse_left_out) {
  TANDEM_ASSIGN_OR_RETURN(CompletionRequest completion, read(body, refuse_unknown));
  const std::string& left_out = completion.ignored.left_out();
  if (left_out.empty() || !(refuse_unknown || refuse_left_out)) return completion;
  return WithReason(
      absl::InvalidArgumentError(absl::StrCat(left_out, ": not supported: nobody here can run or read it")),
      kUnsupportedParameter);
}

void ReadTexts(JsonFields& fields, absl::string_view name,
               google::protobuf::RepeatedPtrField<std::string>& texts) {
  const Json* const list = fields.Find(name);
  if (list == nullptr) return;
  if (!list->is_array()) return fields.FailType(name, *list, "a list of strings");
  for (size_t i = 0; i < list->size(); ++i) {
    const Json& text = (*list)[i];
    if (!text.is_string()) return fields.FailType(absl::StrCat(name, "[", i, "]"), text, "a string");
    *texts.Add() = text.get<std::string>();
  }
}

void ReadSampling(JsonFields& fields, v1::SamplingParameters& sampling) {
  if (const auto value = fields.Number("temperature")) sampling.set_temperature(static_cast<float>(*value));
  if (const auto value = fields.Number("top_p")) sampling.set_top_p(static_cast<float>(*value));
  // vLLM's -1 and 0 keep all.
  if (const auto value = fields.Integer("top_k", -1, kMaxInt))
    sampling.set_top_k(*value < 0 ? 0 : static_cast<uint32_t>(*value));
  if (const auto value = fields.Number("min_p")) sampling.set_min_p(static_cast<float>(*value));
  if (const auto value = fields.Number("presence_penalty"))
    sampling.set_presence_penalty(static_cast<float>(*value));
  if (const auto value = fields.Number("frequency_penalty"))
    sampling.set_frequency_penalty(static_cast<float>(*value));
  if (const auto value = fields.Number("repetition_penalty"))
    sampling.set_repetition_penalty(static_cast<float>(*value));
  // A negative seed is as good as any: its bits count.
  if (const auto value = fields.Bits("seed")) sampling.set_seed(*value);
  ReadTokens(fields, "allowed_token_ids", *sampling.mutable_allowed_tokens());
  if (sampling.allowed_tokens().empty() && fields.Find("allowed_token_ids") != nullptr)
    fields.Fail("allowed_token_ids", "empty, expected at least one token id");
  ReadTexts(fields, "bad_words", *sampling.mutable_bad_words());
  const Json* const bias = fields.Find("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object())
    return fields.Fail("logit_bias", "expected an object of token ids and numbers", kInvalidType);
  for (const auto& [key, value] : bias->items()) {
    uint32_t token = 0;
    if (!absl::SimpleAtoi(key, &token) || !value.is_number()) {
      return fields.Fail("logit_bias", absl::StrCat("\"", PrintableText(key), "\": ", PrintableValue(value),
                                                    ", expected a token id and a number"));
    }
    (*sampling.mutable_logit_bias())[token] = value.get<float>();
  }
}

void ReadStopping(JsonFields& fields, v1::StopConditions& stopping) {
  if (const auto least = fields.Integer("min_tokens", 0, kMaxInt))
    stopping.set_min_tokens(static_cast<uint32_t>(*least));
  if (const auto include = fields.Flag("include_stop_str_in_output")) stopping.set_include_stop(*include);
  if (const auto ignore_eos = fields.Flag("ignore_eos")) stopping.set_ignore_eos(*ignore_eos);
  ReadTokens(fields, "stop_token_ids", *stopping.mutable_stop_token_ids());
  const Json* const stop = fields.Find("stop");
  if (stop == nullptr) return;
  if (stop->is_string()) return stopping.add_stop(stop->get<std::string>());
  if (!stop->is_array()) return fields.FailType("stop", *stop, "a string or a list of strings");
  ReadTexts(fields, "stop", *stopping.mutable_stop());
}

void ReadPriority(JsonFields& fields, v1::GenerateRequest& request) {
  if (const auto priority = fields.Integer("priority", -kMostPriority, kMostPriority))
    request.set_priority(static_cast<int32_t>(*priority));
}

// OpenAI's: {"type": "content", "content": a text or its parts}.
void ReadPrediction(JsonFields& fields, v1::GenerateRequest& request) {
  const Json* const object = fields.Find("prediction");
  if (object == nullptr) return;
  JsonFields own(*object, fields, "prediction.");
  const std::optional<std::string> type = own.Text("type");
  if (own.status().ok() && type != "content") own.Fail("type", "expected \"content\"");
  const Json* const content = own.Find("content");
  if (content == nullptr) {
    own.Missing("content");
  } else {
    absl::StatusOr<std::string> text = ContentOf(*content, own, "prediction.content");
    own.Update(text.status());
    if (text.ok()) request.mutable_prediction()->set_text(*std::move(text));
  }
  fields.Update(own.Finish());
}

// The object `tandem`: how the request is drafted, whether the live page may show it, and what vLLM has no
// field for.
void ReadTandem(JsonFields& fields, v1::GenerateRequest& request) {
  const Json* const object = fields.Find("tandem");
  if (object == nullptr) return;
  // Its fields are ours alone, so that an unknown one is a mistake.
  JsonFields own(*object, /*ignored=*/nullptr, "tandem.");
  v1::SpeculationOptions& speculation = *request.mutable_speculation();
  if (const auto mode = own.Flag("speculation"))
    speculation.set_mode(*mode ? v1::SPECULATION_MODE_ON : v1::SPECULATION_MODE_OFF);
  if (auto drafter = own.Text("drafter")) speculation.set_drafter(*std::move(drafter));
  if (auto adapter = own.Text("adapter")) request.set_adapter(*std::move(adapter));
  if (auto partner = own.Text("partner")) speculation.set_partner(*std::move(partner));
  if (auto policy = own.Text("window_policy")) speculation.set_window_policy(*std::move(policy));
  if (const auto window = own.Integer("max_window", 0, kMaxInt))
    speculation.set_max_window(static_cast<uint32_t>(*window));
  if (const auto live = own.Flag("live_page")) request.mutable_output()->set_live_page(*live);
  ReadTokens(own, "banned_token_ids", *request.mutable_sampling()->mutable_banned_tokens());
  fields.Update(own.Finish());
}

void ReadPromptOptions(JsonFields& fields, v1::GenerateRequest& request) {
  if (const auto kept = fields.Integer("truncate_prompt_tokens", -1, kMaxInt))
    request.set_truncate_prompt_tokens(static_cast<int32_t>(*kept));
  if (auto salt = fields.Text("cache_salt")) {
    if (salt->empty()) fields.Fail("cache_salt", "empty, expected a text");
    request.set_cache_salt(*std::move(salt));
  }
}

void RefuseOthers(JsonFields& fields) {
  for (const char* name : {"moderation", "kv_transfer_params", "vllm_xargs", "logits_processors",
                           "guided_whitespace_pattern", "mm_processor_kwargs"}) {
    fields.Refuse(name, "not supported", Json::object());
  }
  fields.Refuse("use_beam_search", "expected false");
  fields.Refuse("length_penalty", "expected 1: it is for beam search, which is not supported", 1);
}

void AcceptOthers(JsonFields& fields) {
  for (const char* name :
       {"user", "metadata", "client_metadata", "store", "service_tier", "safety_identifier",
        "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "request_id",
        "spaces_between_special_tokens", "early_stopping", "detokenize"}) {
    fields.Ignore(name);
  }
}

absl::StatusOr<CompletionRequest> ReadChatCompletion(absl::string_view body, bool refuse_unknown) {
  TANDEM_ASSIGN_OR_RETURN(const Json json, ParseBody(body));
  CompletionRequest completion{.api = HttpApi::kChat, .names = FieldNames(HttpApi::kChat)};
  JsonFields fields(json, refuse_unknown ? nullptr : &completion.ignored);
  v1::GenerateRequest request;
  ReadCommon(body, fields, completion, request);
  const bool logprobs = fields.Flag("logprobs").value_or(false);
  const auto top = fields.Integer("top_logprobs", 0, kMaxLogprobs);
  if (top.has_value() && *top > 0 && !logprobs) fields.Fail("top_logprobs", "set, but logprobs is not");
  if (logprobs) completion.logprobs = static_cast<uint32_t>(top.value_or(0));
  if (completion.logprobs.has_value()) request.mutable_output()->set_logprobs(*completion.logprobs);
  ReadChat(body, fields, completion.names, completion.origins, *request.mutable_chat());
  for (const char* name : {"chat_template", "audio", "web_search_options"})
    fields.Refuse(name, "not supported", Json::object());
  if (fields.Flag("include_reasoning") == false) {
    fields.Fail("include_reasoning", "expected true: the answer contains all generated text",
                kUnsupportedParameter);
  }
  for (const char* name : {"prompt", "input"}) fields.Refuse(name, "expected messages");
  fields.Refuse("max_output_tokens", "expected max_completion_tokens");
  fields.Refuse("modalities", "expected [\"text\"]", Json::array({"text"}));
  fields.IgnoreAloud("verbosity");
  completion.echo = fields.Flag("echo").value_or(false);
  TANDEM_RETURN_IF_ERROR(fields.Finish());
  completion.prompts.push_back(std::move(request));
  return completion;
}

namespace {

// The fields of a completion about log probabilities, the echo and the prompt that comes with it.
void ReadEcho(JsonFields& fields, CompletionRequest& completion, v1::GenerateRequest& request) {
  if (const auto logprobs = fields.Integer("logprobs", 0, kMaxLogprobs)) {
    completion.logprobs = static_cast<uint32_t>(*logprobs);
    request.mutable_output()->set_logprobs(*completion.logprobs);
  }
  completion.echo = fields.Flag("echo").value_or(false);
  if (completion.echo && completion.logprobs.has_value() && completion.num_outputs > 1)
    fields.Fail("echo", "with logprobs, expected n to be 1");
  // As many alternatives as the output's tokens have.
  if (completion.echo && completion.logprobs.has_value() && !completion.prompt_logprobs.has_value())
    request.mutable_output()->set_prompt_logprobs(*completion.logprobs);
  // Without an output the prompt is scored, whoever looks at that.
  if (request.stopping().max_tokens() == 0 && !request.output().has_prompt_logprobs())
    request.mutable_output()->set_prompt_logprobs(0);
  // What is left of a prompt that is cut is known only once it was.
  if (completion.echo && request.has_truncate_prompt_tokens())
    request.mutable_output()->set_prompt_token_ids(true);
}

}  // namespace

absl::StatusOr<CompletionRequest> ReadCompletion(absl::string_view body, bool refuse_unknown) {
  TANDEM_ASSIGN_OR_RETURN(const Json json, ParseBody(body));
  CompletionRequest completion{.names = FieldNames(HttpApi::kText)};
  JsonFields fields(json, refuse_unknown ? nullptr : &completion.ignored);
  v1::GenerateRequest request;
  ReadCommon(body, fields, completion, request);
  // OpenAI's default of this, older API.
  if (!request.stopping().has_max_tokens()) request.mutable_stopping()->set_max_tokens(16);
  ReadEcho(fields, completion, request);
  fields.Refuse("suffix", "not supported", "");
  for (const char* name : {"messages", "tools"})
    fields.Refuse(name, "expected in /v1/chat/completions only", Json::array());
  fields.Refuse("max_output_tokens", "expected max_tokens");
  const std::optional<bool> special = fields.Flag("add_special_tokens");
  ReadPrompts(fields, request, completion);
  for (v1::GenerateRequest& prompt : completion.prompts)
    prompt.set_plain(special == false && prompt.has_text());  // Token ids have none added anyway.
  TANDEM_RETURN_IF_ERROR(fields.Finish());
  if (completion.num_choices() > kMaxPromptsPerCall) {
    return absl::InvalidArgumentError(absl::StrCat("n: ", completion.num_outputs, " outputs of ",
                                                   completion.prompts.size(), " prompts, expected at most ",
                                                   kMaxPromptsPerCall, " choices in all"));
  }
  return completion;
}

}  // namespace tandem::router
