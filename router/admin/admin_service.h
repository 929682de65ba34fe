#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "router/admission/worker_pool.h"
#include "router/serving/router.h"
#include "tandem/v1/admin.grpc.pb.h"

namespace tandem::router {

// tandem.v1.RouterAdmin on a router. One thread of this service handles all calls, because edits block on the
// store. Thread-safe. Destroy it after the server has shut down.
class RouterAdminService final : public v1::RouterAdmin::CallbackService {
 public:
  // Returns the registered servers, as they describe themselves.
  using Registered = std::function<std::vector<v1::ServerRegistration>()>;

  // Keeps a reference to `router`.
  RouterAdminService(Router& router, Registered registered);
  ~RouterAdminService() override;

  grpc::ServerUnaryReactor* ListTenants(grpc::CallbackServerContext* context,
                                        const v1::ListTenantsRequest* request,
                                        v1::ListTenantsResponse* response) override;
  grpc::ServerUnaryReactor* GetTenant(grpc::CallbackServerContext* context,
                                      const v1::GetTenantRequest* request, v1::TenantInfo* response) override;
  grpc::ServerUnaryReactor* SetTenant(grpc::CallbackServerContext* context,
                                      const v1::SetTenantRequest* request, v1::TenantInfo* response) override;
  grpc::ServerUnaryReactor* DeleteTenant(grpc::CallbackServerContext* context,
                                         const v1::DeleteTenantRequest* request,
                                         v1::DeleteTenantResponse* response) override;
  grpc::ServerUnaryReactor* ListDrafters(grpc::CallbackServerContext* context,
                                         const v1::ListDraftersRequest* request,
                                         v1::ListDraftersResponse* response) override;
  grpc::ServerUnaryReactor* GetDrafter(grpc::CallbackServerContext* context,
                                       const v1::GetDrafterRequest* request,
                                       v1::DrafterInfo* response) override;
  grpc::ServerUnaryReactor* SetDrafter(grpc::CallbackServerContext* context,
                                       const v1::SetDrafterRequest* request,
                                       v1::DrafterInfo* response) override;
  grpc::ServerUnaryReactor* DeleteDrafter(grpc::CallbackServerContext* context,
                                          const v1::DeleteDrafterRequest* request,
                                          v1::DeleteDrafterResponse* response) override;
  grpc::ServerUnaryReactor* SwapTenantDrafter(grpc::CallbackServerContext* context,
                                              const v1::SwapTenantDrafterRequest* request,
                                              v1::SwapTenantDrafterResponse* response) override;
  grpc::ServerUnaryReactor* DrainDrafter(grpc::CallbackServerContext* context,
                                         const v1::DrainDrafterRequest* request,
                                         v1::DrafterInfo* response) override;
  grpc::ServerUnaryReactor* ListVerifiers(grpc::CallbackServerContext* context,
                                          const v1::ListVerifiersRequest* request,
                                          v1::ListVerifiersResponse* response) override;
  grpc::ServerUnaryReactor* AddVerifier(grpc::CallbackServerContext* context,
                                        const v1::AddVerifierRequest* request,
                                        v1::VerifierInfo* response) override;
  grpc::ServerUnaryReactor* RemoveVerifier(grpc::CallbackServerContext* context,
                                           const v1::RemoveVerifierRequest* request,
                                           v1::RemoveVerifierResponse* response) override;
  grpc::ServerUnaryReactor* ListServers(grpc::CallbackServerContext* context,
                                        const v1::ListServersRequest* request,
                                        v1::ListServersResponse* response) override;
  grpc::ServerUnaryReactor* DeleteRecords(grpc::CallbackServerContext* context,
                                          const v1::DeleteRecordsRequest* request,
                                          v1::DeleteRecordsResponse* response) override;
  grpc::ServerWriteReactor<v1::WatchEvent>* Watch(grpc::CallbackServerContext* context,
                                                  const v1::WatchRequest* request) override;

 private:
  class Watcher;

  // The calling tenant, which must have `admin`.
  absl::StatusOr<Tenant> Authorize(const grpc::CallbackServerContext& context) const;
  // Authorizes, runs `edit` on the worker and answers with what it returns.
  template <class Response, class Edit>
  grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, Response* response, Edit edit);
  // On the worker.
  void Swap(const v1::SwapTenantDrafterRequest& request, v1::SwapTenantDrafterResponse* response,
            grpc::ServerUnaryReactor* reactor);
  void Tell(uint64_t watcher);

  Router& router_;
  const Registered registered_;
  std::map<uint64_t, std::unique_ptr<Watcher>> watchers_;  // Used by the worker only.
  std::atomic<uint64_t> next_watcher_{0};
  std::optional<WorkerPool> worker_;  // One thread.
};

}  // namespace tandem::router
