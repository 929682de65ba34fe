#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "router/state/routing_store.h"
#include "tandem/v1/config.pb.h"

namespace tandem::router {

// What turns the store's content into one that follows `file`, by the rules of RoutingState. Each change
// expects the version that `listing`, of kRoutingPrefix, has of its key. Empty when nothing is to be done.
// `file` is one that resolves. DataLoss for a record that cannot be read.
absl::StatusOr<std::vector<StoreChange>> ApplyConfigFile(const v1::RouterConfig& file,
                                                         const RoutingStore::Listing& listing);

// `tenant` with the token's digest in place of the token: what is stored holds no secret.
v1::TenantConfig WithoutToken(v1::TenantConfig tenant);

}  // namespace tandem::router
