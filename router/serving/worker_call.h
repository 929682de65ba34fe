#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/rpc/status.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "router/serving/router.h"
#include "router/tenants/call_metadata.h"

namespace tandem::router {

// Serves a unary call of a tenant: runs work(routing, tenant's index) on a worker and answers with its
// status. The call needs a place like any request, but does not wait in the queue for one. `bytes`: the size
// of the request, by which workers are shared fairly.
template <class Work>
grpc::ServerUnaryReactor* AnswerOnWorker(Router& router, grpc::CallbackServerContext* context, size_t bytes,
                                         Work work) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const std::shared_ptr<const RoutingSnapshot> routing = router.snapshot();
  const absl::StatusOr<size_t> tenant = AuthenticateCall(routing->tenants(), context->client_metadata());
  if (!tenant.ok()) {
    reactor->Finish(ToGrpcStatus(tenant.status()));
    return reactor;
  }
  auto lease = std::make_shared<Router::Lease>(router);
  absl::StatusOr<Admission::Ticket> admitted = router.admission().Admit(routing->table(), *tenant);
  if (admitted.ok() && admitted->waits_at_first()) {
    admitted = absl::ResourceExhaustedError("too many requests are in flight; retry later");
  }
  if (!admitted.ok()) {
    reactor->Finish(ToGrpcStatus(admitted.status()));
    return reactor;
  }
  auto ticket = std::make_shared<Admission::Ticket>(*std::move(admitted));
  const Tenant& caller = routing->table().tenants[*tenant];
  router.workers().Post({.tenant = caller.name, .weight = caller.weight, .bytes = bytes},
                        [reactor, routing, tenant = *tenant, work, lease, ticket] {
                          const absl::Status status = work(*routing, tenant);
                          *ticket = Admission::Ticket();  // Before the answer, and the lease.
                          reactor->Finish(ToGrpcStatus(status));
                        });
  return reactor;
}

}  // namespace tandem::router
