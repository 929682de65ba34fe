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

// Asks drafters for their speed and vocabularies, and passes them to the chooser, which uses the speed until
// requests have measured it:
//
//   RoutingSnapshot --endpoints--> Admin/GetServerInfo --ModelInfo--> DrafterChooser
//
// Asks configured and registered drafters, one endpoint at a time, on a thread of its own, from construction
// to destruction. It asks an endpoint as soon as routing has it and then every `period`, because a drafter
// may move to another machine; after a failure it retries after `retry`.
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
  // Asks all endpoints that are due. Returns early when stopping.
  void AskDue();
  // Whether it answered.
  bool Ask(const std::string& endpoint, const RoutingSnapshot& routing);
  // Logs the models for which the drafter is not an ordinary choice.
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
