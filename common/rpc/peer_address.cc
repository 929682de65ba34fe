#include "common/rpc/peer_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstring>
#include <string>

#include "absl/strings/strip.h"

namespace tandem {
namespace {

PeerAddress AddressOfV4(const in_addr& address) {
  return ntohl(address.s_addr);
}

PeerAddress AddressOfV6(const in6_addr& address) {
  in_addr mapped = {};
  if (IN6_IS_ADDR_V4MAPPED(&address) != 0) {
    std::memcpy(&mapped, address.s6_addr + 12, sizeof(mapped));
    return AddressOfV4(mapped);
  }
  PeerAddress prefix = 0;
  for (int i = 0; i < 8; ++i) prefix = prefix << 8 | address.s6_addr[i];
  // No prefix that is in use is an IPv4 address; ::1 is the loopback.
  return prefix == 0 ? INADDR_LOOPBACK : prefix;
}

}  // namespace

std::optional<PeerAddress> PeerAddressOf(absl::string_view grpc_peer) {
  const size_t port = grpc_peer.rfind(':');
  if (port == absl::string_view::npos) return std::nullopt;
  absl::string_view host = grpc_peer.substr(0, port);
  if (absl::ConsumePrefix(&host, "ipv4:")) {
    in_addr address = {};
    if (inet_pton(AF_INET, std::string(host).c_str(), &address) != 1) return std::nullopt;
    return AddressOfV4(address);
  }
  if (!absl::ConsumePrefix(&host, "ipv6:")) return std::nullopt;
  if (!absl::ConsumePrefix(&host, "%5B")) absl::ConsumePrefix(&host, "[");
  host = host.substr(0, host.find_first_of("%]"));  // The end, or an interface's name.
  in6_addr address = {};
  if (inet_pton(AF_INET6, std::string(host).c_str(), &address) != 1) return std::nullopt;
  return AddressOfV6(address);
}

}  // namespace tandem
