#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "common/rpc/server_stream.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/server.h"
#include "tandem/v1/admin.pb.h"
#include "tandem/v1/verifier.grpc.pb.h"

namespace tandem::router::testing {

// Events as a verifier sends them.
v1::GenerateResponse StartedEvent(const v1::VerifierGenerateRequest& request);
// One token for each byte of `text`: its code, marked as `source`.
v1::GenerateResponse ChunkEvent(uint32_t offset, absl::string_view text,
                                v1::TokenSource source = v1::TOKEN_SOURCE_TARGET);
v1::GenerateResponse FinishedEvent(const v1::VerifierGenerateRequest& request, uint32_t completion_tokens);

// A Verifier service whose calls a test answers by hand, or with a script.
class StubVerifier final : public v1::Verifier::CallbackService {
 public:
  // One call. Thread-safe.
  class Call : public std::enable_shared_from_this<Call> {
   public:
    const v1::VerifierGenerateRequest& request() const { return request_; }
    // The value of a metadata key; empty when absent.
    std::string Metadata(const std::string& key) const;
    void Send(v1::GenerateResponse event) { stream_->Write(std::move(event)); }
    void Finish(absl::Status status) { stream_->Finish(std::move(status)); }
    // Waits until the other side cancels the call; false after a long timeout.
    bool WaitForCancel();

   private:
    friend class StubVerifier;
    v1::VerifierGenerateRequest request_;
    std::multimap<std::string, std::string> metadata_;
    std::shared_ptr<ServerStream<v1::GenerateResponse>> stream_;
    absl::Notification cancelled_;
  };

  // Answers a call, on gRPC's thread.
  using Script = std::function<void(Call&)>;

  // Listens on a free port.
  StubVerifier();
  ~StubVerifier() override;

  std::string endpoint() const;
  // Lets `script` answer calls that arrive from now on; NextCall does not return them.
  void SetScript(Script script);
  // Waits for the next call that nobody has taken; null after a long timeout.
  std::shared_ptr<Call> NextCall();
  int num_calls() const;
  // Breaks every connection at once.
  void Disconnect();
  // From now on, health checks get no answer.
  void StallHealth() { health_.stalled = true; }
  // Sets the answer of the health service; before, there is no health service.
  void SetServing(bool serving) { health_.serving = serving ? Serving::kYes : Serving::kNo; }
  // Sets how many requests GetServerInfo says run at once, and 256 that may wait; before, it does not answer.
  void SetCapacity(uint32_t max_running) { health_.max_running = max_running; }
  // Sets the whole answer of GetServerInfo instead. Call it before any calls arrive.
  void SetInfo(const v1::ServerInfo& info);
  // The requests of SwapDrafter, and its answer.
  std::vector<v1::SwapDrafterRequest> swaps() const;
  void SetSwapAnswer(v1::SwapDrafterResponse answer);

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::VerifierGenerateRequest* request) override;
  grpc::ServerUnaryReactor* SwapDrafter(grpc::CallbackServerContext* context,
                                        const v1::SwapDrafterRequest* request,
                                        v1::SwapDrafterResponse* response) override;

 private:
  enum class Serving { kUnknown, kYes, kNo };
  // All other methods, including the health service's.
  class Health final : public grpc::CallbackGenericService {
   public:
    grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override;
    std::atomic<bool> stalled{false};
    std::atomic<Serving> serving{Serving::kUnknown};
    std::atomic<uint32_t> max_running{0};
    absl::Mutex mutex;
    std::string info ABSL_GUARDED_BY(mutex);  // Serialized.
  };

  mutable absl::Mutex mutex_;
  Script script_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Call>> calls_ ABSL_GUARDED_BY(mutex_);
  int num_calls_ ABSL_GUARDED_BY(mutex_) = 0;
  int port_ = 0;
  std::vector<v1::SwapDrafterRequest> swaps_ ABSL_GUARDED_BY(mutex_);
  v1::SwapDrafterResponse swap_answer_ ABSL_GUARDED_BY(mutex_);
  Health health_;
  std::unique_ptr<grpc::Server> server_;
};

// Starts, sends `text` in chunks of at most `chunk_bytes`, and finishes.
StubVerifier::Script Saying(std::string text, size_t chunk_bytes);

}  // namespace tandem::router::testing
