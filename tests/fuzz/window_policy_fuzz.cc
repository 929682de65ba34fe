// Files that set window policies, and what such policies have learned, as sessions hand it on.

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/config/window_policy_file.h"
#include "common/speculation/policies/qlearning_state.h"
#include "common/speculation/policies/window_policy.h"
#include "tests/fuzz/fuzz_target.h"

namespace tandem::fuzz {
namespace {

constexpr char kPolicyFile[] = "policies.json";

bool RunWindowPolicyFile(absl::string_view input) {
  const absl::StatusOr<WindowPolicyFile> file = ParseWindowPolicyFile(input, kPolicyFile);
  if (!file.ok()) return Refused(file.status(), kPolicyFile);
  return true;
}

std::vector<std::string> WindowPolicyFileSeeds() {
  return {
      R"({"policy": "analytic", "analytic": {"history": 8}, "ema-tiers": {"candidate_steps": [1, 3, 7]}})",
      R"({"candidate_steps": [1, 3, 7], "ema_alpha": 0.2, "warmup_batches": 3, "update_interval": 5})",
      R"({"qlearning": {"learning_rate": 0.5, "discount": 0.9, "exploration": 0.1}, "fixed": {}, "goodput": {}})",
      "{}"};
}

bool RunPolicyState(absl::string_view input) {
  InputReader reader(input);
  const absl::string_view stored = reader.LongBytes(), newer = reader.Rest();
  const absl::StatusOr<QLearningState> before = QLearningState::Parse(stored);
  const absl::StatusOr<QLearningState> after = QLearningState::Parse(newer);
  for (const auto& [state, bytes] : {std::pair(&before, stored), std::pair(&after, newer)}) {
    if (state->ok()) Require((*state)->Serialize() == bytes, "the same bytes again");
  }
  const absl::StatusOr<std::string> merged = MergePolicyStates(stored, newer);
  Require(merged.ok() == after.ok(), "merged if and only if the newer one can be read");
  if (!merged.ok()) return Refused(merged.status(), "");
  const absl::StatusOr<QLearningState> read = QLearningState::Parse(*merged);
  Require(read.ok(), "what was merged can be read");
  for (const QLearningState::Entry& entry : read->entries) {
    Require(entry.fresh == 0 && std::abs(entry.value) <= QLearningState::kLargestValue,
            "nothing fresh, values in bounds");
  }
  return true;
}

std::vector<std::string> PolicyStateSeeds() {
  QLearningState small{
      .prompts = 3, .fresh_prompts = 1, .entries = {{0, 1, 0.5F, 7, 2}, {1, 3, -0.25F, 1, 1}}};
  QLearningState full{.prompts = QLearningState::kMostVisits};
  for (int i = 0; i < 250; ++i) {
    full.entries.push_back(
        {static_cast<uint8_t>(i / 16), static_cast<uint8_t>(i % 16), 1.0F, QLearningState::kMostVisits, 5});
  }
  std::vector<std::string> seeds;
  for (const std::string& stored :
       {std::string(), small.Serialize(), full.Serialize(), std::string("damaged")}) {
    for (const QLearningState& newer : {QLearningState(), small, full}) {
      seeds.push_back(WithLongLength(stored) + newer.Serialize());
    }
  }
  return seeds;
}

const Registration kWindowPolicyFile({.name = "window_policy_file",
                                      .run = RunWindowPolicyFile,
                                      .seeds = WindowPolicyFileSeeds,
                                      .spoilt = 20'000});
const Registration kPolicyState(
    {.name = "policy_state", .run = RunPolicyState, .seeds = PolicyStateSeeds, .spoilt = 20'000});

}  // namespace
}  // namespace tandem::fuzz
