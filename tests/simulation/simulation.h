#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/simulation/scenario.h"

namespace tandem::simulation {

// The result of a run.
struct Outcome {
  std::vector<std::string> findings;  // What was wrong; empty when all was right.
  uint32_t completed = 0;             // Requests that ended OK,
  uint32_t expired = 0;               // by their deadline,
  uint32_t cancelled = 0;             // by the client,
  uint32_t rejected = 0;              // or were not taken.
  uint64_t rounds = 0;
  uint64_t drafted_rounds = 0;
  uint64_t hits = 0;
  uint64_t draft_tokens = 0;
  uint64_t accepted_tokens = 0;
  uint64_t cached_prompt_tokens = 0;
  uint64_t preemptions = 0;
  uint64_t parked_sessions = 0;
  uint64_t violations = 0;
  uint64_t resyncs = 0;
  uint64_t duplicates = 0;
  uint64_t clock_jumps = 0;
  uint64_t feature_rows = 0;            // That heads were sent and that were right,
  uint64_t feature_commits = 0;         // and commits that brought some.
  std::vector<TokenIds> conversations;  // Prompt and output of each request; not added up.
  uint64_t swaps = 0;                   // To another drafter, on demand,
  uint64_t refused_swaps = 0;           // and those that came to nothing.
  uint64_t masked_rows = 0;             // That drafters put a constraint on,
  uint64_t masked_drafts = 0;           // and candidates that verifiers dropped.
  uint64_t drafter_changes = 0;         // Swaps, and alternates for drafters that were lost.

  void Add(const Outcome& other);
};

// A verifier, its drafters, the network between them and the clients, in one process and in simulated time:
// real protocol logic on fake models.
//
//   Client --> VerifierMachine (Scheduler) <== Link ==> DrafterMachine (DraftCore), one to three of them
class Simulation {
 public:
  Simulation(Scenario scenario, std::shared_ptr<const Tokenizer> tokenizer, uint64_t seed);

  Outcome Run();

 private:
  void AddDrafter(const DrafterScenario& scenario, LinkId link);
  void ScheduleFaults(const DrafterScenario& scenario, LinkId link);
  void ScheduleClockJumps(absl::Duration mean, Machine* machine);
  void ScheduleFault(absl::Duration mean, std::function<void()> fault);
  void ScheduleRequests();
  bool AllFinished() const;
  void RunToTheEnd();
  Outcome Summarise() const;

  const Scenario scenario_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  Random random_;
  Findings findings_;
  EventQueue queue_;
  std::unique_ptr<VerifierMachine> verifier_;
  std::vector<std::unique_ptr<DrafterMachine>> drafters_;
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<std::unique_ptr<Client>> clients_;
  uint64_t violations_ = 0;
  uint64_t clock_jumps_ = 0;
};

// Draws the settings and runs.
Outcome RunSeed(uint64_t seed, Weather weather, std::shared_ptr<const Tokenizer> tokenizer);

}  // namespace tandem::simulation
