#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

// "dns:///host:port" in a list of verifiers: every address of the name is a verifier.
struct DnsName {
  std::string host;
  std::string port;
};

// More addresses than a name should have; further ones are ignored.
inline constexpr size_t kMaxAddresses = 256;

// nullopt if `endpoint` does not begin with "dns:"; InvalidArgument if it does and is not "dns:///host:port".
absl::StatusOr<std::optional<DnsName>> ParseDnsName(absl::string_view endpoint);

// The addresses of a name, as "1.2.3.4:7002" or "[fd00::1]:7002", sorted, each once. NotFound if the name has
// none, Unavailable if no DNS server could be reached.
using Resolve = std::function<absl::StatusOr<std::vector<std::string>>(const DnsName&)>;

// Resolves with the system's resolver, which may take seconds.
absl::StatusOr<std::vector<std::string>> ResolveBySystem(const DnsName& name);

}  // namespace tandem
