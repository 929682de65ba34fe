// Law 1 as a property: whatever is in the batch, and however a token's context came to be where it is, its
// logits and features are those of the plainest run there is, bit for bit.

#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/engine/cpu/testing/row_invariance_simulation.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

struct TestModel {
  const char* name;
  RandomModelOptions (*options)();
  WeightType weight_type = WeightType::kAsInFile;
  KvType kv_type = KvType::kF32;
};

// In failures.
void PrintTo(const TestModel& model, std::ostream* stream) {
  *stream << model.name;
}

class RowInvariance : public testing::TestWithParam<TestModel> {};

TEST_P(RowInvariance, HoldsForEveryThreadCountAndInstructionSet) {
  const auto model = MakeRandomModel(GetParam().options());
  ASSERT_NE(model, nullptr);
  References references(model, GetParam().weight_type, GetParam().kv_type);
  int num_compared = 0;
  int num_states = 0;
  int num_cache_hits = 0;
  int num_copied = 0;
  // Every number of threads with the best instruction set, every instruction set with some number.
  const std::vector<InstructionSet> supported = TestedInstructionSets();
  for (InstructionSet instruction_set : supported) {
    for (int num_threads : {1, 2, 3}) {
      if ((kSanitized || instruction_set != supported.front()) && num_threads != 2) continue;
      auto engine = CreateCpuEngine(model, {.num_blocks = 60,
                                            .max_rows = 61,
                                            .num_threads = num_threads,
                                            .instruction_set = instruction_set,
                                            .weight_type = GetParam().weight_type,
                                            .kv_type = GetParam().kv_type});
      ASSERT_TRUE(engine.ok()) << engine.status();
      const uint64_t num_seeds = kSanitized ? 2 : instruction_set == supported.front() ? 8 : 3;
      for (uint64_t seed = 1; seed <= num_seeds; ++seed) {
        SCOPED_TRACE(absl::StrCat("instruction set ", static_cast<int>(instruction_set), ", ", num_threads,
                                  " threads, seed ", seed));
        Simulation simulation(engine->get(), references.For(instruction_set), seed);
        simulation.Run(20);
        if (HasFailure()) return;
        num_compared += simulation.num_compared();
        num_states += simulation.num_states_compared();
        num_cache_hits += simulation.num_cache_hits();
        num_copied += simulation.num_copied();
      }
    }
  }
  // The simulation has to reach what it is there for.
  EXPECT_GT(num_compared, kSanitized ? 50 : 1000);
  EXPECT_GT(num_states, kSanitized ? 50 : 1000);
  EXPECT_GT(num_cache_hits, kSanitized ? 0 : 50);
  EXPECT_GT(num_copied, kSanitized ? 2 : 100);
}

INSTANTIATE_TEST_SUITE_P(
    All, RowInvariance,
    testing::Values(TestModel{"Llama", LlamaModel}, TestModel{"Qwen", QwenModel},
                    TestModel{"Mistral", MistralModel}, TestModel{"Biased", BiasedModel},
                    TestModel{"Eagle3", Eagle3Model}, TestModel{"DeepEagle3", DeepEagle3Model},
                    TestModel{"UnprojectedEagle3", UnprojectedEagle3Model}, TestModel{"Eagle", EagleModel},
                    TestModel{"Mtp", MtpModel}, TestModel{"Eagle3Int8", Eagle3Model, WeightType::kInt8},
                    TestModel{"MtpInt4", MtpModel, WeightType::kInt4},
                    TestModel{"LlamaInt8", LlamaModel, WeightType::kInt8},
                    TestModel{"QwenInt4", QwenModel, WeightType::kInt4},
                    TestModel{"QwenW8A8", QwenModel, WeightType::kW8A8},
                    TestModel{"LlamaW4A8", LlamaModel, WeightType::kW4A8},
                    TestModel{"MistralInt4", MistralModel, WeightType::kInt4},
                    TestModel{"BiasedInt8", BiasedModel, WeightType::kInt8},
                    TestModel{"LlamaBf16Kv", LlamaModel, WeightType::kAsInFile, KvType::kBf16},
                    TestModel{"MistralInt8Kv", MistralModel, WeightType::kAsInFile, KvType::kInt8},
                    TestModel{"BiasedInt8Kv", BiasedModel, WeightType::kInt8, KvType::kInt8}),
    [](const auto& param_info) { return std::string(param_info.param.name); });

// Contexts of several chunks of attention, most of which all sessions share: trees, chunks of prompts and
// single tokens of different sessions go through the same blocks together.
TEST_P(RowInvariance, HoldsForSessionsThatShareALongPrefix) {
  RandomModelOptions options = GetParam().options();
  options.config.max_context = 1024;
  if (options.config.sliding_window.has_value()) options.config.sliding_window = 301;
  const auto model = MakeRandomModel(options);
  ASSERT_NE(model, nullptr);
  References references(model, GetParam().weight_type, GetParam().kv_type);
  int num_compared = 0;
  int num_cache_hits = 0;
  for (InstructionSet instruction_set : TestedInstructionSets()) {
    const bool is_portable =
        instruction_set == InstructionSet::kPortable || instruction_set == InstructionSet::kPortableBf16;
    for (int num_threads : {1, 3}) {
      if ((kSanitized || is_portable) && num_threads == 1) continue;
      auto engine = CreateCpuEngine(model, {.num_blocks = 300,
                                            .max_rows = 150,
                                            .num_threads = num_threads,
                                            .instruction_set = instruction_set,
                                            .weight_type = GetParam().weight_type,
                                            .kv_type = GetParam().kv_type});
      ASSERT_TRUE(engine.ok()) << engine.status();
      SCOPED_TRACE(absl::StrCat(InstructionSetName(instruction_set), ", ", num_threads, " threads"));
      Simulation simulation(
          engine->get(), references.For(instruction_set), static_cast<uint64_t>(num_threads),
          {.num_shared = 530, .max_new = 30, .max_tokens = 620, .max_sessions = 6, .max_chunk = 150});
      simulation.Run(kSanitized || is_portable ? 10 : 20);
      if (HasFailure()) return;
      num_compared += simulation.num_compared();
      num_cache_hits += simulation.num_cache_hits();
    }
  }
  EXPECT_GT(num_compared, kSanitized ? 20 : 300);
  EXPECT_GT(num_cache_hits, kSanitized ? 0 : 5);
}

class RowInvarianceOfDemoModel : public testing::TestWithParam<WeightType> {};

TEST_P(RowInvarianceOfDemoModel, Holds) {
  auto model = Model::Load(absl::StrCat(TANDEM_SOURCE_DIR, "/deploy/demo-models/tandem-draft-general-1m"));
  ASSERT_TRUE(model.ok()) << model.status();
  References references(*model, GetParam());
  auto engine = CreateCpuEngine(
      *model, {.num_blocks = 60, .max_rows = 61, .num_threads = 2, .weight_type = GetParam()});
  ASSERT_TRUE(engine.ok()) << engine.status();
  Simulation simulation(engine->get(), references.For(SupportedInstructionSets().front()), 1);
  simulation.Run(12);
  EXPECT_GT(simulation.num_compared(), 50);
}

INSTANTIATE_TEST_SUITE_P(All, RowInvarianceOfDemoModel,
                         testing::Values(WeightType::kAsInFile, WeightType::kInt8, WeightType::kInt4),
                         [](const auto& param_info) {
                           return std::string(WeightTypeName(param_info.param));
                         });

}  // namespace
}  // namespace tandem
