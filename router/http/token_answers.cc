#include "router/http/token_answers.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "router/drafters/selection.h"
#include "router/http/field_names.h"
#include "router/http/messages_answer.h"
#include "router/http/messages_request.h"
#include "router/http/openai_answer.h"
#include "router/http/openai_json.h"
#include "router/http/openai_messages.h"
#include "router/http/openai_request.h"
#include "router/serving/request.h"
#include "router/serving/token_calls.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {
namespace {

HttpAnswer WithIgnored(HttpAnswer answer, const IgnoredFields& ignored) {
  if (!ignored.text().empty()) answer.fields.emplace_back(kIgnoredField, ignored.text());
  return answer;
}

// The number of the model with this name, or of that of an adapter with it.
absl::StatusOr<size_t> ModelOf(Router& router, const Tenant& tenant, const std::string& name) {
  const std::shared_ptr<const RoutingSnapshot> routing = router.snapshot();
  v1::GenerateRequest named;
  named.set_model(name);
  TakeAdapterForModel(router, routing->table(), tenant, named);
  return SelectModel(routing->table(), tenant, named.model());
}

// The prompt of a request to tokenize: a text, or a chat.
absl::Status ReadTokenizedPrompt(absl::string_view body, JsonFields& fields, FieldNames& names,
                                 v1::GenerateRequest& request) {
  if (fields.Find("messages") != nullptr) {
    names = FieldNames(HttpApi::kChat);
    ToolOrigins origins;
    ReadChat(body, fields, names, origins, *request.mutable_chat());
    fields.Refuse("chat_template", "not supported");
    fields.Refuse("prompt", "expected one of prompt and messages");
    return fields.status();
  }
  const std::optional<std::string> prompt = fields.Text("prompt");
  if (!prompt.has_value()) fields.Missing("prompt");
  request.set_text(prompt.value_or(""));
  request.set_plain(!fields.Flag("add_special_tokens").value_or(true));
  return fields.status();
}

// What is checked of any prompt, except that a text may be empty.
absl::StatusOr<TokenIds> TokensOf(const v1::GenerateRequest& request, const ServedModel& model) {
  if (!request.text().empty() || request.has_chat()) TANDEM_RETURN_IF_ERROR(ValidateRequest(request));
  constexpr size_t kAll = std::numeric_limits<size_t>::max();
  absl::StatusOr<TokenIds> tokens = request.has_chat()
                                        ? model.encoder->EncodeChat(request.chat(), kAll)
                                        : model.encoder->EncodeText(request.text(), kAll, request.plain());
  if (tokens.ok()) return tokens;
  return absl::InvalidArgumentError(
      absl::StrCat(request.has_chat() ? "chat: " : "text: ", tokens.status().message()));
}

}  // namespace

HttpAnswer TokenizeAnswer(Router& router, const std::string& body, const Tenant& tenant) {
  const absl::StatusOr<Json> json = ParseBody(body);
  if (!json.ok()) return ErrorAnswer(json.status());
  IgnoredFields ignored;
  JsonFields fields(*json, tenant.refuses_unknown_fields ? nullptr : &ignored);
  FieldNames names(HttpApi::kText);
  const absl::StatusOr<size_t> index = ModelOf(router, tenant, fields.Text("model").value_or(""));
  if (!index.ok()) return ErrorAnswer(index.status());
  const ServedModel& model = router.model(*index);
  v1::GenerateRequest request;
  absl::Status read = ReadTokenizedPrompt(body, fields, names, request);
  const bool texts = fields.Flag("return_token_strs").value_or(false);
  read.Update(fields.Finish());
  if (!read.ok()) return ErrorAnswer(read);
  const absl::StatusOr<TokenIds> tokens = TokensOf(request, model);
  if (!tokens.ok()) return ErrorAnswer(tokens.status(), &names);
  router.admission().Charge(tenant, tokens->size());
  OrderedJson answer = {
      {"count", tokens->size()}, {"max_model_len", ContextLength(router, *index)}, {"tokens", *tokens}};
  if (texts) {
    OrderedJson strings = OrderedJson::array();
    for (const TokenId token : *tokens) strings.push_back(std::string(model.encoder->TokenBytes(token)));
    answer["token_strs"] = std::move(strings);
  }
  return WithIgnored(JsonAnswer(answer), ignored);
}

HttpAnswer DetokenizeAnswer(Router& router, const std::string& body, const Tenant& tenant) {
  const absl::StatusOr<Json> json = ParseBody(body);
  if (!json.ok()) return ErrorAnswer(json.status());
  IgnoredFields ignored;
  JsonFields fields(*json, tenant.refuses_unknown_fields ? nullptr : &ignored);
  const absl::StatusOr<size_t> index = ModelOf(router, tenant, fields.Text("model").value_or(""));
  if (!index.ok()) return ErrorAnswer(index.status());
  const ServedModel& model = router.model(*index);
  const Json* const tokens = fields.Find("tokens");
  if (tokens == nullptr) fields.Missing("tokens");
  if (tokens != nullptr && !tokens->is_array()) fields.FailType("tokens", *tokens, "a list of token ids");
  TokenIds ids;
  if (fields.status().ok() && tokens->size() > kMaxDetokenized)
    fields.Fail("tokens", absl::StrCat(tokens->size(), " of them, expected at most ", kMaxDetokenized));
  for (size_t i = 0; fields.status().ok() && i < tokens->size(); ++i) {
    const std::optional<uint32_t> id = TokenIdOf((*tokens)[i]);
    if (!id.has_value() || *id >= static_cast<uint32_t>(model.vocab_size)) {
      fields.FailType(absl::StrCat("tokens[", i, "]"), (*tokens)[i],
                      absl::StrCat("a token id below ", model.vocab_size));
    } else {
      ids.push_back(static_cast<TokenId>(*id));
    }
  }
  if (const absl::Status read = fields.Finish(); !read.ok()) return ErrorAnswer(read);
  return WithIgnored(JsonAnswer({{"prompt", model.encoder->Decode(ids, /*skip_special=*/false)}}), ignored);
}

HttpAnswer CountTokensAnswer(Router& router, const std::string& body, const Tenant& tenant,
                             bool refuse_left_out) {
  const absl::StatusOr<CompletionRequest> counted =
      ReadFor(&ReadCountTokens, body, tenant.refuses_unknown_fields, refuse_left_out);
  if (!counted.ok()) return MessagesErrorAnswer(counted.status());
  const v1::GenerateRequest& prompt = counted->prompts[0];
  const absl::StatusOr<size_t> index = ModelOf(router, tenant, prompt.model());
  if (!index.ok()) return MessagesErrorAnswer(index.status());
  const absl::StatusOr<TokenIds> tokens = TokensOf(prompt, router.model(*index));
  if (!tokens.ok()) return MessagesErrorAnswer(tokens.status(), &counted->names);
  router.admission().Charge(tenant, tokens->size());
  return WithIgnored(JsonAnswer({{"input_tokens", tokens->size()}}), counted->ignored);
}

}  // namespace tandem::router
