#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/metrics/metrics.h"
#include "common/rpc/server.h"
#include "router/admin/admin_service.h"
#include "router/admin/registry_service.h"
#include "router/admin/routing_service.h"
#include "router/serving/readiness_watch.h"
#include "router/serving/router.h"
#include "router/serving/service.h"
#include "tandem/v1/config.pb.h"

namespace tandem::router::testing {

// A configuration with the model "letters" on `verifiers`, the drafters "code" and "math", and the tenants
// "acme" (token "secret-a", drafter "code", two requests in flight) and "zeta" (token "secret-z").
v1::RouterConfig LettersConfig(const std::vector<std::string>& verifiers);

// A router of LetterModel, listening on a free port. Its health follows its verifiers.
class TestRouter {
 public:
  // `config` must resolve, and have one model. `encoder`, if given, replaces the model's. `feedback`,
  // `tracer`, `live` and `spool` outlive this.
  explicit TestRouter(const v1::RouterConfig& config, std::shared_ptr<const PromptEncoder> encoder = nullptr,
                      Feedback* feedback = nullptr, const VerifierPool::Options& verifiers = {},
                      const Tracer& tracer = Tracer::Off(), LiveView* live = nullptr,
                      absl::Duration write_stall_timeout = absl::Seconds(30), Spool* spool = nullptr);
  ~TestRouter();

  const std::string& endpoint() const { return server_->address(); }
  Router& router() { return *router_; }
  // The value of a series in /metrics, written as Prometheus does: name{label="value",...}. 0 when absent.
  double MetricValue(const std::string& series) const;
  // The sum over all series of a family.
  double MetricSum(const std::string& family) const;

 private:
  SystemClock clock_;
  MetricsRegistry registry_;
  RouterMetrics metrics_{&registry_};
  std::unique_ptr<Router> router_;
  std::unique_ptr<GenerationService> service_;
  std::unique_ptr<RoutingService> routing_service_;
  std::unique_ptr<RegistryService> registry_service_;
  std::unique_ptr<RouterAdminService> admin_;
  std::unique_ptr<ServerRunner> server_;
  std::unique_ptr<ReadinessWatch> readiness_;
};

}  // namespace tandem::router::testing
