#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
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

// Passes Ctrl-C to a running request. Thread-safe.
class Interrupts {
 public:
  // While this exists, an interrupt calls `on_interrupt` on another thread. One watch at a time.
  class Watch {
   public:
    Watch(Interrupts& interrupts, std::function<void()> on_interrupt);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    Interrupts& interrupts_;
  };

  // Reports an interrupt. False if nothing watches; then the program should end.
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

  // Runs one generation and passes its events, in order, to `on_event`. An interrupt, or `on_event` returning
  // false, cancels it; the result is then Cancelled. Errors say what to do about them, if that is known.
  absl::Status Generate(const v1::GenerateRequest& request,
                        const std::function<bool(const v1::GenerateResponse&)>& on_event);

  // The same, but if a router cannot be reached or is lost, retries on the next endpoint, in turn, with the
  // tokens so far, so that the events look like one stream. Makes a few consecutive retries, with back-off;
  // the timeout covers all of them. The statistics in `finished` are the last router's.
  absl::Status GenerateWithRetry(const v1::GenerateRequest& request,
                                 const std::function<bool(const v1::GenerateResponse&)>& on_event);

  absl::StatusOr<v1::ServerInfo> GetServerInfo();
  absl::StatusOr<v1::ChoiceExplanation> ExplainChoice(const v1::ExplainChoiceRequest& request);
  absl::StatusOr<v1::CalibrateResponse> Calibrate(const v1::CalibrateRequest& request);

  // Run a call to one kind of server; an interrupt cancels it. Errors as in Generate.
  absl::Status CallAdmin(
      const std::function<grpc::Status(v1::RouterAdmin::Stub&, grpc::ClientContext&)>& admin);
  absl::Status CallVerifier(
      const std::function<grpc::Status(v1::Verifier::Stub&, grpc::ClientContext&)>& verifier);
  absl::Status CallDrafter(
      const std::function<grpc::Status(v1::Drafter::Stub&, grpc::ClientContext&)>& drafter);

 private:
  struct Server {
    std::string endpoint;
    std::shared_ptr<grpc::Channel> channel;
  };
  // A call that this side can cancel, from any thread.
  struct Call {
    void Cancel() {
      cancelled = true;
      context.TryCancel();
    }

    grpc::ClientContext context;
    std::atomic<bool> cancelled{false};
  };

  // With the connection's security. If its files are invalid, every call fails.
  Server Connect(const std::string& endpoint) const;
  // Checks the options before gRPC gets them.
  absl::Status CheckConnection() const;
  // Sets deadline and token.
  void Prepare(grpc::ClientContext& context, absl::Time deadline) const;
  // Runs a call that an interrupt cancels. Cancelled only if this side cancelled it: if the server did, that
  // is Unavailable.
  absl::Status Run(absl::Time deadline, absl::FunctionRef<grpc::Status(Call&)> run);
  // The same, until the connection's timeout.
  absl::Status RunWithTimeout(absl::FunctionRef<grpc::Status(Call&)> run);
  absl::Status Stream(absl::Time deadline, const v1::GenerateRequest& request,
                      const std::function<bool(const v1::GenerateResponse&)>& on_event);
  absl::Status Explain(const grpc::Status& status) const;

  const ConnectionOptions connection_;
  const absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> credentials_;
  Interrupts& interrupts_;
  Server server_;  // Which is called, or was last.
};

}  // namespace tandem::cli
