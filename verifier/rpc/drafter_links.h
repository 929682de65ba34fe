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

// The verifier's streams to its drafters: one per endpoint, multiplexing all sessions, opened when a request
// first names the endpoint and opened again, after a growing pause, when it breaks. A link that no request
// has named for a while is left closed until one does. There are at most kMostLinks: one more takes the place
// of that which was used longest ago and has no session, whose id is never given again.
//
//     Acquire           stream ends                timer
//   ----------> OPEN -------------> BROKEN (backoff) ----> OPEN ...
//                |                     '-- unused --> IDLE --Acquire--> OPEN
//                '--------- from any state: its place is needed --> GONE
//
// What is sent to a link that has just opened waits until it is known whether the drafter has a socket on
// this machine.
//
// Thread-safe. Callbacks run on gRPC's threads, in order for each link, and should only post elsewhere.
class DrafterLinks {
 public:
  struct Callbacks {
    std::function<void(LinkId)> on_up;
    std::function<void(LinkId, absl::Status)> on_down;
    // `bytes`: of the message.
    std::function<void(LinkId, DraftResponse, size_t bytes)> on_response;
    // A message that could not be decoded.
    std::function<void(LinkId, absl::Status)> on_malformed;
    // Nothing more comes from a link that has given up its place.
    std::function<void(LinkId, std::string endpoint)> on_gone;
    // Most of the features that were queued for it have been written.
    std::function<void(LinkId)> on_room = nullptr;
  };
  struct Options {
    std::shared_ptr<grpc::ChannelCredentials> credentials = nullptr;  // Null: without TLS.
    // Folder in which drafters of this machine have sockets; empty: none. A drafter that is found there is
    // spoken with over its socket, whatever address a request names it by (common/rpc/local_sockets.h).
    std::string local_sockets = {};
  };
  static constexpr size_t kMostLinks = 256;
  DrafterLinks(Callbacks callbacks, const Clock* clock, Options options);
  // Ends all streams and waits until no callback can come any more.
  ~DrafterLinks();
  DrafterLinks(const DrafterLinks&) = delete;
  DrafterLinks& operator=(const DrafterLinks&) = delete;

  // The link to `endpoint`, opened if it is not. ResourceExhausted if it would be one too many and each of
  // the others has sessions. The drafter's certificate names `server_name` where that is given, and otherwise
  // the endpoint's host.
  absl::StatusOr<LinkId> Acquire(const std::string& endpoint, const std::string& server_name = "");
  // Empty once the link is gone.
  std::string EndpointOf(LinkId link) const;

  // Dropped when the stream is down; the session is told by on_down. Returns the bytes of the message, 0 if
  // it was dropped.
  size_t Send(LinkId link, DraftRequest request);
  // What has been sent and not been written yet: features, which let all other messages pass, and the others'
  // bytes.
  struct Backlog {
    size_t feature_messages = 0;
    size_t feature_bytes = 0;
    size_t other_bytes = 0;
  };
  Backlog BacklogOf(LinkId link) const;
  // Whether the link's stream, if it has one that has begun, goes over a socket of this machine.
  bool IsLocal(LinkId link) const;
  // A response has been dealt with. A drafter that sends faster than that is not read from.
  void Acknowledge(LinkId link);

 private:
  class Link;

  const std::shared_ptr<const Callbacks> callbacks_;
  const Clock* const clock_;
  const Options options_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<Link> Find(LinkId link) const;
  // Nothing if every link has sessions.
  std::shared_ptr<Link> TakeUnused() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::flat_hash_map<LinkId, std::shared_ptr<Link>> links_ ABSL_GUARDED_BY(mutex_);
  // Those that gave up their places and whose last callbacks may still come.
  std::vector<std::shared_ptr<Link>> leaving_ ABSL_GUARDED_BY(mutex_);
  LinkId next_id_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, LinkId> ids_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem
