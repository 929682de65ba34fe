#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/server_builder.h"

namespace tandem {

// Limits on what peers may cost a server (docs/operate/security.md).
struct PeerLimits {
  // Most connections, roughly (Listener::Options).
  uint32_t max_connections = 4096;
  // Most calls in flight on one connection; clients delay further ones.
  uint32_t max_streams = 256;
  // MiB for received messages that are not processed yet and sent messages that are not written yet, over all
  // connections. When it is nearly used up, gRPC reads less, and then ends calls.
  uint32_t memory_mib = 512;
  // Threads for connections, in addition to gRPC's (Pollers): about how many peers may send without pause
  // before others are not read.
  uint32_t pollers = 2;
  // A connection without a call for this long is closed; zero: never. Clients reconnect at their next call.
  absl::Duration max_idle;
  // A connection of this age accepts no more calls; after the same time again, its calls are ended. Zero:
  // never.
  absl::Duration max_age;
};

// Applies the limits of size and time to all connections of the server. `quota`: shared by its connections.
void ApplyLimits(const PeerLimits& limits, const grpc::ResourceQuota& quota, grpc::ServerBuilder* builder);

// Whether gRPC of this version (such as "1.51.1") needs only time proportional to a header list's bytes, in
// whatever pieces they arrive (CVE-2023-33953). Older versions scan an unfinished string again from its
// beginning whenever more of it arrives.
bool BoundsHeaderLists(absl::string_view grpc_version);

}  // namespace tandem
