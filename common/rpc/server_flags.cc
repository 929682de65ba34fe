#include "common/rpc/server_flags.h"

#include <memory>

#include "absl/time/clock.h"
#include "common/base/core_dumps.h"
#include "common/base/status_macros.h"
#include "common/config/flags.h"

namespace tandem {

void DeclareServerFlags(ServerFlags& options, Flags& flags) {
  flags.Group("Network")
      .Add("listen", &options.listen, "Address to serve gRPC on.")
      .Add("metrics-listen", &options.metrics_listen, "Address to serve /metrics on; empty for none.")
      .Add("health-listen", &options.health_listen,
           "Address to serve grpc.health.v1 on without TLS, and nothing else, for probes that have no "
           "certificates; empty for none. It is served on --listen in any case.")
      .Add("reflection", &options.reflection, "Serve gRPC reflection.");
  flags.Group("Security")
      .Add("tls-certificate", &options.tls.certificate,
           "PEM file of the certificate to show, and those between it and the CA. With it every connection "
           "to and from this process uses TLS. Files that change are taken again within seconds.")
      .Add("tls-key", &options.tls.key, "PEM file of the certificate's private key.")
      .Add("tls-ca", &options.tls.ca,
           "PEM file of the certificates that sign those of peers. Their roles decide what they may call.")
      .Add("insecure", &options.insecure, "Listen without TLS where other machines can connect.")
      .Add("core-dumps", &options.core_dumps,
           "Let a crash leave the process's memory in a core dump: tokens, prompts and outputs.");
  flags.Group("What callers may cost (docs/operate/security.md)")
      .Add("max-connections", &options.limits.max_connections,
           "Connections at once, roughly; further ones are closed. Fewer where the process may not have that "
           "many file "
           "descriptors (ulimit -Hn).")
      .InRange(1, 1 << 20)
      .Add("max-streams", &options.limits.max_streams,
           "Calls in flight on one connection; gRPC's clients hold further ones back.")
      .InRange(1, 1 << 20)
      .Add("connection-memory", &options.limits.memory_mib,
           "MiB for messages on their way, over all connections; when they are used up gRPC ends calls.")
      .InRange(16, 1 << 20)
      .Add("connection-unread", &options.limits.unread_kib,
           "KiB of calls from a peer that takes nothing of its answers until its connection is cut; 0 for "
           "never.")
      .InRange(0, 1 << 20)
      .Add(
          "cut-backoff", &options.limits.cut_backoff,
          "After a connection was cut its address may open no new one: 1s the first time, twice as long each "
          "further time, at most this long. Addresses of known callers are exempt. 0s: off.")
      .Add("connection-threads", &options.limits.pollers,
           "Threads for connections besides gRPC's own: about how many peers may send without end before "
           "others are not read.")
      .InRange(0, 256)
      .Add("connection-idle", &options.limits.max_idle,
           "After how long without a call a connection is closed; 0s for never.")
      .Add(
          "connection-age", &options.limits.max_age,
          "When a connection takes no more calls; those it has are ended after as long again. 0s for never.");
  DeclareTracingFlags(options.tracing, flags);
  flags.Group("Life cycle")
      .Add("liveness-timeout", &options.liveness_timeout,
           "How long the work may stand still before the health of \"liveness\" says so; 0s for ever.")
      .Add("drain-delay", &options.drain_delay,
           "How long requests are still taken after SIGTERM, for those who choose servers by their health to "
           "choose others.")
      .Add("drain-grace", &options.drain_grace,
           "How long what runs may go on after that; what is left then is handed over or ended.");
}

absl::StatusOr<Security> OpenServerSecurity(const ServerFlags& options, v1::ServerRole role) {
  TANDEM_RETURN_IF_ERROR(CheckListenAddress(options.listen, options.tls.any(), options.insecure));
  TANDEM_RETURN_IF_ERROR(CheckTracingFlags(options.tracing));
  if (!options.core_dumps) KeepMemoryOutOfCoreDumps();
  return OpenServerSecurity(options.tls, role, absl::Now());
}

ServerOptions MakeServerOptions(const ServerFlags& options, const Security& security,
                                MetricsRegistry* metrics) {
  return {
      .listen_address = options.listen,
      .metrics_address = options.metrics_listen,
      .metrics = metrics,
      .reflection = options.reflection,
      .credentials = security.server,
      .tls = options.tls,
      .insecure = options.insecure,
      .health_address = options.health_listen,
      .liveness_timeout = options.liveness_timeout,
      .limits = options.limits,
      .backoff = std::make_shared<PeerBackoff>(PeerBackoff::Options{.longest = options.limits.cut_backoff})};
}

}  // namespace tandem
