#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/speculation/draft_messages.h"
#include "grpcpp/security/credentials.h"
#include "verifier/session/session.h"

namespace tandem {

// The verifier's streams to its drafters: one per endpoint, which multiplexes all sessions. A link opens when
// a request first names its endpoint, and reopens, with back-off, when the stream breaks. If no request has
// named it for a while, it stays closed until one does. There are at most kMostLinks; one more replaces the
// least recently used link without sessions. Ids are never reused.
//
//     Acquire           stream ends                timer
//   ----------> OPEN -------------> BROKEN (backoff) ----> OPEN ...
//                |                     '-- unused --> IDLE --Acquire--> OPEN
//                '--------- from any state: its place is needed --> GONE
//
// Messages to a link that has just opened wait until it is known whether the drafter has a socket on this
// machine.
//
// Thread-safe. Callbacks run on gRPC's threads, in order for each link, and should only post work elsewhere.
class DrafterLinks {
 public:
  struct Callbacks {
    std::function<void(LinkId)> on_up;
    std::function<void(LinkId, absl::Status)> on_down;
    // `bytes`: of the message.
    std::function<void(LinkId, DraftResponse, size_t bytes)> on_response;
    // A message that could not be decoded.
    std::function<void(LinkId, absl::Status)> on_malformed;
    // The link was replaced; no more callbacks come for it.
    std::function<void(LinkId, std::string endpoint)> on_gone;
    // Most of the features that were queued for the link have been written.
    std::function<void(LinkId)> on_room = nullptr;
  };
  struct Options {
    std::shared_ptr<grpc::ChannelCredentials> credentials = nullptr;  // Null: without TLS.
    // Folder in which drafters of this machine have sockets; empty: none. A drafter that has a socket there
    // is reached over it, whatever address a request uses (common/rpc/local_sockets.h).
    std::string local_sockets = {};
  };
  static constexpr size_t kMostLinks = 256;
  DrafterLinks(Callbacks callbacks, const Clock* clock, Options options);
  // Ends all streams, and waits until no more callbacks can run.
  ~DrafterLinks();
  DrafterLinks(const DrafterLinks&) = delete;
  DrafterLinks& operator=(const DrafterLinks&) = delete;

  // The link to `endpoint`; opens it if it is not open. ResourceExhausted if there are kMostLinks links and
  // all have sessions. The drafter's certificate must name `server_name` if that is given, otherwise the
  // endpoint's host.
  absl::StatusOr<LinkId> Acquire(const std::string& endpoint, const std::string& server_name = "");
  // Empty once the link is gone.
  std::string EndpointOf(LinkId link) const;

  // Sends a message. If the stream is down, drops it; on_down tells the session. Returns the size of the
  // message, 0 if it was dropped.
  size_t Send(LinkId link, DraftRequest request);
  // Messages that were sent but are not written yet: features, which let all other messages pass, and the
  // bytes of the others.
  struct Backlog {
    size_t feature_messages = 0;
    size_t feature_bytes = 0;
    size_t other_bytes = 0;
  };
  Backlog BacklogOf(LinkId link) const;
  // Whether the link has a stream that uses a socket of this machine.
  bool IsLocal(LinkId link) const;
  // A response has been processed. The link does not read on while too many are not.
  void Acknowledge(LinkId link);

 private:
  class Link;

  const std::shared_ptr<const Callbacks> callbacks_;
  const Clock* const clock_;
  const Options options_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<Link> Find(LinkId link) const;
  // Null if every link has sessions.
  std::shared_ptr<Link> TakeUnused() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::flat_hash_map<LinkId, std::shared_ptr<Link>> links_ ABSL_GUARDED_BY(mutex_);
  // Replaced links, whose last callbacks may still come.
  std::vector<std::shared_ptr<Link>> leaving_ ABSL_GUARDED_BY(mutex_);
  LinkId next_id_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, LinkId> ids_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem
