#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "router/models/served_model.h"
#include "router/registry/registrar.h"
#include "router/serving/relay.h"
#include "router/verifiers/failover.h"
#include "router/verifiers/retry_budget.h"
#include "router/verifiers/verifier_choice.h"
#include "router/verifiers/verifier_traits.h"
#include "tests/simulation/event_queue.h"
#include "tests/simulation/findings.h"
#include "tests/simulation/random.h"
#include "tests/simulation/rpc.h"
#include "tests/simulation/store_view.h"

namespace tandem::simulation {

// The address of a verifier in the cluster.
struct VerifierAddress {
  Host host = 0;
  std::string address;
};

// A router's process. Its decisions are real (Relay, Failover, VerifierChoice, VerifierTraits, RetryBudget,
// Registrar, PrepareRequest). The simulated network replaces what GenerateCall and VerifierPool do over gRPC
// and in threads, in the same places: starting streams, setting timers and asking for health.
class RouterMachine final : public Machine {
 public:
  struct Options {
    Host host = 0;
    std::vector<VerifierAddress> verifiers;  // That may register.
    uint32_t num_drafters = 0;
    absl::Duration ttl = absl::Seconds(3);
    absl::Duration stall_timeout = absl::Seconds(1);
    absl::Duration longest_wait = absl::Seconds(10);
    router::RetryBudget::Options retries;
    router::VerifierChoice::Options choice;
    router::ServedModel model;
    absl::Duration clock_ahead;
    double clock_drift = 0.0;
  };
  // `leases` outlives the machine. `over`: nothing is left to do for anybody.
  RouterMachine(EventQueue* queue, const Options& options, RpcNetwork* network, StoreView* leases,
                Random random, std::function<bool()> over, Findings* findings);

  // A call has arrived.
  void Serve(std::shared_ptr<RpcCall> call);
  // SIGSTOP, and a clock that jumps, excuse delays.
  void StopFor(absl::Duration duration);
  void JumpBy(absl::Duration duration);

  size_t num_calls() const { return calls_.size(); }
  uint64_t num_failovers() const { return num_failovers_; }  // With output.
  uint64_t num_stalls() const { return num_stalls_; }        // Requests taken from verifiers that stalled,
  // Verifiers that refused to go on with an output that began elsewhere.
  uint64_t num_changed() const { return num_changed_; }
  uint64_t num_waits() const { return num_waits_; }  // and those that waited for a verifier.
  void CheckIdle();

 private:
  struct Call {
    std::shared_ptr<RpcCall> client;
    absl::Time began;     // As the queue counts.
    absl::Time deadline;  // By this machine's clock.
    v1::VerifierGenerateRequest prepared;
    std::optional<router::Relay> relay;
    router::Failover failover;
    uint64_t arithmetic = 0;
    int attempts = 0;
    size_t in_vain = 0;  // Attempts since the last token, or since one served that was waited for.
    std::optional<size_t> verifier;   // Of the current attempt,
    std::shared_ptr<RpcCall> stream;  // and its stream.
    int timers = 0;                   // Set or made void.
    bool waits = false;
    absl::Status wait_reason;
  };
  struct Entry {
    router::VerifierTraits traits;
    bool probing = false;
    bool asked = false;
    absl::Time asked_at = absl::InfinitePast();
    bool told = false;
    absl::Time probed = absl::InfinitePast();
    absl::Time heard = absl::InfinitePast();
    uint64_t probes = 0;
  };

  void Work(bool) override {}
  absl::Time NextWork() const override { return absl::InfiniteFuture(); }
  void After(absl::Duration delay, std::function<void()> what);

  void Disturb();
  void Begin(const std::shared_ptr<RpcCall>& rpc);
  void Register(const std::shared_ptr<RpcCall>& rpc);
  void StartAttempt(uint64_t id);
  router::VerifierNeeds Needs(const Call& call) const;
  absl::Status WhyNone(const Call& call) const;
  void EndWithoutVerifier(uint64_t id, const absl::Status& reason);
  void Retry(uint64_t id, const absl::Status& reason);
  void RetryAfter(uint64_t id, absl::Duration delay);
  bool WaitForVerifier(uint64_t id, const absl::Status& reason);
  void OnTimer(uint64_t id, int timer);
  void OnVerifierServes(uint64_t id);
  void OnVerifierEvent(uint64_t id, int attempt, v1::GenerateResponse event);
  void OnVerifierDone(uint64_t id, int attempt, const absl::Status& status);
  void End(uint64_t id, const absl::Status& status);
  Call* Find(uint64_t id);

  bool MayServe() const;
  void SetVerifiers(const std::vector<router::RegisteredEndpoint>& verifiers);
  void Tick();
  void ProbeDue();
  void Probe(size_t index);
  void OnProbed(size_t index, bool answered);
  void Ask(size_t index);

  EventQueue& queue_;
  const Options options_;
  RpcNetwork& network_;
  StoreView& leases_;
  Random random_;
  const std::function<bool()> over_;
  Findings& findings_;
  router::VerifierChoice choice_;
  std::optional<router::RetryBudget> budget_;  // Once the clock is set.
  std::vector<Entry> entries_;
  std::map<uint64_t, Call> calls_;
  uint64_t last_call_ = 0;
  absl::Time disturbed_ = absl::InfinitePast();  // When it last stood still or its clock jumped.
  uint64_t num_failovers_ = 0;
  uint64_t num_stalls_ = 0;
  uint64_t num_waits_ = 0;
  uint64_t num_changed_ = 0;
  std::unique_ptr<router::Registrar> registrar_;
};

}  // namespace tandem::simulation
