#include "router/admin/registry_service.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/access.h"
#include "common/rpc/peer_address.h"
#include "common/rpc/status.h"

namespace tandem::router {
namespace {

// Far more calls than servers make at once; each is some milliseconds of work.
constexpr int kMostWaiting = 256;
// Far more than a server has to say.
constexpr size_t kMostBytes = size_t{64} << 10;
// How soon the end of a lease is noticed.
constexpr absl::Duration kTick = absl::Milliseconds(250);

Registrar::Options OptionsFor(Router& router) {
  const std::shared_ptr<const RoutingSnapshot> routing = router.snapshot();
  Registrar::Options options;
  options.servers.registration = routing->table().registration;
  for (size_t i = 0; i < routing->table().models.size(); ++i) {
    const ServedModel& model = router.model(i);
    options.servers.models.push_back(
        {.name = model.name, .vocabulary_fingerprint = model.vocabulary_fingerprint});
  }
  options.leases = router.routing().store().leases();
  options.clock = &router.clock();
  options.is_configured = [&router](const std::string& name) { return router.routing().IsConfigured(name); };
  options.set_verifiers = [&router](size_t model, const std::vector<RegisteredEndpoint>& verifiers) {
    router.verifiers().SetRegistered(model, verifiers);
  };
  options.set_drafters = [&router](const std::vector<Drafter>& drafters) {
    router.routing().SetRegistered(drafters);
  };
  options.set_counts = [&router](size_t verifiers, size_t drafters) {
    router.metrics().SetRegistered(verifiers, drafters);
  };
  return options;
}

// PermissionDenied for a certificate with another role than the registered one, and for one without a role.
absl::Status CheckRole(const grpc::CallbackServerContext& context, const v1::ServerRegistration& server) {
  PeerRoles allowed = kVerifierRole | kDrafterRole;
  if (server.has_verifier()) allowed = kVerifierRole;
  if (server.has_drafter()) allowed = kDrafterRole;
  const PeerRoles roles = RolesOf(*context.auth_context());
  if (roles == 0 || (roles & allowed) != 0) return absl::OkStatus();
  return absl::PermissionDeniedError("the caller's certificate does not allow this call");
}

}  // namespace

RegistryService::RegistryService(Router& router) : registrar_(OptionsFor(router)) {
  worker_.emplace(1);
  const Registration& registration = router.snapshot()->table().registration;
  if (registration.verifiers || registration.drafters) watching_ = std::thread([this] { Watch(); });
}

RegistryService::~RegistryService() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (watching_.joinable()) watching_.join();
  worker_.reset();
}

void RegistryService::Watch() {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return;
    }
    registrar_.Tick();
    registrar_.AwaitChange(kTick);
  }
}

grpc::ServerUnaryReactor* RegistryService::Answer(grpc::CallbackServerContext* context,
                                                  const v1::ServerRegistration& server,
                                                  std::function<absl::Status()> work) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  absl::Status refusal = CheckRole(*context, server);
  if (refusal.ok() && server.ByteSizeLong() > kMostBytes) {
    refusal = absl::InvalidArgumentError(
        absl::StrCat("server: ", server.ByteSizeLong(), " bytes, expected at most ", kMostBytes));
  }
  if (refusal.ok() && waiting_.load() >= kMostWaiting) {
    refusal = absl::ResourceExhaustedError("too many registrations at once");
  }
  if (!refusal.ok()) {
    reactor->Finish(ToGrpcStatus(refusal));
    return reactor;
  }
  waiting_.fetch_add(1);
  worker_->Post([this, context, reactor, work = std::move(work)] {
    // A caller that has stopped waiting registers again, possibly with other data.
    const absl::Status status =
        context->IsCancelled() ? absl::CancelledError("the caller disconnected") : work();
    waiting_.fetch_sub(1);
    reactor->Finish(ToGrpcStatus(status));
  });
  return reactor;
}

grpc::ServerUnaryReactor* RegistryService::Register(grpc::CallbackServerContext* context,
                                                    const v1::RegisterRequest* request,
                                                    v1::RegisterResponse* response) {
  return Answer(context, request->server(), [this, context, request, response]() -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(*response, registrar_.Register(*request, PeerAddressOf(context->peer())));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* RegistryService::Deregister(grpc::CallbackServerContext* context,
                                                      const v1::DeregisterRequest* request,
                                                      v1::DeregisterResponse*) {
  return Answer(context, request->server(), [this, request] { return registrar_.Deregister(*request); });
}

}  // namespace tandem::router
