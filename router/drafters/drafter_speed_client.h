#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/client_context.h"
#include "grpcpp/security/credentials.h"
#include "router/drafters/choice/drafter_chooser.h"
#include "router/state/routing_snapshot.h"

namespace tandem::router {

// Asks drafters how fast they are, and for which vocabularies they draft, and tells the chooser, which goes
// by the former until requests have measured more:
//
//   RoutingSnapshot --endpoints--> Admin/GetServerInfo --ModelInfo--> DrafterChooser
//
// Configured drafters and those that registered alike. One endpoint after the other, by a thread of its own,
// from construction to destruction: each as soon as routing has it, then every `period`, since a drafter may
// come back on another machine, and one that did not answer after `retry`.
class DrafterSpeedClient {
 public:
  struct Options {
    std::shared_ptr<grpc::ChannelCredentials> credentials;  // Null: without TLS.
    absl::Duration period = absl::Minutes(1);
    absl::Duration retry = absl::Seconds(5);
    absl::Duration patience = absl::Seconds(1);  // With one endpoint.
  };
  // `chooser` outlives this, as does what `routing` needs.
  DrafterSpeedClient(Options options, std::function<std::shared_ptr<const RoutingSnapshot>()> routing,
                     DrafterChooser* chooser);
  ~DrafterSpeedClient();
  DrafterSpeedClient(const DrafterSpeedClient&) = delete;
  DrafterSpeedClient& operator=(const DrafterSpeedClient&) = delete;

 private:
  void Watch();
  // Returns once all that are due were asked, or this is to stop.
  void AskDue();
  // Whether it answered.
  bool Ask(const std::string& endpoint, const RoutingSnapshot& routing);
  // For which models the drafter is no ordinary choice.
  void LogFits(const RoutingSnapshot& routing, const std::string& drafter) const;
  bool stopping();

  const Options options_;
  const std::function<std::shared_ptr<const RoutingSnapshot>()> routing_;
  DrafterChooser& chooser_;
  std::map<std::string, absl::Time> due_;  // By endpoint. The thread's.
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* call_ ABSL_GUARDED_BY(mutex_) = nullptr;  // That is under way.
  std::thread thread_;
};

}  // namespace tandem::router
