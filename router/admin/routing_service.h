#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "router/serving/router.h"
#include "tandem/v1/routing.grpc.pb.h"

namespace tandem::router {

// tandem.v1.Routing on a router: explains and calibrates the choice of drafters. The work runs on the
// router's workers. Thread-safe.
class RoutingService final : public v1::Routing::CallbackService {
 public:
  // Bounds of a calibration, beyond those of single prompts.
  static constexpr int kMaxSamples = 4096;
  static constexpr int kMaxOutcomes = 64;  // Of a sample.

  // Keeps a reference to `router`.
  explicit RoutingService(Router& router) : router_(router) {}

  grpc::ServerUnaryReactor* ExplainChoice(grpc::CallbackServerContext* context,
                                          const v1::ExplainChoiceRequest* request,
                                          v1::ChoiceExplanation* response) override;
  grpc::ServerUnaryReactor* Calibrate(grpc::CallbackServerContext* context,
                                      const v1::CalibrateRequest* request,
                                      v1::CalibrateResponse* response) override;

 private:
  // On a worker.
  absl::Status Explain(const RoutingSnapshot& routing, size_t tenant, const v1::GenerateRequest& request,
                       v1::ChoiceExplanation* response);
  absl::Status Learn(const RoutingSnapshot& routing, size_t tenant, const v1::CalibrateRequest& request,
                     v1::CalibrateResponse* response);

  Router& router_;
};

}  // namespace tandem::router
