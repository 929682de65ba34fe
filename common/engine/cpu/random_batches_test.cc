// Law 1 at length: thousands of random batches, in which every row is, bit for bit, what it is alone.
//
//   TANDEM_BATCHES      how many batches to run (default 3000; with a sanitizer 200, and no more)
//   TANDEM_BATCH_SEED   run only the batches of this seed

#include <iostream>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/environment_number.h"
#include "common/engine/cpu/testing/row_invariance_simulation.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

constexpr int kBatchesPerSeed = 40;

struct Totals {
  int batches = 0;
  int compared = 0;
  int cache_hits = 0;
  int copied = 0;
};

// Of a run, drawn from its seed.
struct Draw {
  RandomModelOptions model;
  CpuEngineOptions engine;
  SimulationOptions simulation;

  std::string Label(uint64_t seed) const {
    return absl::StrCat("seed ", seed, " (", model.config.architecture, ", ",
                        WeightTypeName(engine.weight_type), ", ", InstructionSetName(engine.instruction_set),
                        ", ", engine.num_threads, " threads); to see it again: TANDEM_BATCH_SEED=", seed);
  }
};

Draw DrawFrom(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto between = [&](size_t low, size_t high) { return low + random() % (high - low + 1); };
  RandomModelOptions (*const models[])() = {LlamaModel, QwenModel, MistralModel, BiasedModel};
  constexpr WeightType kTypes[] = {WeightType::kAsInFile, WeightType::kInt8, WeightType::kInt4};
  const std::vector<InstructionSet> instruction_sets = TestedInstructionSets();
  Draw draw;
  draw.model = models[between(0, 3)]();
  draw.model.dtype = TensorView::DType::kBF16;
  draw.model.seed = between(1, 1000);
  draw.engine.weight_type = kTypes[between(0, 2)];
  draw.engine.instruction_set = instruction_sets[between(0, instruction_sets.size() - 1)];
  // Mostly one: on a busy machine a step waits for the last of its threads to get a processor.
  constexpr int kThreads[] = {1, 1, 1, 2, 2, 3};
  draw.engine.num_threads = kThreads[between(0, 5)];
  draw.simulation.max_sessions = between(1, 6);
  draw.simulation.max_chunk = static_cast<int>(between(1, 40));
  draw.simulation.max_new = static_cast<int>(between(5, 40));
  // A step's rows, from those of one session to more than anything takes at a time; memory for all sessions.
  draw.engine.max_rows = static_cast<uint32_t>(between(8, 90));
  draw.engine.num_blocks = 100;
  return draw;
}

void RunSeed(uint64_t seed, int most_batches, Totals* totals) {
  const Draw draw = DrawFrom(seed);
  SCOPED_TRACE(draw.Label(seed));
  const auto model = MakeRandomModel(draw.model);
  ASSERT_NE(model, nullptr);
  References references(model, draw.engine.weight_type);
  auto engine = CreateCpuEngine(model, draw.engine);
  ASSERT_TRUE(engine.ok()) << engine.status();
  Simulation simulation(engine->get(), references.For(draw.engine.instruction_set), seed, draw.simulation);
  while (simulation.num_batches() < most_batches && !testing::Test::HasFailure()) simulation.Run(1);
  totals->batches += simulation.num_batches();
  totals->compared += simulation.num_compared();
  totals->cache_hits += simulation.num_cache_hits();
  totals->copied += simulation.num_copied();
}

TEST(RandomBatches, GiveEveryRowWhatItIsAlone) {
  const uint64_t only = NumberFromEnvironment("TANDEM_BATCH_SEED", 0, 1);
  auto wanted = static_cast<int>(NumberFromEnvironment("TANDEM_BATCHES", 3'000, 1, 1'000'000'000));
  if (kSanitized) wanted = std::min(wanted, 200);
  Totals totals;
  for (uint64_t seed = only > 0 ? only : 1; totals.batches < wanted && !HasFailure(); ++seed) {
    RunSeed(seed, std::min(kBatchesPerSeed, wanted - totals.batches), &totals);
    if (only > 0) break;
  }
  std::cout << totals.batches << " batches, " << totals.compared << " rows compared, " << totals.cache_hits
            << " prompts found in the cache, " << totals.copied << " tree nodes committed\n";
  if (only > 0 || HasFailure()) return;
  EXPECT_EQ(totals.batches, wanted);
  // What is not reached is not tested.
  EXPECT_GT(totals.compared, wanted);
  EXPECT_GT(totals.cache_hits, wanted / 100);
  EXPECT_GT(totals.copied, wanted / 50);
}

}  // namespace
}  // namespace tandem
