#include "router/http/openai_api.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/config/secret.h"
#include "common/config/version.h"
#include "common/model/config/strict_json.h"
#include "common/rpc/status.h"
#include "common/tracing/trace_context.h"
#include "router/drafters/selection.h"
#include "router/http/completion_call.h"
#include "router/http/openai_answer.h"
#include "router/http/openai_json.h"
#include "router/http/openai_messages.h"
#include "router/http/openai_request.h"
#include "router/http/responses_request.h"
#include "router/serving/request.h"
#include "router/serving/token_calls.h"
#include "router/tenants/authentication.h"

namespace tandem::router {
namespace {

constexpr absl::string_view kModels = "/v1/models";
// OpenAI's codes for a path or a method that there is not.
constexpr absl::string_view kUnknownUrl = "UNKNOWN_URL";
constexpr absl::string_view kMethodNotSupported = "METHOD_NOT_SUPPORTED";
// Names the fields of a request that had no effect.
constexpr char kIgnoredField[] = "X-Tandem-Ignored";

CallHead CallHeadOf(const HttpHead& head) {
  return {.authorization = std::optional<Secret>(head.Field("authorization")),
          .trace = ParseTraceContext(head.Field(kTraceparentKey).value_or(""),
                                     head.Field(kTracestateKey).value_or(""))};
}

// What the client calls the request, if that can stand in a head and in logs.
std::optional<std::string> RequestIdOf(const HttpHead& head) {
  const std::optional<std::string> id = head.Field("x-request-id");
  const auto printable = [](char c) { return c > ' ' && c < 127; };
  if (!id.has_value() || id->empty() || id->size() > kMaxRequestIdBytes - 8) return std::nullopt;
  return std::all_of(id->begin(), id->end(), printable) ? id : std::nullopt;
}

bool IsModel(absl::string_view path) {
  return path == kModels || absl::StartsWith(path, absl::StrCat(kModels, "/"));
}

// A part of a path without its escapes: a model's name may have slashes. What is no escape stays.
std::string PercentDecoded(absl::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const absl::string_view digits = text.substr(i + 1, 2);
    if (text[i] == '%' && digits.size() == 2 && absl::ascii_isxdigit(static_cast<unsigned char>(digits[0])) &&
        absl::ascii_isxdigit(static_cast<unsigned char>(digits[1]))) {
      absl::StrAppend(&decoded, absl::HexStringToBytes(digits));
      i += 2;
    } else {
      decoded.push_back(text[i]);
    }
  }
  return decoded;
}

// For metrics: a path that there is, or "other".
absl::string_view NameOf(const HttpHead& head, bool known) {
  if (!known) return kOtherLabel;
  return IsModel(head.path) ? kModels : absl::string_view(head.path);
}

}  // namespace

struct OpenAiApi::Held {
  Held(std::shared_ptr<Connections> all, std::string of)
      : connections(std::move(all)), tenant(std::move(of)) {}
  ~Held() {
    absl::MutexLock lock(&connections->mutex);
    if (--connections->of_tenant[tenant] == 0) connections->of_tenant.erase(tenant);
  }
  const std::shared_ptr<Connections> connections;
  const std::string tenant;
};

OpenAiApi::OpenAiApi(Options options, Router* router, MetricsRegistry* registry)
    : options_(std::move(options)),
      router_(*router),
      requests_(registry == nullptr
                    ? nullptr
                    : &registry->AddCounter(
                          {"tandem_router_http_requests_total",
                           "HTTP requests, by path and by the status with which they were refused, or "
                           "\"served\"; how served requests end is in the metrics of all requests.",
                           {"path", "outcome"}})),
      created_(absl::ToUnixSeconds(router->clock().Now())) {
  if (requests_ == nullptr) return;
  // From the start, so that the first request shows as a rise.
  for (const Route& route : Routes()) requests_->With({route.path, "served"});
}

const std::vector<OpenAiApi::Route>& OpenAiApi::Routes() {
  static const auto* const routes = new std::vector<Route>{
      {"POST", "/v1/chat/completions", false, &OpenAiApi::ServeChat},
      {"POST", "/v1/completions", false, &OpenAiApi::ServeText},
      {"POST", "/v1/responses", false, &OpenAiApi::ServeResponse},
      {"GET", "/v1/models", false, &OpenAiApi::ServeModels},
      {"POST", "/tokenize", false, &OpenAiApi::ServeTokenize},
      {"POST", "/detokenize", false, &OpenAiApi::ServeDetokenize},
      {"GET", "/health", true, &OpenAiApi::ServeHealth},
      {"GET", "/ping", true, &OpenAiApi::ServeHealth},
      {"GET", "/version", true, &OpenAiApi::ServeVersion},
  };
  return *routes;
}

absl::StatusOr<const OpenAiApi::Route*> OpenAiApi::Find(const HttpHead& head) const {
  const std::string path = IsModel(head.path) ? std::string(kModels) : head.path;
  for (const Route& route : Routes()) {
    if (path != route.path) continue;
    if (head.method == route.method || (head.method == "HEAD" && absl::string_view(route.method) == "GET"))
      return &route;
    return absl::UnimplementedError(route.method);
  }
  return absl::NotFoundError(absl::StrCat("there is no ", PrintableText(head.path), " here"));
}

absl::Status OpenAiApi::Hold(const std::string& tenant, std::shared_ptr<void>& hold) {
  if (hold != nullptr && std::static_pointer_cast<Held>(hold)->tenant == tenant) return absl::OkStatus();
  absl::MutexLock lock(&connections_->mutex);
  uint32_t& count = connections_->of_tenant[tenant];
  if (count >= options_.connections_per_tenant) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the tenant has ", count, " HTTP connections, which is the limit"));
  }
  ++count;
  // Without the lock, which what was held takes.
  std::shared_ptr<void> before = std::exchange(hold, std::make_shared<Held>(connections_, tenant));
  if (before != nullptr) router_.workers().Post([before = std::move(before)] {});
  return absl::OkStatus();
}

std::optional<HttpAnswer> OpenAiApi::Refuse(const HttpHead& head, std::shared_ptr<void>& hold) {
  if (head.method == "OPTIONS" && head.Field("origin").has_value()) {
    HttpAnswer answer{.status = 204};
    answer.fields = {{"Access-Control-Allow-Methods", "GET, POST"},
                     {"Access-Control-Allow-Headers", "authorization, content-type, x-request-id"},
                     {"Access-Control-Max-Age", "600"}};
    return answer;
  }
  const absl::StatusOr<const Route*> route = Find(head);
  if (absl::IsUnimplemented(route.status())) {
    HttpAnswer answer =
        ErrorAnswer(WithReason(absl::InvalidArgumentError(absl::StrCat(
                                   PrintableText(head.path), " has no method ", PrintableText(head.method),
                                   ", expected ", route.status().message())),
                               kMethodNotSupported));
    answer.status = 405;
    answer.fields.emplace_back("Allow", std::string(route.status().message()));
    return answer;
  }
  if (route.ok() && (*route)->open) return std::nullopt;
  const std::shared_ptr<const RoutingSnapshot> routing = router_.snapshot();
  const absl::StatusOr<size_t> tenant = Authenticate(routing->tenants(), head.Field("authorization"));
  if (!tenant.ok()) {
    return ErrorAnswer(
        absl::UnauthenticatedError("expected a tenant's token as `Authorization: Bearer <token>`"));
  }
  if (!route.ok()) {
    HttpAnswer answer =
        ErrorAnswer(WithReason(absl::InvalidArgumentError(route.status().message()), kUnknownUrl));
    answer.status = 404;
    return answer;
  }
  if (const absl::Status held = Hold(routing->table().tenants[*tenant].name, hold); !held.ok())
    return ErrorAnswer(held);
  return std::nullopt;
}

std::optional<HttpAnswer> OpenAiApi::Check(const HttpHead& head, std::shared_ptr<void>& hold) {
  std::optional<HttpAnswer> refusal = Refuse(head, hold);
  if (requests_ != nullptr) {
    requests_
        ->With(
            {NameOf(head, Find(head).ok()), refusal.has_value() ? absl::StrCat(refusal->status) : "served"})
        .Increment();
  }
  if (!refusal.has_value()) return std::nullopt;
  for (auto& field : FieldsFor(head)) refusal->fields.push_back(std::move(field));
  return refusal;
}

std::vector<std::pair<std::string, std::string>> OpenAiApi::FieldsFor(const HttpHead& head) const {
  std::vector<std::pair<std::string, std::string>> fields;
  const std::optional<std::string> origin = head.Field("origin");
  const std::vector<std::string>& allowed = options_.allowed_origins;
  if (origin.has_value() && !allowed.empty()) {
    const bool all = std::find(allowed.begin(), allowed.end(), "*") != allowed.end();
    if (all || std::find(allowed.begin(), allowed.end(), *origin) != allowed.end())
      fields.emplace_back("Access-Control-Allow-Origin", all ? "*" : *origin);
    fields.emplace_back("Vary", "Origin");
  }
  return fields;
}

void OpenAiApi::Send(const HttpHead& head, HttpAnswer answer, HttpExchange& exchange) const {
  for (auto& field : FieldsFor(head)) answer.fields.push_back(std::move(field));
  exchange.Answer(std::move(answer));
}

void OpenAiApi::Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  const absl::StatusOr<const Route*> route = Find(request.head);
  // Check let it through.
  if (!route.ok()) return exchange->Answer(ErrorAnswer(route.status()));
  (this->*(*route)->serve)(std::move(request), std::move(exchange));
}

void OpenAiApi::ServeChat(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  ServeGeneration(request, &ReadChatCompletion, std::move(exchange));
}

void OpenAiApi::ServeText(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  ServeGeneration(request, &ReadCompletion, std::move(exchange));
}

void OpenAiApi::ServeResponse(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  ServeGeneration(request, &ReadResponse, std::move(exchange));
}

void OpenAiApi::ServeGeneration(const HttpRequest& request, ReadRequest read,
                                std::shared_ptr<HttpExchange> exchange) {
  const HttpHead& head = request.head;
  std::string id = RequestIdOf(head).value_or("");
  if (id.empty()) id = absl::StrFormat("%016x%016x", router_.Draw(), router_.Draw());
  std::vector<std::pair<std::string, std::string>> fields = FieldsFor(head);
  fields.emplace_back("X-Request-Id", id);
  // Who the caller is, is for the call to judge.
  const std::shared_ptr<const RoutingSnapshot> routing = router_.snapshot();
  const absl::StatusOr<size_t> index = Authenticate(routing->tenants(), head.Field("authorization"));
  const Tenant* const tenant = index.ok() ? &routing->table().tenants[*index] : nullptr;
  absl::StatusOr<CompletionRequest> completion =
      read(request.body, tenant != nullptr && tenant->refuses_unknown_fields);
  if (!completion.ok()) {
    HttpAnswer answer = ErrorAnswer(completion.status());
    answer.fields.insert(answer.fields.end(), fields.begin(), fields.end());
    return exchange->Answer(std::move(answer));
  }
  if (!completion->ignored.text().empty()) fields.emplace_back(kIgnoredField, completion->ignored.text());
  for (v1::GenerateRequest& prompt : completion->prompts) {
    if (tenant == nullptr) continue;
    const bool named = prompt.has_adapter();
    TakeAdapterForModel(router_, routing->table(), *tenant, prompt);
    if (!named && prompt.has_adapter()) completion->names.Set("adapter", "model");
  }
  ServeCompletion(router_, CallHeadOf(head), *std::move(completion), std::move(id), std::move(fields),
                  std::move(exchange));
}

void OpenAiApi::ServeModels(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  const std::shared_ptr<const RoutingSnapshot> routing = router_.snapshot();
  const absl::string_view path = request.head.path;
  const std::string wanted = PercentDecoded(path.substr(std::min(path.size(), kModels.size() + 1)));
  const absl::StatusOr<size_t> tenant = Authenticate(routing->tenants(), request.head.Field("authorization"));
  if (!tenant.ok()) return Send(request.head, ErrorAnswer(tenant.status()), *exchange);
  OrderedJson list = OrderedJson::array();
  for (size_t i = 0; i < routing->table().models.size(); ++i) {
    const v1::ModelInfo model = DescribeModel(router_, routing->table().tenants[*tenant], i);
    const auto add = [&](const std::string& name) -> OrderedJson& {
      list.push_back({{"id", name},
                      {"object", "model"},
                      {"created", created_},
                      {"owned_by", "tandem"},
                      {"max_model_len", model.context_length()}});
      return list.back();
    };
    add(model.name());
    for (const v1::AdapterInfo& adapter : model.adapters()) add(adapter.name())["parent"] = model.name();
  }
  for (const OrderedJson& described : list) {
    if (described["id"] == wanted) return Send(request.head, JsonAnswer(described), *exchange);
  }
  if (!wanted.empty()) {
    return Send(
        request.head,
        ErrorAnswer(absl::NotFoundError(absl::StrCat("there is no model \"", PrintableText(wanted), "\""))),
        *exchange);
  }
  Send(request.head, JsonAnswer({{"object", "list"}, {"data", std::move(list)}}), *exchange);
}

void OpenAiApi::ServeElsewhere(HttpRequest request, std::shared_ptr<HttpExchange> exchange,
                               std::function<HttpAnswer(const std::string&, const Tenant&)> work) {
  const std::shared_ptr<const RoutingSnapshot> routing = router_.snapshot();
  const absl::StatusOr<size_t> index = Authenticate(routing->tenants(), request.head.Field("authorization"));
  if (!index.ok()) return Send(request.head, ErrorAnswer(index.status()), *exchange);
  const Tenant& tenant = routing->table().tenants[*index];
  // Tokens made here are charged like those of requests that come to nothing.
  if (const absl::Status quota = router_.admission().CheckQuota(tenant); !quota.ok())
    return Send(request.head, ErrorAnswer(quota), *exchange);
  const WorkerPool::Share share{.tenant = tenant.name, .weight = tenant.weight, .bytes = request.body.size()};
  router_.workers().Post(
      share, [this, lease = std::make_shared<Router::Lease>(router_), routing, &tenant,
              request = std::move(request), exchange = std::move(exchange),
              work = std::move(work)] { Send(request.head, work(request.body, tenant), *exchange); });
}

namespace {

HttpAnswer WithIgnored(HttpAnswer answer, const IgnoredFields& ignored) {
  if (!ignored.text().empty()) answer.fields.emplace_back(kIgnoredField, ignored.text());
  return answer;
}

absl::StatusOr<const ServedModel*> ModelOf(Router& router, const Tenant& tenant, JsonFields& fields) {
  const std::shared_ptr<const RoutingSnapshot> routing = router.snapshot();
  v1::GenerateRequest named;
  named.set_model(fields.Text("model").value_or(""));
  TakeAdapterForModel(router, routing->table(), tenant, named);
  TANDEM_ASSIGN_OR_RETURN(const size_t model, SelectModel(routing->table(), tenant, named.model()));
  return &router.model(model);
}

// The prompt of a request to tokenize: a text, or a chat.
absl::Status ReadTokenizedPrompt(absl::string_view body, JsonFields& fields, FieldNames& names,
                                 v1::GenerateRequest& request) {
  if (fields.Find("messages") != nullptr) {
    names = FieldNames(HttpApi::kChat);
    ReadChat(body, fields, names, *request.mutable_chat());
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

HttpAnswer Tokenize(Router& router, const std::string& body, const Tenant& tenant) {
  const absl::StatusOr<Json> json = ParseBody(body);
  if (!json.ok()) return ErrorAnswer(json.status());
  IgnoredFields ignored;
  JsonFields fields(*json, tenant.refuses_unknown_fields ? nullptr : &ignored);
  FieldNames names(HttpApi::kText);
  const absl::StatusOr<const ServedModel*> model = ModelOf(router, tenant, fields);
  if (!model.ok()) return ErrorAnswer(model.status());
  v1::GenerateRequest request;
  absl::Status read = ReadTokenizedPrompt(body, fields, names, request);
  const bool texts = fields.Flag("return_token_strs").value_or(false);
  read.Update(fields.Finish());
  if (!read.ok()) return ErrorAnswer(read);
  const absl::StatusOr<TokenIds> tokens = TokensOf(request, **model);
  if (!tokens.ok()) return ErrorAnswer(tokens.status(), &names);
  router.admission().Charge(tenant, tokens->size());
  OrderedJson answer = {
      {"count", tokens->size()}, {"max_model_len", (*model)->context_length}, {"tokens", *tokens}};
  if (texts) {
    OrderedJson strings = OrderedJson::array();
    for (const TokenId token : *tokens) strings.push_back(std::string((*model)->encoder->TokenBytes(token)));
    answer["token_strs"] = std::move(strings);
  }
  return WithIgnored(JsonAnswer(answer), ignored);
}

HttpAnswer Detokenize(Router& router, const std::string& body, const Tenant& tenant) {
  const absl::StatusOr<Json> json = ParseBody(body);
  if (!json.ok()) return ErrorAnswer(json.status());
  IgnoredFields ignored;
  JsonFields fields(*json, tenant.refuses_unknown_fields ? nullptr : &ignored);
  const absl::StatusOr<const ServedModel*> model = ModelOf(router, tenant, fields);
  if (!model.ok()) return ErrorAnswer(model.status());
  const Json* const tokens = fields.Find("tokens");
  if (tokens == nullptr) fields.Missing("tokens");
  if (tokens != nullptr && !tokens->is_array()) fields.FailType("tokens", *tokens, "a list of token ids");
  TokenIds ids;
  if (fields.status().ok() && tokens->size() > kMaxDetokenized)
    fields.Fail("tokens", absl::StrCat(tokens->size(), " of them, expected at most ", kMaxDetokenized));
  for (size_t i = 0; fields.status().ok() && i < tokens->size(); ++i) {
    const std::optional<uint32_t> id = TokenIdOf((*tokens)[i]);
    if (!id.has_value() || *id >= static_cast<uint32_t>((*model)->vocab_size)) {
      fields.FailType(absl::StrCat("tokens[", i, "]"), (*tokens)[i],
                      absl::StrCat("a token id below ", (*model)->vocab_size));
    } else {
      ids.push_back(static_cast<TokenId>(*id));
    }
  }
  if (const absl::Status read = fields.Finish(); !read.ok()) return ErrorAnswer(read);
  return WithIgnored(JsonAnswer({{"prompt", (*model)->encoder->Decode(ids, /*skip_special=*/false)}}),
                     ignored);
}

}  // namespace

void OpenAiApi::ServeTokenize(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  ServeElsewhere(
      std::move(request), std::move(exchange),
      [this](const std::string& body, const Tenant& tenant) { return Tokenize(router_, body, tenant); });
}

void OpenAiApi::ServeDetokenize(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  ServeElsewhere(
      std::move(request), std::move(exchange),
      [this](const std::string& body, const Tenant& tenant) { return Detokenize(router_, body, tenant); });
}

void OpenAiApi::ServeHealth(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  const bool ready = options_.ready();
  HttpAnswer answer = JsonAnswer({{"status", ready ? "ready" : "not ready"}});
  answer.status = ready ? 200 : 503;
  Send(request.head, std::move(answer), *exchange);
}

void OpenAiApi::ServeVersion(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  const absl::string_view version = Version();
  Send(request.head, JsonAnswer({{"version", std::string(version)}}), *exchange);
}

}  // namespace tandem::router
