#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/security/credentials.h"
#include "router/cli/options.h"
#include "tandem/v1/admin.grpc.pb.h"
#include "tandem/v1/drafter.grpc.pb.h"
#include "tandem/v1/generation.grpc.pb.h"
#include "tandem/v1/routing.grpc.pb.h"
#include "tandem/v1/verifier.grpc.pb.h"

namespace tandem::cli {

// Ctrl-C, as something a request in progress can be told of. Thread-safe.
class Interrupts {
 public:
  // While this lives, an interrupt calls `on_interrupt`, from another thread. One at a time.
  class Watch {
   public:
    Watch(Interrupts& interrupts, std::function<void()> on_interrupt);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    Interrupts& interrupts_;
  };

  // An interrupt has happened. False when nothing watches, so that the program should end.
  bool Trigger();

 private:
  absl::Mutex mutex_;
  std::function<void()> on_interrupt_ ABSL_GUARDED_BY(mutex_);
};

// A connection to a Tandem server. Not thread-safe.
class Client {
 public:
  // `interrupts` outlives the client.
  Client(const ConnectionOptions& connection, Interrupts& interrupts);

  // Runs one generation and hands over its events in order. An interrupt, or `on_event` returning false,
  // cancels it, which gives Cancelled. Errors say what to do about them, where that is known.
  absl::Status Generate(const v1::GenerateRequest& request,
                        const std::function<bool(const v1::GenerateResponse&)>& on_event);

  // The same, but goes on when a router cannot be reached or is lost: on the next of the endpoints, in turns,
  // with the tokens it has, so that the events are those of one stream. Some times in a row, with growing
  // pauses between; the time-out counts for all together. The statistics in `finished` are the last router's.
  absl::Status GenerateWithRetry(const v1::GenerateRequest& request,
                                 const std::function<bool(const v1::GenerateResponse&)>& on_event);

  absl::StatusOr<v1::ServerInfo> GetServerInfo();
  absl::StatusOr<v1::ChoiceExplanation> ExplainChoice(const v1::ExplainChoiceRequest& request);
  absl::StatusOr<v1::CalibrateResponse> Calibrate(const v1::CalibrateRequest& request);

  // Runs a call of a verifier's; an interrupt cancels it. Errors as in Generate.
  absl::Status CallVerifier(
      const std::function<grpc::Status(v1::Verifier::Stub&, grpc::ClientContext&)>& call);

  // Likewise of a drafter's.
  absl::Status CallDrafter(const std::function<grpc::Status(v1::Drafter::Stub&, grpc::ClientContext&)>& call);

  // Runs a call of v1::RouterAdmin; an interrupt cancels it. Errors as in Generate.
  absl::Status CallAdmin(
      const std::function<grpc::Status(v1::RouterAdmin::Stub&, grpc::ClientContext&)>& call);

 private:
  // A channel with the connection's security; files that are wrong are an error of every call.
  std::shared_ptr<grpc::Channel> Connect(const std::string& endpoint) const;
  // What is wrong with the options, before gRPC is told.
  absl::Status CheckConnection() const;
  // Sets deadline and token.
  void Prepare(grpc::ClientContext& context, absl::Time deadline) const;
  absl::Status Run(absl::Time deadline, const v1::GenerateRequest& request,
                   const std::function<bool(const v1::GenerateResponse&)>& on_event);
  absl::Status Explain(const grpc::Status& status) const;

  const ConnectionOptions connection_;
  const absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> credentials_;
  Interrupts& interrupts_;
  std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace tandem::cli
