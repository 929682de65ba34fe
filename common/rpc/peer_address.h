#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace tandem {

// A peer's address: an IPv4 address, or the first 64 bits of an IPv6 address, which usually identify one
// machine or site.
using PeerAddress = uint64_t;
// Reads the address from gRPC's name for a peer: "ipv4:192.0.2.1:4321" or "ipv6:%5B2001:db8::1%5D:4321".
// nullopt for other families: the peer of a Unix domain socket belongs to the operator.
std::optional<PeerAddress> PeerAddressOf(absl::string_view grpc_peer);

}  // namespace tandem
