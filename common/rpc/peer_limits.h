#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/server_builder.h"

namespace tandem {

// What those who connect to a server may cost it (docs/operate/security.md).
struct PeerLimits {
  // Connections at once, roughly (Listener::Options).
  uint32_t max_connections = 4096;
  // Calls in flight on one connection; clients hold back further ones.
  uint32_t max_streams = 256;
  // MiB for what has been received and not been taken yet, and what has been sent and not gone out, all
  // connections together. When it is nearly used up gRPC reads less, and then ends calls.
  uint32_t memory_mib = 512;
  // KiB that a peer may send while it takes nothing of what waits for it; then its connection is cut. 0: it
  // may go on. Of all peers together, what `memory_mib` has room for.
  uint32_t unread_kib = 256;
  // For how long, at most, an address from which a connection was cut may open no further one (PeerBackoff);
  // zero: it may at once.
  absl::Duration cut_backoff = absl::Seconds(30);
  // Threads for connections besides those of gRPC (Pollers): about how many peers may send without end before
  // others are not read.
  uint32_t pollers = 2;
  // A connection that has had no call for so long is closed; zero: never. Clients connect again when they
  // next call.
  absl::Duration max_idle;
  // A connection this old takes no more calls, and those it has are ended after as long again; zero: never.
  absl::Duration max_age;
};

// Bounds of size and time for all connections to the server. `quota` is what its connections share.
void ApplyLimits(const PeerLimits& limits, const grpc::ResourceQuota& quota, grpc::ServerBuilder* builder);

// Whether gRPC of this version ("1.51.1") takes time in proportion to a header list's bytes, however they
// come (CVE-2023-33953): older ones look at an unfinished string again from its beginning whenever more of it
// arrives.
bool BoundsHeaderLists(absl::string_view grpc_version);

}  // namespace tandem
