#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::router {

// An etcd as --state names it.
struct EtcdAddress {
  std::vector<std::string> endpoints;  // "host:port", at least one, all different.
  std::string prefix;                  // Of all keys: "/tandem/v1/".
};

inline constexpr absl::string_view kEtcdScheme = "etcd://";

// Parses "etcd://host:port[,host:port...]/prefix". IPv6 addresses stand in brackets. The prefix is a path of
// letters, digits and "._-/"; all keys begin with it and the version of the layout, "v1". InvalidArgument
// says which part is wrong. A user name or password in the address is an error.
absl::StatusOr<EtcdAddress> ParseEtcdAddress(absl::string_view uri);

}  // namespace tandem::router
