#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "router/state/routing_store.h"
#include "tandem/v1/config.pb.h"

namespace tandem::router {

// The changes that make the store agree with `file`, by the rules of RoutingState; empty if it agrees
// already. Each change expects the version that its key has in `listing`, a listing of kRoutingPrefix. `file`
// must resolve. DataLoss for a record that cannot be read.
absl::StatusOr<std::vector<StoreChange>> ApplyConfigFile(const v1::RouterConfig& file,
                                                         const RoutingStore::Listing& listing);

// `tenant` with the token's digest in place of the token, because the store must hold no secrets.
v1::TenantConfig WithoutToken(v1::TenantConfig tenant);

// The same for every tenant of `config`.
void HashTokens(v1::RouterConfig& config);

}  // namespace tandem::router
