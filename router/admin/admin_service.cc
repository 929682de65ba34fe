#include "router/admin/admin_service.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/rpc/server_stream.h"
#include "common/rpc/status.h"
#include "router/admin/known_servers.h"
#include "router/state/routing_admin.h"
#include "router/tenants/call_metadata.h"

namespace tandem::router {
namespace {

// Room for a message about everything that exists.
constexpr StreamLimits kWatchLimits = {.max_queued_messages = 1 << 16, .max_queued_bytes = size_t{32} << 20};

// What an edit returns becomes an answer.
template <class Response>
absl::Status Store(absl::StatusOr<Response> result, Response* response) {
  if (result.ok()) *response = *std::move(result);
  return result.status();
}

template <class Response>
absl::Status Store(absl::Status result, Response*) {
  return result;
}

absl::StatusOr<v1::DeleteRecordsResponse> DeleteRecordsOf(Spool* spool,
                                                          const v1::DeleteRecordsRequest& request) {
  if (spool == nullptr) {
    return absl::FailedPreconditionError("this router has no spool: it was started without --spool");
  }
  if (!IsGoodName(request.tenant())) {
    return absl::InvalidArgumentError("tenant: expected the name of a tenant");
  }
  v1::DeleteRecordsResponse response;
  if (!request.request_id().empty()) {
    TANDEM_RETURN_IF_ERROR(spool->DeleteRequest(request.tenant(), request.request_id()));
  } else {
    TANDEM_ASSIGN_OR_RETURN(const SpoolFolder::Deleted deleted, spool->DeleteTenant(request.tenant()));
    response.set_removed_files(deleted.files);
    response.set_removed_key(deleted.key);
  }
  LogInfo("records of a tenant were deleted", {{"tenant", request.tenant()},
                                               {"request_id", request.request_id()},
                                               {"removed_files", absl::StrCat(response.removed_files())},
                                               {"removed_key", response.removed_key() ? "yes" : "no"}});
  return response;
}

// The sum of several swaps, answered when the last one is done.
class SwapAnswer {
 public:
  SwapAnswer(v1::SwapTenantDrafterResponse* response, grpc::ServerUnaryReactor* reactor)
      : response_(response), reactor_(reactor) {}
  ~SwapAnswer() { reactor_->Finish(ToGrpcStatus(status_)); }

  void Add(const absl::StatusOr<SwapResult>& result) {
    absl::MutexLock lock(&mutex_);
    status_.Update(result.status());
    if (!result.ok()) return;
    response_->set_num_moved(response_->num_moved() + result->swapped);
    response_->set_num_failed(response_->num_failed() + result->refused);
    if (response_->failure().empty()) response_->set_failure(result->refusal);
  }

 private:
  absl::Mutex mutex_;
  v1::SwapTenantDrafterResponse* const response_;
  grpc::ServerUnaryReactor* const reactor_;
  absl::Status status_;
};

}  // namespace

// One client that watches.
class RouterAdminService::Watcher {
 public:
  using Stream = ServerStream<v1::WatchEvent>;

  Watcher(RoutingState& state, std::shared_ptr<Stream> stream, Tenant caller, std::function<void()> on_change)
      : state_(state),
        stream_(std::move(stream)),
        caller_(std::move(caller)),
        watch_(state.store().WatchPrefix(std::string(kRoutingPrefix.data(), kRoutingPrefix.size()),
                                         std::move(on_change))) {}

  // Returns whether there may be more to tell.
  bool Tell() {
    if (!MayWatch()) {
      stream_->Finish(absl::PermissionDeniedError(
          absl::StrCat("tenant \"", caller_.name, "\" may no longer administer this router")));
      return false;
    }
    absl::StatusOr<std::vector<v1::WatchEvent>> events = feed_.Next(state_);
    if (!events.ok()) {
      stream_->Finish(events.status());
      return false;
    }
    for (v1::WatchEvent& event : *events) stream_->Write(std::move(event));
    return true;
  }

 private:
  // Rights may be taken away, and tokens changed, while it watches.
  bool MayWatch() const {
    const std::shared_ptr<const RoutingSnapshot> routing = state_.snapshot();
    const std::vector<Tenant>& tenants = routing->table().tenants;
    return std::any_of(tenants.begin(), tenants.end(), [this](const Tenant& tenant) {
      const bool same_token = tenant.token.has_value() == caller_.token.has_value() &&
                              (!tenant.token.has_value() || tenant.token->Text() == caller_.token->Text());
      return tenant.admin && tenant.name == caller_.name && same_token;
    });
  }

  RoutingState& state_;
  const std::shared_ptr<Stream> stream_;
  const Tenant caller_;
  ChangeFeed feed_;
  const std::unique_ptr<RoutingStore::Watch> watch_;
};

RouterAdminService::RouterAdminService(Router& router, Registered registered)
    : router_(router), registered_(std::move(registered)) {
  worker_.emplace(1);
}

RouterAdminService::~RouterAdminService() {
  // Watches post to the worker, so they end before it does.
  worker_->Post([this] { watchers_.clear(); });
  worker_.reset();
}

absl::StatusOr<Tenant> RouterAdminService::Authorize(const grpc::CallbackServerContext& context) const {
  const std::shared_ptr<const RoutingSnapshot> routing = router_.snapshot();
  TANDEM_ASSIGN_OR_RETURN(const size_t index,
                          AuthenticateCall(routing->tenants(), context.client_metadata()));
  const Tenant& tenant = routing->table().tenants[index];
  if (tenant.admin) return tenant;
  return absl::PermissionDeniedError(
      absl::StrCat("tenant \"", tenant.name, "\" may not administer this router; it lacks `admin: true`"));
}

template <class Response, class Edit>
grpc::ServerUnaryReactor* RouterAdminService::Answer(grpc::CallbackServerContext* context, Response* response,
                                                     Edit edit) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (const absl::Status status = Authorize(*context).status(); !status.ok()) {
    reactor->Finish(ToGrpcStatus(status));
    return reactor;
  }
  worker_->Post([reactor, response, edit = std::move(edit)] {
    reactor->Finish(ToGrpcStatus(Store(edit(), response)));
  });
  return reactor;
}

grpc::ServerUnaryReactor* RouterAdminService::ListTenants(grpc::CallbackServerContext* context,
                                                          const v1::ListTenantsRequest*,
                                                          v1::ListTenantsResponse* response) {
  return Answer(context, response, [this] { return router::ListTenants(router_.routing()); });
}

grpc::ServerUnaryReactor* RouterAdminService::GetTenant(grpc::CallbackServerContext* context,
                                                        const v1::GetTenantRequest* request,
                                                        v1::TenantInfo* response) {
  return Answer(context, response,
                [this, request] { return router::GetTenant(router_.routing(), request->name()); });
}

grpc::ServerUnaryReactor* RouterAdminService::SetTenant(grpc::CallbackServerContext* context,
                                                        const v1::SetTenantRequest* request,
                                                        v1::TenantInfo* response) {
  return Answer(context, response,
                [this, request] { return router::SetTenant(router_.routing(), *request); });
}

grpc::ServerUnaryReactor* RouterAdminService::DeleteTenant(grpc::CallbackServerContext* context,
                                                           const v1::DeleteTenantRequest* request,
                                                           v1::DeleteTenantResponse* response) {
  return Answer(context, response,
                [this, request] { return router::DeleteTenant(router_.routing(), request->name()); });
}

grpc::ServerUnaryReactor* RouterAdminService::ListDrafters(grpc::CallbackServerContext* context,
                                                           const v1::ListDraftersRequest*,
                                                           v1::ListDraftersResponse* response) {
  return Answer(context, response, [this] { return router::ListDrafters(router_.routing()); });
}

grpc::ServerUnaryReactor* RouterAdminService::GetDrafter(grpc::CallbackServerContext* context,
                                                         const v1::GetDrafterRequest* request,
                                                         v1::DrafterInfo* response) {
  return Answer(context, response,
                [this, request] { return router::GetDrafter(router_.routing(), request->name()); });
}

grpc::ServerUnaryReactor* RouterAdminService::SetDrafter(grpc::CallbackServerContext* context,
                                                         const v1::SetDrafterRequest* request,
                                                         v1::DrafterInfo* response) {
  return Answer(context, response,
                [this, request] { return router::SetDrafter(router_.routing(), *request); });
}

grpc::ServerUnaryReactor* RouterAdminService::DeleteDrafter(grpc::CallbackServerContext* context,
                                                            const v1::DeleteDrafterRequest* request,
                                                            v1::DeleteDrafterResponse* response) {
  return Answer(context, response,
                [this, request] { return router::DeleteDrafter(router_.routing(), request->name()); });
}

grpc::ServerUnaryReactor* RouterAdminService::DrainDrafter(grpc::CallbackServerContext* context,
                                                           const v1::DrainDrafterRequest* request,
                                                           v1::DrafterInfo* response) {
  return Answer(context, response, [this, request] {
    return router::DrainDrafter(router_.routing(), request->name(), request->undo());
  });
}

grpc::ServerUnaryReactor* RouterAdminService::ListVerifiers(grpc::CallbackServerContext* context,
                                                            const v1::ListVerifiersRequest*,
                                                            v1::ListVerifiersResponse* response) {
  return Answer(context, response, [this] { return router::ListVerifiers(router_.routing()); });
}

grpc::ServerUnaryReactor* RouterAdminService::AddVerifier(grpc::CallbackServerContext* context,
                                                          const v1::AddVerifierRequest* request,
                                                          v1::VerifierInfo* response) {
  return Answer(context, response,
                [this, request] { return router::AddVerifier(router_.routing(), request->config()); });
}

grpc::ServerUnaryReactor* RouterAdminService::RemoveVerifier(grpc::CallbackServerContext* context,
                                                             const v1::RemoveVerifierRequest* request,
                                                             v1::RemoveVerifierResponse* response) {
  return Answer(context, response,
                [this, request] { return router::RemoveVerifier(router_.routing(), request->config()); });
}

grpc::ServerUnaryReactor* RouterAdminService::ListServers(grpc::CallbackServerContext* context,
                                                          const v1::ListServersRequest*,
                                                          v1::ListServersResponse* response) {
  return Answer(context, response, [this]() -> absl::StatusOr<v1::ListServersResponse> {
    return router::ListServers(router_, registered_());
  });
}

grpc::ServerUnaryReactor* RouterAdminService::DeleteRecords(grpc::CallbackServerContext* context,
                                                            const v1::DeleteRecordsRequest* request,
                                                            v1::DeleteRecordsResponse* response) {
  return Answer(context, response, [this, request] { return DeleteRecordsOf(router_.spool(), *request); });
}

grpc::ServerUnaryReactor* RouterAdminService::SwapTenantDrafter(grpc::CallbackServerContext* context,
                                                                const v1::SwapTenantDrafterRequest* request,
                                                                v1::SwapTenantDrafterResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (const absl::Status status = Authorize(*context).status(); !status.ok()) {
    reactor->Finish(ToGrpcStatus(status));
    return reactor;
  }
  worker_->Post([this, request, response, reactor] { Swap(*request, response, reactor); });
  return reactor;
}

void RouterAdminService::Swap(const v1::SwapTenantDrafterRequest& request,
                              v1::SwapTenantDrafterResponse* response, grpc::ServerUnaryReactor* reactor) {
  const absl::Status status =
      Store(router::SwapTenantDrafter(router_.routing(), request.tenant(), request.drafter()), response);
  if (!status.ok() || !request.running()) {
    reactor->Finish(ToGrpcStatus(status));
    return;
  }
  v1::DrafterTarget to;
  // Whatever drafter they have: a tenant's requests may have had several.
  std::vector<std::string> from;
  const std::shared_ptr<const RoutingSnapshot> routing = router_.snapshot();
  for (const Drafter& drafter : routing->table().drafters) {
    if (drafter.name != request.drafter()) {
      from.push_back(drafter.name);
      continue;
    }
    if (drafter.absent) continue;
    to.set_name(drafter.name);
    to.set_endpoint(drafter.endpoint);
    to.set_draft_model(drafter.draft_model);
    to.set_trusted(drafter.trusted);
  }
  if (to.name().empty()) {
    reactor->Finish(ToGrpcStatus(absl::AbortedError("the drafter was removed meanwhile")));
    return;
  }
  // Answers when the last swap lets go of it.
  const auto answer = std::make_shared<SwapAnswer>(response, reactor);
  for (const std::string& name : from) {
    router_.running_calls().SwapRunning(
        request.tenant(), name, to,
        [answer](const absl::StatusOr<SwapResult>& result) { answer->Add(result); });
  }
}

grpc::ServerWriteReactor<v1::WatchEvent>* RouterAdminService::Watch(grpc::CallbackServerContext* context,
                                                                    const v1::WatchRequest*) {
  auto stream = Watcher::Stream::Create(kWatchLimits);
  const uint64_t id = next_watcher_.fetch_add(1);
  auto* reactor = stream->Start(
      {.on_cancelled = [this, id](absl::Status) { worker_->Post([this, id] { watchers_.erase(id); }); }});
  absl::StatusOr<Tenant> caller = Authorize(*context);
  if (!caller.ok()) {
    stream->Finish(caller.status());
    return reactor;
  }
  worker_->Post([this, id, stream, caller = *std::move(caller)] {
    // A cancellation that came first has been worked on before; the stream is closed then.
    if (stream->closed()) return;
    const auto on_change = [this, id] { worker_->Post([this, id] { Tell(id); }); };
    watchers_[id] = std::make_unique<Watcher>(router_.routing(), stream, caller, on_change);
    Tell(id);
  });
  return reactor;
}

void RouterAdminService::Tell(uint64_t watcher) {
  const auto found = watchers_.find(watcher);
  if (found != watchers_.end() && !found->second->Tell()) watchers_.erase(found);
}

}  // namespace tandem::router
