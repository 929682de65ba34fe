#include "router/serving/readiness_watch.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/base/log.h"
#include "router/serving/service.h"

namespace tandem::router {
namespace {

constexpr absl::Duration kPeriod = absl::Milliseconds(50);

}  // namespace

std::vector<Readiness::Model> ModelsOf(Router& router) {
  const std::shared_ptr<const RoutingSnapshot> routing = router.snapshot();
  std::vector<Readiness::Model> models;
  for (size_t i = 0; i < routing->table().models.size(); ++i) {
    models.push_back(
        {.name = routing->table().models[i].name, .served = router.verifiers().num_serving(i) > 0});
  }
  for (const Tenant& tenant : routing->table().tenants) {
    for (const size_t model : tenant.models) models[model].wanted = true;
  }
  return models;
}

ReadinessWatch::ReadinessWatch(const Readiness::Options& options, Router* router, ServerRunner* server,
                               MetricsRegistry* registry)
    : router_(*router),
      server_(*server),
      serving_verifiers_(
          registry == nullptr
              ? nullptr
              : &registry->AddGauge(
                    {"tandem_router_serving_verifiers",
                     "Verifiers of a model whose health service reported SERVING when it was last asked.",
                     {"model"}})),
      waiting_(registry == nullptr
                   ? nullptr
                   : &registry->AddGauge({"tandem_router_waiting_for_verifier",
                                          "Requests that wait because no verifier of their model serves.",
                                          {"model"}})),
      places_(registry == nullptr
                  ? nullptr
                  : &registry->AddGauge({"tandem_router_places",
                                         "Places of a model: requests that its verifiers have room for. 0 "
                                         "while none serves; then only the router's own limit applies.",
                                         {"model"}})),
      readiness_(options) {
  thread_ = std::thread([this] { Watch(); });
}

ReadinessWatch::~ReadinessWatch() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void ReadinessWatch::Watch() {
  const auto stopping = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_; };
  absl::MutexLock lock(&mutex_);
  do {
    mutex_.Unlock();
    Update();
    mutex_.Lock();
  } while (!mutex_.AwaitWithTimeout(absl::Condition(&stopping), kPeriod));
}

void ReadinessWatch::Update() {
  const std::vector<Readiness::Model> models = ModelsOf(router_);
  if (serving_verifiers_ != nullptr) {
    for (size_t i = 0; i < models.size(); ++i) {
      serving_verifiers_->With({models[i].name}).Set(static_cast<double>(router_.verifiers().num_serving(i)));
      waiting_->With({models[i].name}).Set(static_cast<double>(router_.verifiers().num_waiting(i)));
    }
  }
  for (size_t i = 0; i < models.size(); ++i) {
    const std::optional<uint32_t> places = router_.verifiers().places(i);
    router_.admission().SetPlaces(i, places);
    if (places_ != nullptr) places_->With({models[i].name}).Set(places.value_or(0));
  }
  const bool ready = readiness_.Update(models, router_.clock().Now());
  if (ready != ready_) {
    for (const std::string& name : NamesOfReadiness()) server_.SetServing(name, ready);
  }
  if (ready == ready_ && readiness_.unserved() == unserved_) return;
  ready_ = ready;
  unserved_ = readiness_.unserved();
  LogInfo(ready ? "ready for requests" : "not ready for requests",
          {{"models_without_verifier", absl::StrJoin(unserved_, ",")}});
}

}  // namespace tandem::router
