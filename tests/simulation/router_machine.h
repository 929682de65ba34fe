#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "router/admission/admission.h"
#include "router/drafters/choice/drafter_chooser.h"
#include "router/drafters/policy_memory.h"
#include "router/models/served_model.h"
#include "router/registry/registrar.h"
#include "router/serving/preparation_services.h"
#include "router/state/routing_snapshot.h"
#include "router/verifiers/retry_budget.h"
#include "router/verifiers/verifier_choice.h"
#include "router/verifiers/verifier_traits.h"
#include "tests/simulation/event_queue.h"
#include "tests/simulation/findings.h"
#include "tests/simulation/random.h"
#include "tests/simulation/router_call.h"
#include "tests/simulation/rpc.h"
#include "tests/simulation/store_view.h"

namespace tandem::simulation {

// The address of a verifier in the cluster.
struct VerifierAddress {
  Host host = 0;
  std::string address;
};

// A router's process. Its decisions are real: Preparation and Generation for each call (RouterCall), and the
// registrar. The simulated network replaces what VerifierPool does over gRPC and in threads, in the same
// places: asking for health and for what verifiers hold.
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
  friend class RouterCall;
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
  void Register(const std::shared_ptr<RpcCall>& rpc);
  // `what` runs soon, unless the call is over by then.
  void PostTo(uint64_t id, std::function<void(RouterCall&)> what);
  RouterCall* Find(uint64_t id);
  // The request as its tenant would send it, whose token this returns: simulated clients are told apart by
  // their priority, and their drafter is the one that the tenant's policy names, so that others can take
  // over.
  std::shared_ptr<const v1::GenerateRequest> ForTenant(v1::GenerateRequest request, std::string* token) const;
  // As VerifierPool::Begin has it.
  absl::Status WhyNone(const router::VerifierNeeds& needs) const;

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
  uint64_t last_call_ = 0;
  absl::Time disturbed_ = absl::InfinitePast();  // When it last stood still or its clock jumped.
  uint64_t num_failovers_ = 0;
  uint64_t num_stalls_ = 0;
  uint64_t num_waits_ = 0;
  uint64_t num_changed_ = 0;
  std::unique_ptr<router::Registrar> registrar_;
  // Of preparation.
  const std::vector<router::ServedModel> models_;
  const std::shared_ptr<const router::RoutingSnapshot> routing_;
  router::Admission admission_;
  router::DrafterChooser chooser_;
  router::PolicyMemory policies_;
  const router::PreparationServices services_;
  std::map<uint64_t, std::unique_ptr<RouterCall>> calls_;  // Use all of the above.
};

}  // namespace tandem::simulation
