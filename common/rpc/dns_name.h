#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

// "dns:///host:port" in a list of verifiers: every address that the name has is a verifier.
struct DnsName {
  std::string host;
  std::string port;
};

// More than a name should have; what comes after is left out.
inline constexpr size_t kMaxAddresses = 256;

// Nothing for what does not begin with "dns:"; InvalidArgument for what does and is not "dns:///host:port".
absl::StatusOr<std::optional<DnsName>> ParseDnsName(absl::string_view endpoint);

// The addresses of a name, as "1.2.3.4:7002" or "[fd00::1]:7002", sorted, each once. NotFound when the name
// has none, Unavailable when nobody could be asked.
using Resolve = std::function<absl::StatusOr<std::vector<std::string>>(const DnsName&)>;

// As the system does it, which may take seconds.
absl::StatusOr<std::vector<std::string>> ResolveBySystem(const DnsName& name);

}  // namespace tandem
