#include "common/rpc/connection_watch.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/log.h"
#include "common/rpc/socket_cookie.h"

namespace tandem {
namespace {

constexpr int kTcpLevel = 6;
// Of what a peer takes, this part pays for what it sent.
constexpr uint64_t kTakenPerByte = 8;
// A peer that is heard, but leaves this many repetitions unanswered, is silent.
constexpr uint32_t kBackoffsOfTheSilent = 2;

std::optional<ConnectionSample> SampleOf(int descriptor) {
  tcp_info info = {};
  socklen_t size = sizeof(info);
  if (getsockopt(descriptor, kTcpLevel, TCP_INFO, &info, &size) != 0) return std::nullopt;
  return ConnectionSample{.received_bytes = info.tcpi_bytes_received,
                          .taken_bytes = info.tcpi_bytes_acked,
                          .unsent_bytes = info.tcpi_notsent_bytes,
                          .window_closed = absl::Microseconds(info.tcpi_rwnd_limited),
                          .backoffs = info.tcpi_backoff};
}

// Shuts down the socket with this cookie, if the descriptor is still its. The descriptor of our own keeps
// another socket from taking the number in between.
bool ShutDown(int descriptor, uint64_t cookie) {
  const int own = dup(descriptor);
  if (own < 0) return false;
  const bool same = SocketCookie(own) == cookie;
  if (same) shutdown(own, SHUT_RDWR);
  close(own);
  return same;
}

}  // namespace

void UnreadOutput::Observe(Id connection, const ConnectionSample& sample, absl::Duration elapsed) {
  if (sample.unsent_bytes == 0) return OnNothingWaits(connection);
  const auto [found, first] = peers_.try_emplace(connection);
  Peer& peer = found->second;
  const ConnectionSample last = peer.last;
  peer.last = sample;
  // When it began is not known.
  if (first) return;
  uint64_t debt = peer.debt_bytes;
  const uint64_t received = sample.received_bytes - last.received_bytes;
  const uint64_t taken = sample.taken_bytes - last.taken_bytes;
  if (taken > 0) {
    peer.heard_at.reset();
  } else if (received > 0 && !peer.heard_at.has_value()) {
    peer.heard_at = sample.backoffs;
  }
  const bool closed = sample.window_closed - last.window_closed >= elapsed / 2;
  const bool silent =
      peer.heard_at.has_value() && sample.backoffs >= uint64_t{*peer.heard_at} + kBackoffsOfTheSilent;
  if (closed || silent) debt += received;
  debt -= std::min(debt, taken / kTakenPerByte);
  total_debt_bytes_ += debt - peer.debt_bytes;
  peer.debt_bytes = debt;
}

void UnreadOutput::OnNothingWaits(Id connection) {
  Forget(connection);
}

void UnreadOutput::Forget(Id connection) {
  const auto found = peers_.find(connection);
  if (found == peers_.end()) return;
  total_debt_bytes_ -= found->second.debt_bytes;
  peers_.erase(found);
}

std::vector<UnreadOutput::Id> UnreadOutput::TakeCut() {
  std::vector<Id> cut;
  if (options_.max_debt_bytes == 0) return cut;
  for (auto peer = peers_.begin(); peer != peers_.end();) {
    const Id connection = peer->first;
    const bool over = peer->second.debt_bytes > options_.max_debt_bytes;
    ++peer;
    if (!over) continue;
    cut.push_back(connection);
    Forget(connection);
  }
  while (total_debt_bytes_ > options_.max_total_debt_bytes) {
    const auto most = std::max_element(peers_.begin(), peers_.end(), [](const auto& left, const auto& right) {
      return left.second.debt_bytes < right.second.debt_bytes;
    });
    cut.push_back(most->first);
    Forget(most->first);
  }
  return cut;
}

void ConnectionWatch::Add(int descriptor, std::optional<PeerAddress> peer) {
  const std::optional<uint64_t> cookie = SocketCookie(descriptor);
  if (!cookie.has_value()) return;
  // The number's last socket is closed.
  const auto before = watched_.find(descriptor);
  if (before != watched_.end()) unread_.Forget(before->second.cookie);
  watched_[descriptor] = {.cookie = *cookie, .peer = peer};
}

void ConnectionWatch::Look(absl::Duration elapsed) {
  std::map<uint64_t, int> descriptors;  // Of those to which something is to be sent.
  for (auto one = watched_.begin(); one != watched_.end();) {
    const int descriptor = one->first;
    const uint64_t cookie = one->second.cookie;
    if (SocketCookie(descriptor) != cookie) {
      unread_.Forget(cookie);
      one = watched_.erase(one);
      continue;
    }
    ++one;
    int unsent = 0;
    if (ioctl(descriptor, SIOCOUTQNSD, &unsent) != 0 || unsent == 0) {
      unread_.OnNothingWaits(cookie);
      continue;
    }
    if (const std::optional<ConnectionSample> sample = SampleOf(descriptor)) {
      unread_.Observe(cookie, *sample, elapsed);
      descriptors.emplace(cookie, descriptor);
    }
  }
  size_t num_cut = 0;
  for (const uint64_t cookie : unread_.TakeCut()) {
    const auto found = descriptors.find(cookie);
    if (found == descriptors.end() || !ShutDown(found->second, cookie)) continue;
    options_.cut.Increment();
    const std::optional<PeerAddress> peer = watched_.at(found->second).peer;
    if (options_.backoff != nullptr && peer.has_value()) options_.backoff->OnCut(*peer, absl::Now());
    ++num_cut;
  }
  if (num_cut > 0) {
    LogWarning("connections cut: their peers send calls and do not read the answers",
               {{"connections", absl::StrCat(num_cut)}});
  }
}

}  // namespace tandem
