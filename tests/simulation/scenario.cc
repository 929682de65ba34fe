#include "tests/simulation/scenario.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/speculation/policies/window_policy.h"
#include "tests/simulation/random.h"

namespace tandem::simulation {
namespace {

constexpr int32_t kVocabSize = 40;
constexpr uint64_t kFingerprint = 7;
constexpr uint64_t kTargetSeed = 1;

bool IsCalm(Weather weather) {
  return weather == Weather::kCalm || weather == Weather::kDuplicates;
}

std::string AnyPolicy(Random* random) {
  const std::vector<std::string> names = WindowPolicyNames();
  return names[random->Between(0, static_cast<uint32_t>(names.size()) - 1)];
}

VerifierMachine::Options DrawVerifier(Random random, bool calm) {
  VerifierMachine::Options options;
  options.model = {.vocab_size = kVocabSize,
                   .num_blocks = calm ? 256 : random.Between(10, 60),
                   .max_rows = calm ? 256 : random.Between(4, 64),
                   .seed = kTargetSeed};
  Scheduler::Options& scheduler = options.scheduler;
  scheduler.vocabulary_fingerprint = kFingerprint;
  if (calm) return options;
  options.per_step = random.Between(absl::Milliseconds(1), absl::Milliseconds(25));
  scheduler.max_running = random.Between(1, 8);
  scheduler.max_waiting = random.Between(3, 20);
  scheduler.prefill_chunk = random.Between(2, 48);
  scheduler.limits.max_depth = random.Between(1, 10);
  scheduler.limits.nodes_per_level = random.Between(1, 3);
  scheduler.limits.max_nodes = random.Between(1, 24);
  scheduler.limits.branching = random.Between(1, 5);
  scheduler.limits.lookahead = random.Chance(0.3) ? 0 : random.Between(1, 12);
  scheduler.window_policy = AnyPolicy(&random);
  scheduler.max_draft_wait = random.Between(absl::Milliseconds(1), absl::Milliseconds(100));
  scheduler.swap_timeout = random.Between(absl::Milliseconds(1), absl::Milliseconds(300));
  scheduler.first_draft_retry = random.Between(absl::Milliseconds(10), absl::Seconds(1));
  constexpr TreeShape kShapes[] = {TreeShape::kBestFirst, TreeShape::kChain, TreeShape::kEagle2};
  scheduler.limits.shape = kShapes[random.Between(0, 2)];
  if (random.Chance(0.4)) {
    scheduler.local_drafter = ParseSourceSpec(random.Chance(0.5) ? "suffix:min=1" : "ngram:min=1").value();
  }
  scheduler.limits.ahead_nodes = random.Chance(0.3) ? 0 : random.Between(1, 100);
  scheduler.limits.ahead_branching = random.Between(1, 8);
  if (random.Chance(0.3)) scheduler.control_share = 0.5;
  return options;
}

void DrawFaults(Random random, DrafterScenario* drafter) {
  LinkConditions& link = drafter->link;
  link.most_latency = link.least_latency +
                      random.Between(absl::ZeroDuration(), absl::Milliseconds(random.Chance(0.3) ? 8 : 1));
  link.duplicated = random.Chance(0.4) ? random.Uniform() * 0.3 : 0.0;
  const auto draw = [&](absl::Duration* between) {
    if (random.Chance(0.3)) *between = random.Between(absl::Milliseconds(50), absl::Seconds(1));
  };
  draw(&drafter->between_breaks);
  draw(&drafter->between_restarts);
  draw(&drafter->between_stalls);
  drafter->machine.byzantine = random.Chance(0.15);
  draw(&drafter->between_clock_jumps);
}

// A model that calls its tokens otherwise than the verifiers do: most of them alike, or none of them so that
// its drafts are worth anything.
void DrawBridge(Random random, DrafterMachine::Options* machine) {
  TokenIds ids(kVocabSize);
  const bool sane = random.Chance(0.6);
  if (!sane) machine->model.vocab_size = static_cast<int32_t>(random.Between(2, 70));
  for (TokenId token = 0; token < kVocabSize; ++token) {
    const bool has = token < machine->model.vocab_size && !random.Chance(sane ? 0.05 : 0.4);
    ids[static_cast<size_t>(token)] = has ? token : VocabularyBridge::kNone;
  }
  if (!sane) {
    for (size_t last = ids.size(); --last > 0;) {
      std::swap(ids[last], ids[random.Between(0, static_cast<uint32_t>(last))]);
    }
  }
  const auto stand_in =
      static_cast<TokenId>(random.Between(0, static_cast<uint32_t>(machine->model.vocab_size) - 1));
  // A map without a token has nothing to draft.
  if (std::all_of(ids.begin(), ids.end(), [](TokenId id) { return id == VocabularyBridge::kNone; })) {
    ids[0] = 0;
  }
  machine->bridge = std::make_shared<const VocabularyBridge>(
      VocabularyBridge::FromMap(std::move(ids), machine->model.vocab_size, stand_in).value());
  machine->bridged_fingerprint = kFingerprint;
  machine->vocabulary_fingerprint = kFingerprint + 2;
}

DrafterScenario DrawDrafter(Random random, Weather weather) {
  DrafterScenario drafter;
  DrafterMachine::Options& machine = drafter.machine;
  machine.vocabulary_fingerprint = kFingerprint;
  machine.model = {.vocab_size = kVocabSize,
                   .seed = 100 + random.Between(0, 1000),
                   .sharpness = 8.0f,
                   .agreement = 0.9,
                   .agree_with_seed = kTargetSeed};
  if (weather == Weather::kDuplicates) drafter.link.duplicated = 0.2;
  if (IsCalm(weather)) return drafter;
  machine.model.agreement = 0.95 * std::sqrt(random.Uniform());
  machine.model.sharpness = static_cast<float>(0.5 + random.Uniform() * 10.0);
  machine.model.num_blocks = random.Between(6, 60);
  machine.model.max_rows = random.Between(2, 64);
  machine.context_length = std::min(random.Between(8, 200), machine.model.num_blocks * kBlockTokens / 2);
  machine.core = {.max_sessions = random.Between(1, 12),
                  .expand_width = random.Between(1, 5),
                  .max_step_rows = random.Between(2, 64)};
  machine.per_step = random.Between(absl::Microseconds(50), absl::Milliseconds(random.Chance(0.2) ? 3 : 1));
  machine.compiles = random.Chance(0.3) ? random.Uniform() : 1.0;
  if (random.Chance(0.5)) machine.compile_time = random.Between(absl::ZeroDuration(), absl::Milliseconds(60));
  if (random.Chance(0.05)) machine.vocabulary_fingerprint = kFingerprint + 1;
  constexpr const char* kSources[] = {"ngram:min=1", "suffix:min=1", "trie:nodes=500"};
  if (random.Chance(0.3)) machine.source = ParseSourceSpec(kSources[random.Between(0, 2)]).value();
  DrawFaults(random.Fork(), &drafter);
  if (random.Chance(0.5)) {
    FeatureNeeds needs{.final_norm = random.Chance(0.4),
                       .type = random.Chance(0.3) ? FeatureType::kInt8 : FeatureType::kBf16};
    for (uint32_t layer = 0; layer <= FakeEngine::kNumLayers; ++layer) {
      if (random.Chance(0.3) || (layer == FakeEngine::kNumLayers && needs.num_states() == 0)) {
        needs.layers.push_back(layer);
      }
    }
    if (random.Chance(0.5)) needs.window = random.Between(1, 60);
    machine.features = std::move(needs);
  }
  if (random.Chance(0.2) && machine.vocabulary_fingerprint == kFingerprint) {
    DrawBridge(random.Fork(), &machine);
  }
  return drafter;
}

SamplingParameters DrawSampling(Random random) {
  SamplingParameters sampling;
  sampling.temperature = random.Chance(0.5) ? 0.0f : 0.8f;
  sampling.seed = random.Next();
  if (random.Chance(0.3)) sampling.repetition_penalty = 1.3f;
  if (random.Chance(0.3)) sampling.presence_penalty = 0.7f;
  if (random.Chance(0.3)) sampling.frequency_penalty = 0.4f;
  if (random.Chance(0.3)) sampling.top_k = random.Between(1, 10);
  if (random.Chance(0.3)) sampling.top_p = 0.9f;
  if (random.Chance(0.2)) sampling.logit_bias = {{static_cast<TokenId>(random.Between(0, 39)), 2.0f}};
  return sampling;
}

TokenId AnyToken(Random* random) {
  return static_cast<TokenId>(random->Between(0, kVocabSize - 1));
}

StopRules DrawRules(Random random, const Tokenizer& tokenizer) {
  StopRules rules{.max_tokens = random.Between(1, 60)};
  if (random.Chance(0.4)) rules.stop_tokens.insert(AnyToken(&random));
  if (random.Chance(0.3)) {
    // Of one token, and of several, of which the first ones are held back until the last one has come.
    const uint32_t num_stops = random.Between(1, 8);
    for (uint32_t i = 0; i < num_stops; ++i) {
      TokenIds tokens = {AnyToken(&random)};
      if (num_stops > 1) tokens.push_back(AnyToken(&random));
      const std::string stop = tokenizer.Decode(tokens, /*skip_special=*/true);
      if (!stop.empty()) rules.stop.push_back(stop);
    }
  }
  return rules;
}

DrafterBinding AnyBinding(Random* random, uint32_t num_drafters) {
  const uint32_t drafter = random->Between(0, num_drafters - 1);
  return {.link = drafter,
          .name = absl::StrCat("drafter-", drafter),
          .draft_model = random->Chance(0.03) ? "unknown" : DrafterMachine::kModelName};
}

// Alternates, a partner, and swaps at any moment: before the request has come, while it runs, and after its
// end.
void DrawOtherDrafters(Random random, uint32_t num_drafters, ClientRequest* request) {
  if (request->drafter.has_value() && random.Chance(0.4)) {
    const uint32_t num_alternates = random.Between(1, 3);
    for (uint32_t i = 0; i < num_alternates; ++i) {
      request->alternates.push_back(AnyBinding(&random, num_drafters));
    }
  }
  if (request->drafter.has_value() && random.Chance(0.4)) {
    request->partner = AnyBinding(&random, num_drafters);
    request->partner->name += "-partner";
  }
  if (!random.Chance(0.4)) return;
  const uint32_t num_swaps = random.Between(1, 6);
  for (uint32_t i = 0; i < num_swaps; ++i) {
    DrafterBinding to = AnyBinding(&random, num_drafters);
    // Told from the one before although it may be the same process.
    to.name += absl::StrCat("-", i);
    request->swaps.emplace_back(absl::UnixEpoch() + random.Between(absl::ZeroDuration(), absl::Seconds(1)),
                                std::move(to));
  }
}

ClientRequest DrawRequest(Random random, bool calm, uint32_t num_drafters, const Tokenizer& tokenizer) {
  ClientRequest request;
  const uint32_t prompt_length = random.Chance(0.1) ? 1 : random.Between(1, 70);
  for (uint32_t i = 0; i < prompt_length; ++i) request.prompt.push_back(AnyToken(&random));
  request.sampling = DrawSampling(random.Fork());
  request.rules = DrawRules(random.Fork(), tokenizer);
  request.cache_salt = random.Between(0, 2);
  const uint32_t drafter = random.Between(0, num_drafters - 1);
  if (calm || random.Chance(0.9)) {
    request.drafter = DrafterBinding{.link = drafter,
                                     .name = absl::StrCat("drafter-", drafter),
                                     .draft_model = DrafterMachine::kModelName};
  }
  if (calm) {
    request.sampling = {.temperature = 0.0f};
    request.rules = {.max_tokens = 40};
    return request;
  }
  if (request.drafter.has_value() && random.Chance(0.03)) request.drafter->draft_model = "unknown";
  if (random.Chance(0.1)) request.num_emitted = random.Between(1, 20);
  if (random.Chance(0.2)) request.max_window = random.Between(1, 4);
  if (random.Chance(0.2)) request.window_policy = AnyPolicy(&random);
  DrawOtherDrafters(random.Fork(), num_drafters, &request);
  if (random.Chance(0.3)) {
    request.constrained = true;
    request.rules.stop_tokens.insert(FakeConstraint::kEnd);
  }
  return request;
}

// No less memory than the longest request needs alone: 100 and 60 tokens.
void Dry(Random random, Scenario* scenario) {
  scenario->verifier.model.num_blocks = random.Between(10, 13);
  scenario->verifier.scheduler.max_running = random.Between(3, 8);
  absl::Time arrival = absl::UnixEpoch();
  for (ClientRequest& request : scenario->requests) {
    request.rules.stop_tokens.clear();
    if (request.constrained) request.rules.stop_tokens.insert(FakeConstraint::kEnd);
    request.rules.max_tokens = random.Between(30, 60);
    if (random.Chance(0.8)) request.prompt.resize(std::min<size_t>(request.prompt.size(), 32));
    request.arrival = std::min(request.arrival, arrival += absl::Milliseconds(random.Between(0, 10)));
  }
}

}  // namespace

VerifierMachine::Options DrawAnyVerifier(Random random) {
  return DrawVerifier(random, /*calm=*/false);
}

DrafterScenario DrawAnyDrafter(Random random) {
  return DrawDrafter(random, Weather::kStorm);
}

ClientRequest DrawAnyRequest(Random random, uint32_t num_drafters, const Tokenizer& tokenizer) {
  return DrawRequest(random, /*calm=*/false, num_drafters, tokenizer);
}

Scenario DrawScenario(uint64_t seed, Weather weather, const Tokenizer& tokenizer) {
  Random random(seed);
  const bool calm = IsCalm(weather);
  Scenario scenario{.verifier = DrawVerifier(random.Fork(), calm)};
  const uint32_t num_drafters = random.Between(1, 3);
  for (uint32_t i = 0; i < num_drafters; ++i)
    scenario.drafters.push_back(DrawDrafter(random.Fork(), weather));

  absl::Time arrival = absl::UnixEpoch() + absl::Milliseconds(5);
  const uint32_t num_requests = random.Between(1, 10);
  for (uint32_t i = 0; i < num_requests; ++i) {
    ClientRequest request = DrawRequest(random.Fork(), calm, num_drafters, tokenizer);
    request.id = i + 1;
    arrival += random.Between(absl::ZeroDuration(), absl::Milliseconds(40));
    request.arrival = arrival;
    if (!calm && random.Chance(0.25)) {
      request.deadline = arrival + random.Between(absl::ZeroDuration(), absl::Milliseconds(600));
    }
    if (!calm && random.Chance(0.15)) {
      request.cancel = arrival + random.Between(absl::ZeroDuration(), absl::Milliseconds(200));
    }
    if (i > 0 && random.Chance(0.3)) {
      // A prompt that goes on where another one, perhaps another tenant's, began.
      const ClientRequest& earlier = scenario.requests[random.Between(0, i - 1)];
      const auto shared =
          static_cast<ptrdiff_t>(random.Between(0, static_cast<uint32_t>(earlier.prompt.size())));
      request.prompt.insert(request.prompt.begin(), earlier.prompt.begin(), earlier.prompt.begin() + shared);
      request.prompt.resize(std::min<size_t>(request.prompt.size(), 100));
    }
    scenario.requests.push_back(std::move(request));
  }
  if (!calm && random.Chance(0.2)) {
    scenario.between_clock_jumps = random.Between(absl::Milliseconds(50), absl::Seconds(1));
  }
  if (weather == Weather::kDrought) Dry(random.Fork(), &scenario);
  scenario.verifier.model.chooses = random.Chance(0.5);
  return scenario;
}

}  // namespace tandem::simulation
