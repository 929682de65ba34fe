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
#include "verifier/session.h"

namespace tandem {

// The verifier's streams to its drafters: one per endpoint, multiplexing all sessions, opened when a request
// first names the endpoint and opened again, after a growing pause, when it breaks. A link that no request
// has named for a while is left closed until one does.
//
//     Acquire           stream ends                timer
//   ----------> OPEN -------------> BROKEN (backoff) ----> OPEN ...
//                                      '-- unused --> IDLE --Acquire--> OPEN
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
  };
  // Null `credentials`: without TLS.
  DrafterLinks(Callbacks callbacks, const Clock* clock,
               std::shared_ptr<grpc::ChannelCredentials> credentials = nullptr);
  // Ends all streams and waits until no callback can come any more.
  ~DrafterLinks();
  DrafterLinks(const DrafterLinks&) = delete;
  DrafterLinks& operator=(const DrafterLinks&) = delete;

  // The link to `endpoint`, opened if it is not. ResourceExhausted beyond 256 endpoints.
  absl::StatusOr<LinkId> Acquire(const std::string& endpoint);
  std::string EndpointOf(LinkId link) const;

  // Dropped when the stream is down; the session is told by on_down. Returns the bytes of the message, 0 if
  // it was dropped.
  size_t Send(LinkId link, const DraftRequest& request);
  // A response has been dealt with. A drafter that sends faster than that is not read from.
  void Acknowledge(LinkId link);

 private:
  class Link;

  const std::shared_ptr<const Callbacks> callbacks_;
  const Clock* const clock_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  mutable absl::Mutex mutex_;
  std::vector<std::shared_ptr<Link>> links_ ABSL_GUARDED_BY(mutex_);  // By id.
  absl::flat_hash_map<std::string, LinkId> ids_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem
