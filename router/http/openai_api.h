#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/metrics/metrics.h"
#include "router/http/api_description.h"
#include "router/http/openai_request.h"
#include "router/http/server/http_message.h"
#include "router/serving/client_stream.h"
#include "router/serving/router.h"

namespace tandem::router {

// OpenAI's HTTP API on a router, with some of vLLM's additions (docs/reference/http.md):
//
//   POST /v1/chat/completions, /v1/completions      generations
//   POST /v1/responses                              the same; nothing is kept from one to the next
//   POST /v1/messages, /v1/messages/count_tokens    the same in the form of Anthropic's API
//   GET  /v1/models, /v1/models/NAME                models that there are
//   POST /tokenize, /detokenize                     a model's tokens
//   GET  /health, /ping, /version, /load            without a token, like
//   GET  /docs, /openapi.json, /metrics             what describes the API and the router
//
// The token names the tenant: a bearer token, or what Anthropic's and Azure's clients send. It is checked,
// like the rest of a request's head, before the body is read. A tenant has at most `connections_per_tenant`
// connections; each counts for the tenant that used it last. Thread-safe.
class OpenAiApi final : public HttpHandler {
 public:
  struct Options {
    uint32_t connections_per_tenant = 1024;
    // Origins whose pages may call from a browser: "https://chat.example", or "*" for all.
    std::vector<std::string> allowed_origins;
    // Whether the router is ready to serve requests.
    std::function<bool()> ready = [] { return true; };
    // Refuse requests of which a part would be left out (IgnoredFields), whatever their tenant does with
    // unknown fields, instead of naming it in the head of the answer.
    bool refuse_left_out = false;
    // The router's metrics in Prometheus' format, for /metrics. None: there is no such path.
    std::function<std::string()> metrics;
  };
  // `router` and `registry` outlive this; `registry` may be null.
  OpenAiApi(Options options, Router* router, MetricsRegistry* registry);

  std::optional<HttpAnswer> Check(const HttpHead& head, std::shared_ptr<void>& hold) override;
  void Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) override;

 private:
  // Counts a tenant's connection while it exists.
  struct Held;

  using Serve = void (OpenAiApi::*)(HttpRequest, std::shared_ptr<HttpExchange>);
  struct Route {
    Endpoint endpoint;
    Serve serve;
  };
  static const std::vector<Route>& Routes();
  bool HasRoute(const Route& route) const;
  std::vector<Endpoint> Endpoints() const;
  // The route. NotFound if there is none; Unimplemented, with the methods that the path has, for another
  // method.
  absl::StatusOr<const Route*> Find(const HttpHead& head) const;

  // The answer for a request that can be answered without its body; nullopt for a request to serve.
  std::optional<HttpAnswer> Refuse(const HttpHead& head, std::shared_ptr<void>& hold);
  absl::Status Hold(const std::string& tenant, std::shared_ptr<void>& hold);
  // Header fields of every answer to this request.
  std::vector<std::pair<std::string, std::string>> FieldsFor(const HttpHead& head) const;
  void Send(const HttpHead& head, HttpAnswer answer, HttpExchange& exchange) const;

  void ServeChat(HttpRequest request, std::shared_ptr<HttpExchange> exchange);
  void ServeText(HttpRequest request, std::shared_ptr<HttpExchange> exchange);
  void ServeResponse(HttpRequest request, std::shared_ptr<HttpExchange> exchange);
  void ServeMessages(HttpRequest request, std::shared_ptr<HttpExchange> exchange);
  void ServeCountTokens(HttpRequest request, std::shared_ptr<HttpExchange> exchange);
  void ServeGeneration(const HttpRequest& request, ReadRequest read, std::shared_ptr<HttpExchange> exchange);
  void ServeModels(HttpRequest request, std::shared_ptr<HttpExchange> exchange);
  void ServeTokenize(HttpRequest request, std::shared_ptr<HttpExchange> exchange);
  void ServeDetokenize(HttpRequest request, std::shared_ptr<HttpExchange> exchange);
  // Runs `work` on a tokenizer thread, within the tenant's share, and sends its result.
  void ServeElsewhere(HttpRequest request, std::shared_ptr<HttpExchange> exchange,
                      std::function<HttpAnswer(const std::string& body, const Tenant& tenant)> work);
  void ServeHealth(HttpRequest request, std::shared_ptr<HttpExchange> exchange);
  void ServeVersion(HttpRequest request, std::shared_ptr<HttpExchange> exchange);
  void ServeLoad(HttpRequest request, std::shared_ptr<HttpExchange> exchange);
  void ServeMetrics(HttpRequest request, std::shared_ptr<HttpExchange> exchange);
  void ServePage(HttpRequest request, std::shared_ptr<HttpExchange> exchange);
  void ServeDescription(HttpRequest request, std::shared_ptr<HttpExchange> exchange);

  const Options options_;
  Router& router_;
  CounterFamily* const requests_;  // None without a registry.
  const int64_t created_;          // That models tell, in seconds of the Unix epoch.
  struct Connections {
    absl::Mutex mutex;
    std::map<std::string, uint32_t> of_tenant ABSL_GUARDED_BY(mutex);
  };
  const std::shared_ptr<Connections> connections_ = std::make_shared<Connections>();
};

}  // namespace tandem::router
