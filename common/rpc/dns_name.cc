#include "common/rpc/dns_name.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace tandem {
namespace {

bool IsDnsHost(absl::string_view host) {
  return !host.empty() && host.size() <= 253 && std::all_of(host.begin(), host.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
  });
}

}  // namespace

absl::StatusOr<std::optional<DnsName>> ParseDnsName(absl::string_view endpoint) {
  if (!absl::StartsWith(endpoint, "dns:")) return std::nullopt;
  absl::string_view rest = endpoint;
  const bool has_form = absl::ConsumePrefix(&rest, "dns:///");
  const size_t colon = rest.rfind(':');
  uint32_t port = 0;
  if (!has_form || colon == absl::string_view::npos || !IsDnsHost(rest.substr(0, colon)) ||
      !absl::SimpleAtoi(rest.substr(colon + 1), &port) || port == 0 || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("\"", endpoint, "\", expected \"dns:///host:port\""));
  }
  const absl::string_view host = rest.substr(0, colon);
  return DnsName{.host = std::string(host.data(), host.size()), .port = absl::StrCat(port)};
}

absl::StatusOr<std::vector<std::string>> ResolveBySystem(const DnsName& name) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(name.host.c_str(), name.port.c_str(), &hints, &found);
  if (code != 0) {
    const std::string message = absl::StrCat("\"", name.host, "\" cannot be resolved: ", gai_strerror(code));
    if (code == EAI_NONAME || code == EAI_NODATA) return absl::NotFoundError(message);
    return absl::UnavailableError(message);
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  std::set<std::string> addresses;
  for (const addrinfo* at = found; at != nullptr && addresses.size() < kMaxAddresses; at = at->ai_next) {
    char text[INET6_ADDRSTRLEN] = {};
    if (at->ai_family == AF_INET) {
      const auto* v4 = reinterpret_cast<const sockaddr_in*>(at->ai_addr);
      if (inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text)) == nullptr) continue;
      addresses.insert(absl::StrCat(text, ":", name.port));
    } else if (at->ai_family == AF_INET6) {
      const auto* v6 = reinterpret_cast<const sockaddr_in6*>(at->ai_addr);
      if (inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text)) == nullptr) continue;
      addresses.insert(absl::StrCat("[", text, "]:", name.port));
    }
  }
  if (addresses.empty()) return absl::NotFoundError(absl::StrCat("\"", name.host, "\" has no address"));
  return std::vector<std::string>(addresses.begin(), addresses.end());
}

}  // namespace tandem
