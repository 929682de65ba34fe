#include "router/admin/known_servers.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace tandem::router {
namespace {

// Null: nobody.
const v1::ServerRegistration* FindVerifier(absl::Span<const v1::ServerRegistration> registered,
                                           const std::string& model, const std::string& address) {
  const auto found = std::find_if(registered.begin(), registered.end(), [&](const auto& server) {
    return server.has_verifier() && server.verifier().model().name() == model && server.address() == address;
  });
  return found == registered.end() ? nullptr : &*found;
}

const v1::ServerRegistration* FindDrafter(absl::Span<const v1::ServerRegistration> registered,
                                          const Drafter& drafter) {
  const auto found = std::find_if(registered.begin(), registered.end(), [&](const auto& server) {
    const auto& models = server.drafter().models();
    return server.address() == drafter.endpoint &&
           std::any_of(models.begin(), models.end(), [&](const v1::RegisteredDraftModel& model) {
             return model.model().name() == drafter.name;
           });
  });
  return found == registered.end() ? nullptr : &*found;
}

v1::ServerSource SourceOf(VerifierPool::Source source) {
  switch (source) {
    case VerifierPool::Source::kConfigured:
      return v1::SERVER_SOURCE_CONFIGURED;
    case VerifierPool::Source::kName:
      return v1::SERVER_SOURCE_NAME;
    case VerifierPool::Source::kRegistered:
      return v1::SERVER_SOURCE_REGISTERED;
  }
  return v1::SERVER_SOURCE_UNSPECIFIED;
}

v1::ServerState StateOf(const VerifierPool::Status& verifier) {
  if (!verifier.listed) return v1::SERVER_STATE_LEAVING;
  if (!verifier.serving) return v1::SERVER_STATE_NOT_SERVING;
  return verifier.ejected ? v1::SERVER_STATE_EJECTED : v1::SERVER_STATE_READY;
}

}  // namespace

v1::ListServersResponse ListServers(Router& router, absl::Span<const v1::ServerRegistration> registered) {
  v1::ListServersResponse response;
  const std::shared_ptr<const RoutingSnapshot> routing = router.snapshot();
  const RoutingTable& table = routing->table();
  for (size_t m = 0; m < table.models.size(); ++m) {
    for (const VerifierPool::Status& verifier : router.verifiers().List(m)) {
      v1::KnownServer& server = *response.add_servers();
      server.set_role(v1::SERVER_ROLE_VERIFIER);
      server.set_name(table.models[m].name);
      server.set_address(verifier.endpoint);
      server.set_source(SourceOf(verifier.source));
      server.set_state(StateOf(verifier));
      server.set_in_flight(verifier.in_flight);
      server.set_max_in_flight(verifier.max_in_flight);
      const auto* registration = FindVerifier(registered, table.models[m].name, verifier.endpoint);
      if (registration != nullptr) *server.mutable_registration() = *registration;
    }
  }
  std::vector<const Drafter*> drafters;
  for (const Drafter& drafter : table.drafters) {
    if (!drafter.absent) drafters.push_back(&drafter);
  }
  std::sort(drafters.begin(), drafters.end(),
            [](const Drafter* a, const Drafter* b) { return a->name < b->name; });
  for (const Drafter* drafter : drafters) {
    v1::KnownServer& server = *response.add_servers();
    server.set_role(v1::SERVER_ROLE_DRAFTER);
    server.set_name(drafter->name);
    server.set_address(drafter->endpoint);
    server.set_state(drafter->draining ? v1::SERVER_STATE_DRAINING : v1::SERVER_STATE_READY);
    // One that is configured goes before one that registered by the same name.
    const bool is_configured = router.routing().IsConfigured(drafter->name);
    server.set_source(is_configured ? v1::SERVER_SOURCE_CONFIGURED : v1::SERVER_SOURCE_REGISTERED);
    const v1::ServerRegistration* registration = is_configured ? nullptr : FindDrafter(registered, *drafter);
    if (registration != nullptr) *server.mutable_registration() = *registration;
  }
  return response;
}

}  // namespace tandem::router
