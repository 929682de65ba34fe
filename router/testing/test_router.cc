#include "router/testing/test_router.h"

#include <atomic>
#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "router/testing/letter_encoder.h"

namespace tandem::router::testing {

v1::RouterConfig LettersConfig(const std::vector<std::string>& verifiers) {
  v1::RouterConfig config;
  v1::TargetModelConfig& model = *config.add_models();
  model.set_name("letters");
  model.set_folder("unused");
  for (const std::string& verifier : verifiers) model.add_verifiers(verifier);
  for (const char* name : {"code", "math"}) {
    v1::DrafterConfig& drafter = *config.add_drafters();
    drafter.set_name(name);
    drafter.set_endpoint("drafter:7003");
    drafter.set_draft_model(std::string("draft-") + name);
  }
  v1::TenantConfig& acme = *config.add_tenants();
  acme.set_name("acme");
  acme.set_token("secret-a");
  acme.set_drafter("code");
  acme.set_max_concurrent_requests(2);
  acme.set_max_queued_requests(0);
  v1::TenantConfig& zeta = *config.add_tenants();
  zeta.set_name("zeta");
  zeta.set_token("secret-z");
  zeta.add_allowed_drafters("math");
  return config;
}

TestRouter::TestRouter(const v1::RouterConfig& config, std::shared_ptr<const PromptEncoder> encoder,
                       Feedback* feedback, const VerifierPool::Options& verifiers, const Tracer& tracer,
                       LiveView* live, absl::Duration write_stall_timeout, Spool* spool) {
  ServedModel model = LetterModel();
  if (encoder != nullptr) model.encoder = std::move(encoder);
  auto next = std::make_shared<std::atomic<uint64_t>>(1000);
  Router::Options options;
  options.routing = RoutingState::InMemory(config).value();
  options.models.push_back(std::move(model));
  options.tokenizer_threads = 1;
  options.verifiers = verifiers;
  options.clock = &clock_;
  options.metrics = &metrics_;
  options.feedback = feedback;
  options.tracer = &tracer;
  options.live = live;
  options.write_stall_timeout = write_stall_timeout;
  options.spool = spool;
  options.draw = [next] { return next->fetch_add(1); };
  router_ = std::make_unique<Router>(std::move(options));
  service_ = std::make_unique<GenerationService>(*router_);
  routing_service_ = std::make_unique<RoutingService>(*router_);
  registry_service_ = std::make_unique<RegistryService>(*router_);
  admin_ = std::make_unique<RouterAdminService>(*router_, [this] { return registry_service_->Servers(); });
  // Measurements have thousands of calls on one connection.
  server_ = ServerRunner::Start({.listen_address = "127.0.0.1:0",
                                 .not_serving_yet = NamesOfReadiness(),
                                 .limits = {.max_streams = 1 << 16}},
                                {{std::string(v1::Generation::service_full_name()), service_.get()},
                                 {std::string(v1::RouterAdmin::service_full_name()), admin_.get()},
                                 {std::string(v1::Routing::service_full_name()), routing_service_.get()},
                                 {std::string(v1::Registry::service_full_name()), registry_service_.get()}},
                                MakeAdminCallbacks(*router_, clock_.Now()))
                .value();
  // Patience would only make tests wait.
  readiness_ = std::make_unique<ReadinessWatch>(Readiness::Options{.patience = absl::ZeroDuration()},
                                                router_.get(), server_.get(), &registry_);
}

TestRouter::~TestRouter() {
  readiness_.reset();
  server_.reset();
}

double TestRouter::MetricValue(const std::string& series) const {
  const std::string text = registry_.Expose();
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    double value = 0;
    if (absl::StartsWith(line, series + " ") && absl::SimpleAtod(line.substr(series.size() + 1), &value))
      return value;
  }
  return 0;
}

double TestRouter::MetricSum(const std::string& family) const {
  const std::string text = registry_.Expose();
  double sum = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    double value = 0;
    if (!absl::StartsWith(line, family + "{") && !absl::StartsWith(line, family + " ")) continue;
    if (absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) sum += value;
  }
  return sum;
}

}  // namespace tandem::router::testing
