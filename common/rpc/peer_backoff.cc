#include "common/rpc/peer_backoff.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/strip.h"

namespace tandem {
namespace {

PeerAddress AddressOfV4(const in_addr& address) {
  return ntohl(address.s_addr);
}

PeerAddress AddressOfV6(const in6_addr& address) {
  in_addr mapped = {};
  if (IN6_IS_ADDR_V4MAPPED(&address) != 0) {
    std::memcpy(&mapped, address.s6_addr + 12, sizeof(mapped));
    return AddressOfV4(mapped);
  }
  PeerAddress prefix = 0;
  for (int i = 0; i < 8; ++i) prefix = prefix << 8 | address.s6_addr[i];
  // No prefix that is in use is an IPv4 address; ::1 is the loopback.
  return prefix == 0 ? INADDR_LOOPBACK : prefix;
}

}  // namespace

std::optional<PeerAddress> PeerAddressOf(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    return AddressOfV4(reinterpret_cast<const sockaddr_in&>(address).sin_addr);
  }
  if (address.ss_family == AF_INET6) {
    return AddressOfV6(reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
  }
  return std::nullopt;
}

std::optional<PeerAddress> PeerAddressOf(absl::string_view grpc_peer) {
  const size_t port = grpc_peer.rfind(':');
  if (port == absl::string_view::npos) return std::nullopt;
  absl::string_view host = grpc_peer.substr(0, port);
  if (absl::ConsumePrefix(&host, "ipv4:")) {
    in_addr address = {};
    if (inet_pton(AF_INET, std::string(host).c_str(), &address) != 1) return std::nullopt;
    return AddressOfV4(address);
  }
  if (!absl::ConsumePrefix(&host, "ipv6:")) return std::nullopt;
  if (!absl::ConsumePrefix(&host, "%5B")) absl::ConsumePrefix(&host, "[");
  host = host.substr(0, host.find_first_of("%]"));  // The end, or an interface's name.
  in6_addr address = {};
  if (inet_pton(AF_INET6, std::string(host).c_str(), &address) != 1) return std::nullopt;
  return AddressOfV6(address);
}

PeerBackoff::Record& PeerBackoff::RecordOf(PeerAddress address) {
  const auto [found, is_new] = records_.try_emplace(address);
  if (is_new) {
    order_.push_front(address);
    found->second.place = order_.begin();
    if (records_.size() > options_.max_addresses) {
      records_.erase(order_.back());
      order_.pop_back();
    }
    return records_.find(address)->second;
  }
  order_.splice(order_.begin(), order_, found->second.place);
  return found->second;
}

void PeerBackoff::OnCut(PeerAddress address, absl::Time now) {
  if (options_.longest <= absl::ZeroDuration()) return;
  absl::MutexLock lock(&mutex_);
  Record& record = RecordOf(address);
  record.cuts = now - record.last_cut < options_.memory ? record.cuts + 1 : 1;
  record.last_cut = now;
}

void PeerBackoff::OnKnownCaller(PeerAddress address, absl::Time now) {
  if (options_.longest <= absl::ZeroDuration()) return;
  absl::MutexLock lock(&mutex_);
  RecordOf(address).last_call = now;
}

bool PeerBackoff::Refuses(PeerAddress address, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  const auto found = records_.find(address);
  if (found == records_.end()) return false;
  const Record& record = found->second;
  if (record.cuts == 0 || now - record.last_call < options_.memory) return false;
  constexpr int kMostDoublings = 20;
  const absl::Duration pause = options_.first * (1 << std::min(record.cuts - 1, kMostDoublings));
  return now - record.last_cut < std::min(pause, options_.longest);
}

}  // namespace tandem
