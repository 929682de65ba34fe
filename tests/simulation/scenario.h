#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/tokenizer/tokenizer.h"
#include "tests/simulation/client.h"
#include "tests/simulation/drafter_machine.h"
#include "tests/simulation/network.h"
#include "tests/simulation/verifier_machine.h"

namespace tandem::simulation {

enum class Weather {
  kCalm,        // Good drafters, nothing goes wrong.
  kDuplicates,  // As kCalm, but messages arrive late and twice.
  kStorm,       // Everything that can be drawn.
  kDrought,     // As kStorm, but many long outputs at once on memory for about two.
};

struct DrafterScenario {
  DrafterMachine::Options machine;
  LinkConditions link;
  // Mean times between faults; infinite when there are none.
  absl::Duration between_breaks = absl::InfiniteDuration();
  absl::Duration between_restarts = absl::InfiniteDuration();
  absl::Duration between_stalls = absl::InfiniteDuration();
  absl::Duration between_clock_jumps = absl::InfiniteDuration();
};

// All settings of a run, drawn from its seed.
struct Scenario {
  VerifierMachine::Options verifier;
  absl::Duration between_clock_jumps = absl::InfiniteDuration();  // Of the verifier.
  std::vector<DrafterScenario> drafters;
  std::vector<ClientRequest> requests;  // Of drafters[i], the link is i.
};

// Parts of a scenario that can be drawn.
VerifierMachine::Options DrawAnyVerifier(Random random);
DrafterScenario DrawAnyDrafter(Random random);
ClientRequest DrawAnyRequest(Random random, uint32_t num_drafters, const Tokenizer& tokenizer);

Scenario DrawScenario(uint64_t seed, Weather weather, const Tokenizer& tokenizer);

}  // namespace tandem::simulation
