#include "router/http/openai_api.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/config/secret.h"
#include "common/config/version.h"
#include "common/model/config/strict_json.h"
#include "common/rpc/status.h"
#include "common/tracing/trace_context.h"
#include "router/drafters/selection.h"
#include "router/http/completion_call.h"
#include "router/http/messages_answer.h"
#include "router/http/messages_request.h"
#include "router/http/openai_answer.h"
#include "router/http/openai_json.h"
#include "router/http/openai_request.h"
#include "router/http/responses_request.h"
#include "router/http/token_answers.h"
#include "router/serving/request.h"
#include "router/serving/token_calls.h"
#include "router/tenants/authentication.h"

namespace tandem::router {
namespace {

constexpr absl::string_view kModels = "/v1/models";
// OpenAI's codes for a path or a method that there is not.
constexpr absl::string_view kUnknownUrl = "UNKNOWN_URL";
constexpr absl::string_view kMethodNotSupported = "METHOD_NOT_SUPPORTED";
constexpr absl::string_view kOneModel = "/v1/models/{model}";
constexpr absl::string_view kMessages = "/v1/messages";
constexpr absl::string_view kMetrics = "/metrics";

// The caller's token as `authorization` has it. Anthropic's clients send it as x-api-key, Azure's as api-key.
// A field that occurs twice is empty, which authenticates nobody.
std::optional<std::string> AuthorizationIn(const HttpHead& head) {
  if (std::optional<std::string> given = head.Field("authorization"); given.has_value()) return given;
  for (const char* name : {"x-api-key", "api-key"}) {
    if (const std::optional<std::string> key = head.Field(name); key.has_value())
      return key->empty() ? "" : absl::StrCat("Bearer ", *key);
  }
  return std::nullopt;
}

CallHead CallHeadOf(const HttpHead& head) {
  return {.authorization = std::optional<Secret>(AuthorizationIn(head)),
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

// The path of a route.
absl::string_view RouteOf(absl::string_view path) {
  return absl::StartsWith(path, absl::StrCat(kModels, "/")) ? kOneModel : path;
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

bool IsMessages(absl::string_view path) {
  return path == kMessages || absl::StartsWith(path, absl::StrCat(kMessages, "/"));
}

// An error in the form of the API that the path belongs to. `http_status`: in place of that of its kind.
HttpAnswer ErrorFor(const HttpHead& head, const absl::Status& status,
                    std::optional<int> http_status = std::nullopt) {
  HttpAnswer answer = ErrorAnswer(status);
  if (http_status.has_value()) answer.status = *http_status;
  return IsMessages(head.path) ? InMessagesForm(std::move(answer), status) : answer;
}

// What a page of another origin may send: what it asks for, as only its token makes a request the tenant's.
std::string AllowedFields(const HttpHead& head) {
  constexpr size_t kMostBytes = 1024;
  const std::string asked = head.Field("access-control-request-headers").value_or("");
  const auto in_names = [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == ',' || c == ' ';
  };
  if (asked.empty() || asked.size() > kMostBytes || !std::all_of(asked.begin(), asked.end(), in_names))
    return "authorization, content-type, x-request-id, x-api-key, api-key, anthropic-version";
  return asked;
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
  for (const Endpoint& endpoint : Endpoints()) requests_->With({endpoint.path, "served"});
}

const std::vector<OpenAiApi::Route>& OpenAiApi::Routes() {
  static const auto* const routes = new std::vector<Route>{
      {{"POST", "/v1/chat/completions", false, "Completes a chat."}, &OpenAiApi::ServeChat},
      {{"POST", "/v1/completions", false, "Completes texts or token ids."}, &OpenAiApi::ServeText},
      {{"POST", "/v1/responses", false, "OpenAI's Responses API."}, &OpenAiApi::ServeResponse},
      {{"POST", "/v1/messages", false, "Anthropic's Messages API."}, &OpenAiApi::ServeMessages},
      {{"POST", "/v1/messages/count_tokens", false, "Counts the tokens of such a prompt."},
       &OpenAiApi::ServeCountTokens},
      {{"GET", "/v1/models", false, "Lists the models."}, &OpenAiApi::ServeModels},
      {{"GET", "/v1/models/{model}", false, "Describes a model."}, &OpenAiApi::ServeModels},
      {{"POST", "/tokenize", false, "Turns text into tokens."}, &OpenAiApi::ServeTokenize},
      {{"POST", "/detokenize", false, "Turns tokens into text."}, &OpenAiApi::ServeDetokenize},
      {{"GET", "/health", true, "Says whether every model can be served."}, &OpenAiApi::ServeHealth},
      {{"GET", "/ping", true, "Says the same as /health."}, &OpenAiApi::ServeHealth},
      {{"POST", "/ping", true, "Says the same as /health."}, &OpenAiApi::ServeHealth},
      {{"GET", "/version", true, "Names the router's version."}, &OpenAiApi::ServeVersion},
      {{"GET", "/load", true, "Counts the requests that run or wait."}, &OpenAiApi::ServeLoad},
      {{"GET", "/metrics", true, "The router's metrics, for Prometheus."}, &OpenAiApi::ServeMetrics},
      {{"GET", "/docs", true, "This page."}, &OpenAiApi::ServePage},
      {{"GET", "/openapi.json", true, "This API in OpenAPI's format."}, &OpenAiApi::ServeDescription},
  };
  return *routes;
}

bool OpenAiApi::HasRoute(const Route& route) const {
  return route.endpoint.path != kMetrics || options_.metrics != nullptr;
}

std::vector<Endpoint> OpenAiApi::Endpoints() const {
  std::vector<Endpoint> endpoints;
  for (const Route& route : Routes()) {
    if (HasRoute(route)) endpoints.push_back(route.endpoint);
  }
  return endpoints;
}

absl::StatusOr<const OpenAiApi::Route*> OpenAiApi::Find(const HttpHead& head) const {
  const absl::string_view path = RouteOf(head.path);
  std::vector<absl::string_view> methods;
  for (const Route& route : Routes()) {
    if (path != route.endpoint.path || !HasRoute(route)) continue;
    const absl::string_view method = route.endpoint.method;
    if (head.method == method || (head.method == "HEAD" && method == "GET")) return &route;
    methods.push_back(method);
  }
  if (!methods.empty()) return absl::UnimplementedError(absl::StrJoin(methods, ", "));
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
                     {"Access-Control-Allow-Headers", AllowedFields(head)},
                     {"Access-Control-Max-Age", "600"}};
    return answer;
  }
  const absl::StatusOr<const Route*> route = Find(head);
  if (absl::IsUnimplemented(route.status())) {
    HttpAnswer answer =
        ErrorFor(head,
                 WithReason(absl::InvalidArgumentError(absl::StrCat(
                                PrintableText(head.path), " has no method ", PrintableText(head.method),
                                ", expected ", route.status().message())),
                            kMethodNotSupported),
                 405);
    answer.fields.emplace_back("Allow", std::string(route.status().message()));
    return answer;
  }
  if (route.ok() && (*route)->endpoint.open) return std::nullopt;
  const std::shared_ptr<const RoutingSnapshot> routing = router_.snapshot();
  const absl::StatusOr<size_t> tenant = Authenticate(routing->tenants(), AuthorizationIn(head));
  if (!tenant.ok()) {
    return ErrorFor(head, absl::UnauthenticatedError("expected a tenant's token as `Authorization: Bearer "
                                                     "<token>` or `x-api-key: <token>`"));
  }
  if (!route.ok()) {
    return ErrorFor(head, WithReason(absl::InvalidArgumentError(route.status().message()), kUnknownUrl), 404);
  }
  if (const absl::Status held = Hold(routing->table().tenants[*tenant].name, hold); !held.ok())
    return ErrorFor(head, held);
  return std::nullopt;
}

std::optional<HttpAnswer> OpenAiApi::Check(const HttpHead& head, std::shared_ptr<void>& hold) {
  std::optional<HttpAnswer> refusal = Refuse(head, hold);
  if (requests_ != nullptr) {
    requests_
        ->With({Find(head).ok() ? RouteOf(head.path) : kOtherLabel,
                refusal.has_value() ? absl::StrCat(refusal->status) : "served"})
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

void OpenAiApi::ServeMessages(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  ServeGeneration(request, &ReadMessagesRequest, std::move(exchange));
}

void OpenAiApi::ServeGeneration(const HttpRequest& request, ReadRequest read,
                                std::shared_ptr<HttpExchange> exchange) {
  const HttpHead& head = request.head;
  std::string id = RequestIdOf(head).value_or("");
  if (id.empty()) id = absl::StrFormat("%016x%016x", router_.Draw(), router_.Draw());
  std::vector<std::pair<std::string, std::string>> fields = FieldsFor(head);
  fields.emplace_back("X-Request-Id", id);
  if (IsMessages(head.path)) fields.emplace_back("Request-Id", id);  // Its name in Anthropic's API.
  // Who the caller is, is for the call to judge.
  const std::shared_ptr<const RoutingSnapshot> routing = router_.snapshot();
  const absl::StatusOr<size_t> index = Authenticate(routing->tenants(), AuthorizationIn(head));
  const Tenant* const tenant = index.ok() ? &routing->table().tenants[*index] : nullptr;
  absl::StatusOr<CompletionRequest> completion = ReadFor(
      read, request.body, tenant != nullptr && tenant->refuses_unknown_fields, options_.refuse_left_out);
  if (!completion.ok()) {
    HttpAnswer answer = ErrorFor(head, completion.status());
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
  const absl::StatusOr<size_t> tenant = Authenticate(routing->tenants(), AuthorizationIn(request.head));
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
  const absl::StatusOr<size_t> index = Authenticate(routing->tenants(), AuthorizationIn(request.head));
  if (!index.ok()) return Send(request.head, ErrorFor(request.head, index.status()), *exchange);
  const Tenant& tenant = routing->table().tenants[*index];
  // Tokens made here are charged like those of requests that come to nothing.
  if (const absl::Status quota = router_.admission().CheckQuota(tenant); !quota.ok())
    return Send(request.head, ErrorFor(request.head, quota), *exchange);
  const WorkerPool::Share share{.tenant = tenant.name, .weight = tenant.weight, .bytes = request.body.size()};
  router_.workers().Post(
      share, [this, lease = std::make_shared<Router::Lease>(router_), routing, &tenant,
              request = std::move(request), exchange = std::move(exchange),
              work = std::move(work)] { Send(request.head, work(request.body, tenant), *exchange); });
}

void OpenAiApi::ServeTokenize(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  ServeElsewhere(std::move(request), std::move(exchange),
                 [this](const std::string& body, const Tenant& tenant) {
                   return TokenizeAnswer(router_, body, tenant);
                 });
}

void OpenAiApi::ServeDetokenize(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  ServeElsewhere(std::move(request), std::move(exchange),
                 [this](const std::string& body, const Tenant& tenant) {
                   return DetokenizeAnswer(router_, body, tenant);
                 });
}

void OpenAiApi::ServeCountTokens(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  ServeElsewhere(std::move(request), std::move(exchange),
                 [this](const std::string& body, const Tenant& tenant) {
                   return CountTokensAnswer(router_, body, tenant, options_.refuse_left_out);
                 });
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

void OpenAiApi::ServeLoad(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  const RouterMetrics& metrics = router_.metrics();
  Send(request.head, JsonAnswer({{"server_load", metrics.running() + metrics.waiting()}}), *exchange);
}

void OpenAiApi::ServeMetrics(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  Send(request.head,
       {.status = 200,
        .fields = {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}},
        .body = options_.metrics()},
       *exchange);
}

void OpenAiApi::ServePage(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  Send(request.head,
       {.status = 200,
        .fields = {{"Content-Type", "text/html; charset=utf-8"}},
        .body = DescriptionPage(Endpoints())},
       *exchange);
}

void OpenAiApi::ServeDescription(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  Send(request.head, JsonAnswer(OpenApiDocument(Endpoints())), *exchange);
}

}  // namespace tandem::router
