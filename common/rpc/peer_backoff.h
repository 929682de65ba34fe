#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tandem {

// A peer's address: an IPv4 address, or the first 64 bits of an IPv6 address, which usually identify one
// machine or site.
using PeerAddress = uint64_t;
// nullopt for other families: the peer of a Unix domain socket belongs to the operator.
std::optional<PeerAddress> PeerAddressOf(const sockaddr_storage& address);
// The address in gRPC's name for a peer: "ipv4:192.0.2.1:4321" or "ipv6:%5B2001:db8::1%5D:4321".
std::optional<PeerAddress> PeerAddressOf(absl::string_view grpc_peer);

// Addresses that may not connect for a while because connections from them were cut. A cut connection has
// cost more than an honest one ever does; without a pause, its peer would open the next one at the same cost.
//
// Many clients may share an address behind a NAT or a load balancer. So an address from which an
// authenticated caller has called is never refused.
//
// Thread-safe. Memory: some 100 bytes for each of at most `max_addresses`; beyond that, the least recently
// seen address is dropped.
class PeerBackoff {
 public:
  struct Options {
    // The first pause. Each further cut doubles it.
    absl::Duration first = absl::Seconds(1);
    // The longest pause; zero: no address is refused.
    absl::Duration longest = absl::Seconds(30);
    // After this time without a cut, pauses start again at `first`; after this time without a call, a caller
    // is not known any more.
    absl::Duration memory = absl::Minutes(10);
    size_t max_addresses = 4096;
  };

  explicit PeerBackoff(const Options& options) : options_(options) {}

  // A connection from this address was cut.
  void OnCut(PeerAddress address, absl::Time now);
  // A caller from this address was authenticated.
  void OnKnownCaller(PeerAddress address, absl::Time now);
  // Whether to refuse a connection from this address.
  bool Refuses(PeerAddress address, absl::Time now);

 private:
  struct Record {
    std::list<PeerAddress>::iterator place;  // In order_.
    int cuts = 0;                            // Within `memory` of one another.
    absl::Time last_cut = absl::InfinitePast();
    absl::Time last_call = absl::InfinitePast();
  };
  Record& RecordOf(PeerAddress address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  absl::Mutex mutex_;
  absl::flat_hash_map<PeerAddress, Record> records_ ABSL_GUARDED_BY(mutex_);
  std::list<PeerAddress> order_ ABSL_GUARDED_BY(mutex_);  // Seen last first.
};

}  // namespace tandem
