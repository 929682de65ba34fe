#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "grpc/impl/codegen/compression_types.h"
#include "grpcpp/channel.h"
#include "grpcpp/security/credentials.h"

namespace tandem {

// Limits and keepalive of Tandem's clients and servers. They are set in one place, because a client must not
// ping more often than its server tolerates.
inline constexpr int kMaxMessageBytes = 4 << 20;
inline constexpr int kMaxMetadataBytes = 16 << 10;
inline constexpr absl::Duration kKeepaliveInterval = absl::Seconds(20);
inline constexpr absl::Duration kKeepaliveTimeout = absl::Seconds(10);
// Between services, which can use another server or continue without one.
inline constexpr absl::Duration kConnectTimeout = absl::Milliseconds(500);
// For programs that people run, possibly from far away, and that exit if there is no connection.
inline constexpr absl::Duration kClientConnectTimeout = absl::Seconds(10);

// The only message encoding that Tandem's clients and servers accept: none. gRPC checks a message's size only
// after decompression, so that one megabyte could become gigabytes of memory before any token is checked.
// Calls and answers in another encoding end with UNIMPLEMENTED.
inline constexpr int kMessageEncodings = 1 << GRPC_COMPRESS_NONE;

// A channel to `target`, such as "verifier-0:7002"; null `credentials` (common/rpc/security.h): without TLS.
// Channels to one target do not share connections. A lost connection is retried with a pause of at most 2
// seconds. The server's certificate must name `server_name` if that is given, otherwise the target's host. A
// connection that is not ready after `connect_timeout`, TLS included, counts as failed.
std::shared_ptr<grpc::Channel> CreateChannel(
    const std::string& target, const std::shared_ptr<grpc::ChannelCredentials>& credentials = nullptr,
    const std::string& server_name = "", absl::Duration connect_timeout = kConnectTimeout);

}  // namespace tandem
