#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/state/routing_store.h"

namespace tandem::router {

// Opens the store that a --state flag names: "memory:" lasts as long as the process, "sqlite:///path" is that
// file. InvalidArgument for anything else; otherwise the errors of opening the store.
absl::StatusOr<std::unique_ptr<RoutingStore>> OpenStore(absl::string_view uri);

// Values of other parts of the router, such as learned statistics, beside the routing data: any bytes, under
// a name that the part chooses. Each Put replaces the value; if several routers write, the last one wins.
absl::Status PutBlob(RoutingStore& store, absl::string_view name, absl::string_view bytes);
// nullopt if there is no value.
absl::StatusOr<std::optional<std::string>> GetBlob(RoutingStore& store, absl::string_view name);

}  // namespace tandem::router
