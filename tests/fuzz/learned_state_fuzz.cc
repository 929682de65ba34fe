// What a router has learned, as calibration files and its state's records hold it.

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/speculation/policies/qlearning_state.h"
#include "router/drafters/choice/drafter_chooser.h"
#include "router/drafters/learned_state.h"
#include "router/drafters/policy_memory.h"
#include "router/state/memory_store.h"
#include "router/state/open_store.h"
#include "tandem/v1/state.pb.h"
#include "tests/fuzz/fuzz_target.h"

namespace tandem::fuzz {
namespace {

constexpr char kCalibrationPath[] = "calibration.bin";
constexpr uint32_t kSmallVocabulary = 60;

router::DrafterChooser EmptyChooser() {
  router::DrafterChooser::Options options;
  options.dimension = 4;
  return router::DrafterChooser(options, {{"m", kSmallVocabulary, 0x1234}});
}

const std::vector<std::string>& DrafterNames() {
  static const auto* const names = new std::vector<std::string>{"code", "math"};
  return *names;
}

// What was loaded can be gone by, and saved: numbers that are none would show in every choice from then on.
void UseChooser(router::DrafterChooser& chooser) {
  for (const TokenIds& prompt : {TokenIds{}, TokenIds{1, 2, 3, 59}, TokenIds{1000000, -1, 5}}) {
    const router::PromptHandle handle = chooser.Prepare(0, prompt, "acme");
    for (const double feature : handle.extracted->features) {
      Require(std::isfinite(feature) && std::abs(feature) <= router::FeatureModel::kBound,
              "features in bounds");
    }
    for (const std::string& drafter : DrafterNames()) {
      const auto predicted = chooser.Predict(0, drafter, handle);
      Require(predicted.mean >= 0 && predicted.mean <= 1, "an acceptance between 0 and 1");
    }
    chooser.Decide(0, handle, DrafterNames());
    chooser.Explain(0, prompt, "acme", DrafterNames());
    chooser.Observe(0, "code", handle, 0.5, 1.0);
  }
  router::DrafterChooser again = EmptyChooser();
  const absl::Status status = again.Load(chooser.Save());
  Require(status.ok(), absl::StrCat("what was saved can be loaded: ", status.message()));
}

bool RunLearnedState(absl::string_view input) {
  InputReader reader(input);
  const bool as_file = reader.Below(2) == 0;
  const std::string bytes(reader.Rest());
  router::MemoryStore store;
  router::DrafterChooser chooser = EmptyChooser();
  if (as_file) {
    const absl::Status status = router::ReadLearned(
        router::CalibrationFile{.path = kCalibrationPath, .bytes = bytes}, store, chooser);
    if (!status.ok()) return Refused(status, kCalibrationPath);
    UseChooser(chooser);
    Require(router::WriteLearned(chooser, store).ok(), "what was read can be written");
    return true;
  }
  Require(
      router::PutBlob(store, "learned", bytes).ok() && router::PutBlob(store, "window-policies", bytes).ok(),
      "a store");
  router::PolicyMemory policies(4);
  Require(router::ReadPolicies(store, policies).ok(), "damage that costs speed alone");
  const v1::WindowPolicyRecord saved = policies.Save();
  Require(saved.policies_size() <= 4 && policies.Load(saved) == 0, "policies that can be read again");
  const absl::Status status = router::ReadLearned(std::nullopt, store, chooser);
  if (!status.ok()) return Refused(status, "damaged") || saved.policies_size() > 0;
  UseChooser(chooser);
  return true;
}

v1::LearnedRouting SmallCalibration() {
  std::vector<router::CalibrationPrompt> prompts;
  for (int i = 0; i < 16; ++i) {
    router::CalibrationPrompt prompt;
    for (int j = 0; j < 12 + i; ++j) prompt.tokens.push_back((i * 7 + j * (1 + i % 3)) % kSmallVocabulary);
    prompt.outcomes = {{"code", 0.2 + 0.03 * i, 50}, {"math", 0.8 - 0.03 * i, 40}};
    prompts.push_back(std::move(prompt));
  }
  router::DrafterChooser chooser = EmptyChooser();
  Require(chooser.Calibrate(0, prompts).ok(), "a calibration");
  return chooser.Save();
}

std::vector<std::string> LearnedStateSeeds() {
  const v1::LearnedRouting learned = SmallCalibration();
  v1::LearnedRouting cold = EmptyChooser().Save();
  v1::LearnedRecord record;
  *record.mutable_learned() = learned;
  record.set_calibration_sha256(std::string(32, 's'));
  v1::WindowPolicyRecord policies;
  for (const char* const tenant : {"acme", "zeta"}) {
    v1::LearnedWindowPolicy& policy = *policies.add_policies();
    policy.set_tenant(tenant);
    policy.set_model("m");
    policy.set_window_policy("qlearning");
    policy.set_state(QLearningState{.prompts = 2, .entries = {{0, 1, 0.5F, 7, 2}}}.Serialize());
  }
  const std::string file(1, '\0'), stored(1, '\1');
  return {file + learned.SerializeAsString(), file + cold.SerializeAsString(),
          stored + record.SerializeAsString(), stored + policies.SerializeAsString()};
}

const Registration kLearnedState(
    {.name = "learned_state", .run = RunLearnedState, .seeds = LearnedStateSeeds, .spoilt = 2000});

}  // namespace
}  // namespace tandem::fuzz
