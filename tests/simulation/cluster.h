#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/simulation/cluster_client.h"
#include "tests/simulation/drafter_machine.h"
#include "tests/simulation/faults.h"
#include "tests/simulation/router_machine.h"
#include "tests/simulation/scenario.h"
#include "tests/simulation/verifier_host.h"

namespace tandem::simulation {

// All settings of a cluster's run, drawn from its seed.
struct ClusterScenario {
  std::vector<VerifierMachine::Options> verifiers;
  std::vector<bool> computes_differently;  // By verifier.
  std::vector<DrafterScenario> drafters;
  uint32_t num_routers = 1;
  RpcNetwork::Conditions network;
  router::RetryBudget::Options retries;
  bool drifting = false;  // Clocks run fast or slow, by up to a hundredth.
  std::vector<ClientRequest> requests;
  std::vector<Fault> faults;
};
ClusterScenario DrawCluster(uint64_t seed, const Tokenizer& tokenizer);

struct ClusterOutcome {
  std::vector<std::string> findings;  // What was wrong; empty when all was right.
  FaultCoverage coverage;
  uint64_t completed = 0;
  uint64_t expired = 0;
  uint64_t cancelled = 0;
  uint64_t tokens = 0;
  uint64_t resumed = 0;    // By clients, at another router, with output.
  uint64_t failovers = 0;  // By routers, with output.
  uint64_t stalls = 0;
  uint64_t waits = 0;
  uint64_t changed = 0;   // Refusals of verifiers that are not what routers took them for.
  uint64_t orphaned = 0;  // Requests whose output began on weights that are gone.
  uint64_t sessions = 0;
  uint64_t cached = 0;      // Sessions with a part of their prompt from the prefix cache.
  uint64_t kept_apart = 0;  // Those for which another tenant's cache had more.
  uint64_t held_back = 0;   // Messages, by partitions.
  uint64_t events = 0;

  void Add(const ClusterOutcome& other);
};

// Clients, routers, verifiers, drafters and the store in which verifiers are registered, in one process and
// in simulated time:
//
//   ClusterClient --> RouterMachine --> VerifierHost (VerifierMachine) <== Link ==> DrafterMachine
//                        |    ^               |
//                   StoreView '--- registers -'
//
// Faults follow a plan, and all are over some time before the end. Then every request that its client has not
// cancelled must end.
class Cluster {
 public:
  Cluster(ClusterScenario scenario, std::shared_ptr<const Tokenizer> tokenizer, uint64_t seed);
  ~Cluster();

  ClusterOutcome Run();

 private:
  struct Router {
    std::unique_ptr<StoreView> leases;
    std::unique_ptr<RouterMachine> machine;  // The one that runs.
  };

  void AddDrafters();
  void AddVerifiers();
  void StartRouter(size_t index);
  void AddClients();
  void ScheduleFaults();
  void Make(const Fault& fault);
  bool MakeAtVerifier(const Fault& fault);
  bool MakeAtRouter(const Fault& fault);
  bool MakeOnNetwork(const Fault& fault);
  bool KillRouter(const Fault& fault, size_t index);
  bool AllFinished() const;
  void RunUntil(const std::function<bool()>& is_done);
  void CheckEnd();
  ClusterOutcome Summarise() const;

  const ClusterScenario scenario_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  Random random_;
  Findings findings_;
  EventQueue queue_;
  RpcNetwork network_;
  MachineClock store_clock_;
  router::MemoryLeaseStore store_;
  FakeEngine target_;
  FakeEngine other_target_;
  std::vector<std::unique_ptr<DrafterMachine>> drafters_;
  std::vector<std::unique_ptr<VerifierHost>> verifiers_;
  std::vector<Router> routers_;
  std::vector<Router> ended_;  // Events may name them.
  std::vector<std::unique_ptr<ClusterClient>> clients_;
  FaultCoverage coverage_;
  uint64_t num_events_ = 0;
  bool over_ = false;
};

// Draws the settings and runs. `keep`: runs only these faults, by their places in the plan.
ClusterOutcome RunCluster(uint64_t seed, std::shared_ptr<const Tokenizer> tokenizer,
                          const std::optional<std::vector<size_t>>& keep = std::nullopt);

// The smallest set of faults found with which the seed still fails, by leaving out faults in ever smaller
// groups.
std::vector<size_t> MinimiseFaults(uint64_t seed, const std::shared_ptr<const Tokenizer>& tokenizer);

}  // namespace tandem::simulation
