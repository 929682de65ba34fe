#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "router/admission/worker_pool.h"
#include "router/registry/registrar.h"
#include "router/serving/router.h"
#include "tandem/v1/registry.grpc.pb.h"

namespace tandem::router {

// tandem.v1.Registry on a router: accepts registrations, and updates the router's verifiers and drafters
// accordingly. One thread handles calls, because they may block on the store; another one follows changes of
// the store and ends of leases. If the configuration allows no registration, every call is
// FailedPrecondition.
//
// With TLS, a caller can register only the kind of server that its certificate names. Without TLS, everybody
// who can connect is trusted, as everywhere in Tandem.
//
// Thread-safe. Destroy it after the server has shut down.
class RegistryService final : public v1::Registry::CallbackService {
 public:
  // Keeps a reference to `router`.
  explicit RegistryService(Router& router);
  ~RegistryService() override;

  grpc::ServerUnaryReactor* Register(grpc::CallbackServerContext* context, const v1::RegisterRequest* request,
                                     v1::RegisterResponse* response) override;
  grpc::ServerUnaryReactor* Deregister(grpc::CallbackServerContext* context,
                                       const v1::DeregisterRequest* request,
                                       v1::DeregisterResponse* response) override;

  // The servers in use, as they describe themselves. May block on the store.
  std::vector<v1::ServerRegistration> Servers() const { return registrar_.Servers(); }

 private:
  // Runs `work` on the worker and finishes the call with what it returns.
  grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const v1::ServerRegistration& server,
                                   std::function<absl::Status()> work);
  void Watch();

  Registrar registrar_;
  std::atomic<int> waiting_{0};  // Calls that the worker has to do.
  std::optional<WorkerPool> worker_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread watching_;
};

}  // namespace tandem::router
