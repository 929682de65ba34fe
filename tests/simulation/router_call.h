#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "router/generation/generation.h"
#include "router/generation/generation_facts.h"
#include "router/generation/generation_host.h"
#include "router/generation/generation_observer.h"
#include "router/serving/preparation.h"
#include "router/verifiers/verifier_traits.h"
#include "tandem/v1/generation.pb.h"
#include "tandem/v1/verifier.pb.h"
#include "tests/simulation/rpc.h"

namespace tandem::simulation {

class RouterMachine;

// One generation on a simulated router: what GenerateCall is over gRPC and threads. Preparation and
// Generation are the real ones; this carries out what they decide in simulated time, and checks what they
// promise their owner and their observers.
class RouterCall final : public router::GenerationHost, public router::GenerationObserver {
 public:
  RouterCall(RouterMachine* machine, uint64_t id, std::shared_ptr<RpcCall> client,
             std::shared_ptr<const router::RoutingSnapshot> routing);
  ~RouterCall() override;

  void Start();
  // Ends attempt `number`, if it is the current one.
  void OnLost(int number, const absl::Status& status) { generation_.OnVerifierDone(number, status); }
  void OnVerifierServes() { generation_.OnVerifierServes(); }
  // Whether it waits for a verifier that serves.
  bool waits() const { return waits_; }
  // The verifier of the current attempt, and its number.
  std::optional<size_t> verifier() const { return verifier_; }
  int attempt() const { return attempt_; }

 private:
  class Attempt;
  // What comes from the current attempt's verifier, and is held back while the window is full.
  struct Stream {
    std::shared_ptr<RpcCall> rpc;
    std::deque<v1::GenerateResponse> held;
    size_t unacknowledged = 0;
    std::optional<absl::Status> done;
  };

  void Prepare(const absl::Status& placed);
  void Complete(router::Preparation::Found& found);
  void Receive();
  // Runs soon on the machine, if this is still there.
  void Soon(std::function<void(RouterCall&)> what);
  void Expect(bool holds, const std::string& otherwise) const;

  // GenerationHost.
  absl::Time Now() override;
  absl::Duration Uptime() override;
  size_t num_verifiers() override;
  bool MayServe() override;
  absl::Status NoneServes() override;
  bool TakeRetry() override;
  absl::StatusOr<std::unique_ptr<router::GenerationHost::Attempt>> BeginAttempt(
      int number, const v1::VerifierGenerateRequest& request, absl::Span<const size_t> tried,
      const router::VerifierNeeds& needs) override;
  bool StartWaiting() override;
  void StopWaiting() override;
  void SetTimer(absl::Time when, int number) override;
  void CancelTimer() override { timer_ = 0; }
  void SetWriteTimer(absl::Duration) override {}
  void Write(const v1::GenerateResponse& event) override;
  void GiveUpPlace(uint32_t num_sent) override;
  void Finish(const absl::Status& status) override;

  // GenerationObserver.
  void OnStage(router::Stage stage, const router::GenerationFacts& facts, absl::Time now) override;
  void OnPrepared(const router::GenerationFacts& facts, v1::VerifierGenerateRequest& request,
                  absl::Time now) override;
  void OnAttempt(const router::GenerationFacts& facts, int number, absl::string_view endpoint,
                 absl::Time now) override;
  void OnEvent(const router::GenerationFacts& facts, v1::GenerateResponse& event, absl::Time now) override;
  void OnAttemptEnded(const router::GenerationFacts& facts, const absl::Status& status,
                      absl::Time now) override;
  void OnTurn(router::Turn turn, const absl::Status& reason, const router::GenerationFacts& facts,
              absl::Time now) override;
  void OnEnded(const router::GenerationFacts& facts, const absl::Status& status, absl::Time now) override;

  RouterMachine& machine_;
  const uint64_t id_;
  const std::shared_ptr<RpcCall> client_;
  const absl::Time began_;  // As the queue counts.

  std::optional<size_t> verifier_;
  int attempt_ = 0;
  Stream stream_;
  bool waits_ = false;
  int timer_ = 0;       // The one that counts; 0: none.
  size_t in_vain_ = 0;  // Attempts since the last token, or since one served that was waited for.
  bool gone_ = false;   // The client.
  bool writing_ = false;
  bool gave_up_place_ = false;
  bool finished_ = false;

  // What it was told as an observer.
  size_t num_stages_ = 0;
  bool prepared_ = false;
  bool attempting_ = false;
  uint32_t num_tokens_ = 0;
  bool ended_ = false;

  router::Generation generation_;
  router::Preparation preparation_;
};

}  // namespace tandem::simulation
