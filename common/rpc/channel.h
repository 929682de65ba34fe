#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "grpc/impl/codegen/compression_types.h"
#include "grpcpp/channel.h"
#include "grpcpp/security/credentials.h"

namespace tandem {

// Limits and keepalive that clients and servers of Tandem share: a client must not ping more often than its
// server tolerates, so the two are set in one place.
inline constexpr int kMaxMessageBytes = 4 << 20;
inline constexpr int kMaxMetadataBytes = 16 << 10;
inline constexpr absl::Duration kKeepaliveInterval = absl::Seconds(20);
inline constexpr absl::Duration kKeepaliveTimeout = absl::Seconds(10);
// Between services, which have another server to turn to or go on without.
inline constexpr absl::Duration kConnectTimeout = absl::Milliseconds(500);
// Of programs that people run, perhaps from far away, and that end when there is no connection.
inline constexpr absl::Duration kClientConnectTimeout = absl::Seconds(10);

// The one encoding of messages that clients and servers of Tandem take: none. gRPC looks at a message's size
// after it has inflated it, so that a megabyte sent could become gigabytes held, before anybody is asked for
// a token. Calls and answers in another encoding end with UNIMPLEMENTED.
inline constexpr int kMessageEncodings = 1 << GRPC_COMPRESS_NONE;

// A channel to `target`, such as "verifier-0:7002"; null `credentials` (common/rpc/security.h): without TLS.
// Channels to one target do not share connections, and a lost connection is tried again at most every 2
// seconds. The server's certificate has to name `server_name` where it is given, and otherwise the target's
// host. A connection that is not ready after `connect_timeout`, TLS included, counts as failed.
std::shared_ptr<grpc::Channel> CreateChannel(
    const std::string& target, const std::shared_ptr<grpc::ChannelCredentials>& credentials = nullptr,
    const std::string& server_name = "", absl::Duration connect_timeout = kConnectTimeout);

}  // namespace tandem
