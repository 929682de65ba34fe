#include "common/rpc/server_flags.h"

#include "absl/time/clock.h"
#include "common/base/core_dumps.h"
#include "common/base/status_macros.h"
#include "common/config/flags.h"

namespace tandem {

void DeclareServerFlags(ServerFlags& options, Flags& flags) {
  flags.Group("Network")
      .Add("listen", &options.listen, "Address to serve gRPC on.")
      .Add("metrics-listen", &options.metrics_listen, "Address to serve /metrics on; empty: none.")
      .Add("health-listen", &options.health_listen,
           "Address to serve grpc.health.v1 on without TLS, for probes that have no certificates. Nothing "
           "else is served there. Empty: none. --listen serves grpc.health.v1 in any case.");
  flags.Group("Security")
      .Add("tls-certificate", &options.tls.certificate,
           "PEM file of this server's certificate and any intermediate certificates. With it, every "
           "connection to and from this process uses TLS. Changed files are reloaded within seconds.")
      .Add("tls-key", &options.tls.key, "PEM file of the certificate's private key.")
      .Add("tls-ca", &options.tls.ca,
           "PEM file of the certificate authorities of peers. The role in a peer's certificate decides what "
           "it may call.")
      .Add("insecure", &options.insecure,
           "Allow listening without TLS on addresses that other machines can reach.");
  DeclareTracingFlags(options.tracing, flags);
  flags.Group("Life cycle")
      .Add("drain-delay", &options.drain_delay,
           "How long to accept requests after SIGTERM, so that clients that watch health can choose other "
           "servers.")
      .Add("drain-grace", &options.drain_grace,
           "How long running requests may go on after that; those that remain are handed over or ended.");
  flags.Settings("Limits on callers (docs/operate/security.md)")
      .Add("max-connections", &options.limits.max_connections,
           "Most connections at once, roughly; further ones are closed. Fewer if the limit on file "
           "descriptors is lower (ulimit -Hn).")
      .InRange(1, 1 << 20)
      .Add("max-streams", &options.limits.max_streams,
           "Most calls in flight on one connection; gRPC clients queue further calls.")
      .InRange(1, 1 << 20)
      .Add("connection-memory", &options.limits.memory_mib,
           "Most MiB of messages in transit, over all connections; when they are used up, gRPC ends calls.")
      .InRange(16, 1 << 20)
      .Add("connection-idle", &options.limits.max_idle,
           "Close a connection that has had no call for this long; 0s: never.")
      .Add("connection-age", &options.limits.max_age,
           "Age at which a connection takes no more calls; calls that still run end after as long again. 0s: "
           "never.");
  flags.Settings("Server")
      .Add("reflection", &options.reflection, "Serve gRPC reflection.")
      .Add("core-dumps", &options.core_dumps,
           "Allow core dumps of this process; they contain tokens, prompts and outputs.")
      .Add("liveness-timeout", &options.liveness_timeout,
           "Report the health service \"liveness\" as NOT_SERVING when work has made no progress for this "
           "long; 0s: never.");
}

absl::StatusOr<Security> OpenServerSecurity(const ServerFlags& options, v1::ServerRole role) {
  TANDEM_RETURN_IF_ERROR(CheckListenAddress(options.listen, options.tls.any(), options.insecure));
  TANDEM_RETURN_IF_ERROR(CheckTracingFlags(options.tracing));
  if (!options.core_dumps) KeepMemoryOutOfCoreDumps();
  return OpenServerSecurity(options.tls, role, absl::Now());
}

ServerOptions MakeServerOptions(const ServerFlags& options, const Security& security,
                                MetricsRegistry* metrics) {
  return {.listen_address = options.listen,
          .metrics_address = options.metrics_listen,
          .metrics = metrics,
          .reflection = options.reflection,
          .credentials = security.server,
          .tls = options.tls,
          .insecure = options.insecure,
          .health_address = options.health_listen,
          .liveness_timeout = options.liveness_timeout,
          .limits = options.limits};
}

}  // namespace tandem
