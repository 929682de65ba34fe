#include "common/rpc/peer_limits.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/rpc/channel.h"
#include "grpc/grpc.h"

namespace tandem {
namespace {

// For a connection to show what it is, TLS included.
constexpr absl::Duration kHandshakeTimeout = absl::Seconds(20);
// Pings that come too often before the connection is closed.
constexpr int kMostPingStrikes = 2;

int Milliseconds(absl::Duration time) {
  return static_cast<int>(absl::ToInt64Milliseconds(time));
}

}  // namespace

void ApplyLimits(const PeerLimits& limits, const grpc::ResourceQuota& quota, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder->SetMaxSendMessageSize(kMaxMessageBytes);
  // By the builder's own means, which would otherwise write its default over a channel argument.
  for (int encoding = 0; encoding < GRPC_COMPRESS_ALGORITHMS_COUNT; ++encoding) {
    builder->SetCompressionAlgorithmSupportStatus(static_cast<grpc_compression_algorithm>(encoding),
                                                  (kMessageEncodings >> encoding & 1) != 0);
  }
  builder->SetResourceQuota(quota);
  const std::pair<const char*, int> arguments[] = {
      {GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0},
      {GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes},
      {GRPC_ARG_MAX_CONCURRENT_STREAMS, static_cast<int>(limits.max_streams)},
      {GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, Milliseconds(kHandshakeTimeout)},
      {GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(kKeepaliveInterval)},
      {GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(kKeepaliveTimeout)},
      {GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1},
      {GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0},
      // Half a client's interval, so that delays on the way do not make an honest client look like an abuser.
      {GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, Milliseconds(kKeepaliveInterval) / 2},
      {GRPC_ARG_HTTP2_MAX_PING_STRIKES, kMostPingStrikes},
      // Of abstract sockets, which gRPC listens at itself. A second server there is a mistake to report.
      {GRPC_ARG_ALLOW_REUSEPORT, 0},
  };
  for (const auto& [name, value] : arguments) builder->AddChannelArgument(name, value);
  if (limits.max_idle > absl::ZeroDuration()) {
    builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, Milliseconds(limits.max_idle));
  }
  if (limits.max_age > absl::ZeroDuration()) {
    builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, Milliseconds(limits.max_age));
    builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, Milliseconds(limits.max_age));
  }
}

bool BoundsHeaderLists(absl::string_view grpc_version) {
  // What follows the numbers, as in "1.60.0-dev", does not matter here.
  const std::vector<absl::string_view> parts = absl::StrSplit(grpc_version, absl::ByAnyChar(".-"));
  int major = 0;
  int minor = 0;
  int patch = 0;
  if (parts.size() < 3 || !absl::SimpleAtoi(parts[0], &major) || !absl::SimpleAtoi(parts[1], &minor) ||
      !absl::SimpleAtoi(parts[2], &patch)) {
    return false;
  }
  if (major != 1) return major > 1;
  // 1.53.2, 1.54.3, 1.55.2 and 1.56.2 have the fix, and all from 1.57 on.
  if (minor == 54) return patch >= 3;
  if (minor >= 53 && minor <= 56) return patch >= 2;
  return minor >= 57;
}

}  // namespace tandem
