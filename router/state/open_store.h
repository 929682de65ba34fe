#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/state/routing_store.h"

namespace tandem::router {

// The store that a --state flag names: "memory:" lasts as long as the process, "sqlite:///path" is that file.
// InvalidArgument for anything else; otherwise the errors of opening it.
absl::StatusOr<std::unique_ptr<RoutingStore>> OpenStore(absl::string_view uri);

// Values of other parts of the router, such as learned statistics, beside the routing: any bytes under a name
// of the part's own choosing. Each Put replaces the value; the last of several routers wins.
absl::Status PutBlob(RoutingStore& store, absl::string_view name, absl::string_view bytes);
// Nothing when there is none.
absl::StatusOr<std::optional<std::string>> GetBlob(RoutingStore& store, absl::string_view name);

}  // namespace tandem::router
