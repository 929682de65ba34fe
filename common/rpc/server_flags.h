#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/security.h"
#include "common/rpc/server.h"
#include "common/rpc/tracing.h"

namespace tandem {

class Flags;

// What every server's command line says about its connections, and about its end.
struct ServerFlags {
  std::string listen;
  std::string metrics_listen;
  std::string health_listen;
  bool reflection = false;
  TlsFiles tls;
  bool insecure = false;
  bool core_dumps = false;
  PeerLimits limits;
  TracingFlags tracing;
  absl::Duration liveness_timeout = absl::Seconds(60);
  absl::Duration drain_delay;
  absl::Duration drain_grace;

  DrainTimes drain_times() const { return {.delay = drain_delay, .grace = drain_grace}; }
};

// Adds the flags, with what `options` holds as defaults. `options` outlives the parsing.
void DeclareServerFlags(ServerFlags& options, Flags& flags);

// Reads and checks all that the flags name, and keeps memory out of core dumps unless they allow it.
// InvalidArgument says which flag is wrong.
absl::StatusOr<Security> OpenServerSecurity(const ServerFlags& options, v1::ServerRole role);

// What ServerRunner::Start needs to know of it.
ServerOptions MakeServerOptions(const ServerFlags& options, const Security& security,
                                MetricsRegistry* metrics);

}  // namespace tandem
