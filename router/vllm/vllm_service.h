#pragma once

#include <atomic>

#include "absl/time/time.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "router/serving/router.h"
#include "router/vllm/vllm_stream.h"
#include "vllm/vllm_engine.grpc.pb.h"

namespace tandem::router {

// vllm.grpc.engine.VllmEngine on a router, for gateways that speak it: a Generate is a GenerateCall like that
// of tandem.v1.Generation, with the same tenants, quotas, choice, failover, traces and metrics. Thread-safe.
class VllmService final
    : public engine::VllmEngine::WithCallbackMethod_HealthCheck<
          engine::VllmEngine::WithCallbackMethod_Abort<engine::VllmEngine::WithCallbackMethod_GetModelInfo<
              engine::VllmEngine::WithCallbackMethod_GetServerInfo<engine::VllmEngine::Service>>>> {
 public:
  // Keeps a reference to `router`.
  VllmService(Router& router, absl::Time started_at);

  grpc::ServerUnaryReactor* HealthCheck(grpc::CallbackServerContext* context,
                                        const engine::HealthCheckRequest* request,
                                        engine::HealthCheckResponse* response) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context, const engine::AbortRequest* request,
                                  engine::AbortResponse* response) override;
  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const engine::GetModelInfoRequest* request,
                                         engine::GetModelInfoResponse* response) override;
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const engine::GetServerInfoRequest* request,
                                          engine::GetServerInfoResponse* response) override;

 private:
  Router& router_;
  const absl::Time started_at_;
  std::atomic<double> last_request_ = 0.0;  // Seconds since the Unix epoch.
  AbortableCalls calls_;
};

}  // namespace tandem::router
