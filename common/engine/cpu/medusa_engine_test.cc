// Medusa heads of every file format against what the authors' code computes with them
// (common/model/testdata/make_tiny_heads.py), and law 1 for them.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/model/model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr int32_t kMedusaHidden = 72;
constexpr int32_t kMedusaVocabulary = 131;

std::string MedusaFolder(absl::string_view name) {
  return absl::StrCat(TANDEM_SOURCE_DIR, "/common/model/testdata/heads/", name);
}

// Two blocks in front of each of three outputs.
std::shared_ptr<const Model> RandomMedusa(bool shares_output) {
  ModelConfig config;
  config.architecture = "MedusaModel";
  config.hidden_size = kMedusaHidden;
  config.vocab_size = kMedusaVocabulary;
  config.max_context = 1 << 20;
  config.head = HeadConfig{.kind = HeadConfig::Kind::kMedusa,
                           .feature_final_norm = true,
                           .target_hidden_size = kMedusaHidden,
                           .draft_vocab_size = kMedusaVocabulary,
                           .num_positions = 3,
                           .num_blocks = 2,
                           .shares_output = shares_output};
  return Model::Random(config, /*seed=*/3).value();
}

std::vector<float> MedusaState(uint64_t seed) {
  std::vector<float> state(kMedusaHidden);
  for (size_t i = 0; i < state.size(); ++i) {
    state[i] = static_cast<float>(static_cast<int64_t>(Mix64(1000 * seed + i) % 2001) - 1000) / 500.0f;
  }
  return state;
}

// A row in a slot of its own.
StepRow MedusaRow(const InputState* state, const SlotId* slot, float* logits) {
  return {.token = 0, .context = {.tail = absl::MakeConstSpan(slot, 1)}, .logits = logits, .state = state};
}

std::vector<float> LogitsAlone(Engine& engine, absl::Span<const float> values) {
  std::vector<float> logits(engine.config().logits_size());
  const InputState state{.values = values};
  const SlotId slot = 0;
  const StepRow row = MedusaRow(&state, &slot, logits.data());
  const absl::Status stepped = engine.Step({&row, 1});
  EXPECT_TRUE(stepped.ok()) << stepped;
  return logits;
}

class MedusaGolden : public testing::TestWithParam<std::string> {};

TEST_P(MedusaGolden, GivesTheReferencesLogits) {
  const auto model = Model::Load(MedusaFolder(GetParam()));
  ASSERT_TRUE(model.ok()) << model.status();
  const auto text = ReadFile(MedusaFolder(GetParam()) + "/golden.json", 16 << 20);
  ASSERT_TRUE(text.ok()) << text.status();
  const nlohmann::json golden = nlohmann::json::parse(*text);
  for (const InstructionSet instruction_set : SupportedInstructionSets()) {
    auto engine = CreateCpuEngine(*model, {.num_blocks = 1, .instruction_set = instruction_set});
    ASSERT_TRUE(engine.ok()) << engine.status();
    const auto vocab_size = static_cast<size_t>((*engine)->config().vocab_size);
    for (size_t row = 0; row < golden["states"].size(); ++row) {
      const std::vector<float> logits =
          LogitsAlone(**engine, golden["states"][row].get<std::vector<float>>());
      const nlohmann::json& heads = golden["logits"][row];
      ASSERT_EQ(logits.size(), heads.size() * vocab_size);
      for (size_t i = 0; i < logits.size(); ++i) {
        EXPECT_NEAR(logits[i], heads[i / vocab_size][i % vocab_size].get<float>(), 2e-5)
            << "row " << row << ", head " << i / vocab_size << ", token " << i % vocab_size;
      }
    }
    if (HasFailure()) FAIL() << InstructionSetName(instruction_set);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, MedusaGolden, testing::Values("medusa", "medusa-vllm"),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           std::erase(name, '-');
                           return name;
                         });

struct MedusaCase {
  const char* name;
  bool shares_output;
  WeightType weight_type = WeightType::kAsInFile;
};

class MedusaRows : public testing::TestWithParam<MedusaCase> {};

// Law 1: a row's logits are those that it has alone, whatever rows are with it, on any number of threads and
// every instruction set.
TEST_P(MedusaRows, DoNotDependOnTheirCompany) {
  const std::shared_ptr<const Model> model = RandomMedusa(GetParam().shares_output);
  constexpr uint64_t kStates = 9;
  for (const InstructionSet instruction_set : SupportedInstructionSets()) {
    std::vector<std::vector<float>> alone;
    for (const int num_threads : {1, 2, 3}) {
      auto engine = CreateCpuEngine(model, {.num_blocks = 20,
                                            .max_rows = 100,
                                            .num_threads = num_threads,
                                            .instruction_set = instruction_set,
                                            .weight_type = GetParam().weight_type});
      ASSERT_TRUE(engine.ok()) << engine.status();
      if (alone.empty()) {
        for (uint64_t state = 0; state < kStates; ++state) {
          alone.push_back(LogitsAlone(**engine, MedusaState(state)));
        }
      }
      std::mt19937_64 random(static_cast<uint64_t>(num_threads));
      for (const size_t num_rows : {1u, 2u, 7u, 40u, 100u}) {
        std::vector<std::vector<float>> states(num_rows), logits(num_rows);
        std::vector<InputState> inputs(num_rows);
        std::vector<SlotId> slots(num_rows);
        std::vector<uint64_t> which(num_rows);
        std::vector<StepRow> rows;
        for (size_t i = 0; i < num_rows; ++i) {
          which[i] = random() % kStates;
          states[i] = MedusaState(which[i]);
          inputs[i] = {.values = states[i]};
          slots[i] = static_cast<SlotId>(i);
          if (random() % 4 > 0) logits[i].resize(model->config().logits_size());
          rows.push_back(MedusaRow(&inputs[i], &slots[i], logits[i].empty() ? nullptr : logits[i].data()));
        }
        const absl::Status stepped = (*engine)->Step(rows);
        ASSERT_TRUE(stepped.ok()) << stepped;
        for (size_t i = 0; i < num_rows; ++i) {
          if (logits[i].empty()) continue;
          ASSERT_EQ(std::memcmp(logits[i].data(), alone[which[i]].data(), logits[i].size() * sizeof(float)),
                    0)
              << "row " << i << " of " << num_rows << ", " << num_threads << " threads, "
              << InstructionSetName(instruction_set);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, MedusaRows,
                         testing::Values(MedusaCase{"Own", false}, MedusaCase{"Shared", true},
                                         MedusaCase{"OwnInt8", false, WeightType::kInt8},
                                         MedusaCase{"SharedInt4", true, WeightType::kInt4}),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

TEST(MedusaEngineTest, IntegersComeNearToTheWeights) {
  for (const bool shares_output : {false, true}) {
    const std::shared_ptr<const Model> model = RandomMedusa(shares_output);
    auto exact = CreateCpuEngine(model, {.num_blocks = 1});
    ASSERT_TRUE(exact.ok()) << exact.status();
    const std::vector<float> expected = LogitsAlone(**exact, MedusaState(1));
    for (const auto& [type, most] :
         {std::pair(WeightType::kInt8, 0.01), std::pair(WeightType::kInt4, 0.15)}) {
      auto engine = CreateCpuEngine(model, {.num_blocks = 1, .weight_type = type});
      ASSERT_TRUE(engine.ok()) << engine.status();
      const std::vector<float> logits = LogitsAlone(**engine, MedusaState(1));
      double distance = 0.0, size = 0.0;
      for (size_t i = 0; i < logits.size(); ++i) {
        distance += std::pow(logits[i] - expected[i], 2);
        size += std::pow(expected[i], 2);
      }
      EXPECT_LT(std::sqrt(distance / size), most) << WeightTypeName(type);
      EXPECT_GT(distance, 0.0) << WeightTypeName(type);
    }
  }
}

TEST(MedusaEngineTest, RowsThatCannotBeAreRefusedBeforeAnythingIsWritten) {
  auto engine = CreateCpuEngine(RandomMedusa(false), {.num_blocks = 1, .max_rows = 4});
  ASSERT_TRUE(engine.ok()) << engine.status();
  const std::vector<float> values = MedusaState(1);
  std::vector<float> logits((*engine)->config().logits_size(), 7.0f);
  const SlotId slot = 0;
  const InputState own{.values = values, .own = true};
  const InputState narrow{.values = absl::MakeConstSpan(values).first(5)};
  struct Case {
    const InputState* state;
    const char* error;
  };
  for (const Case& bad :
       {Case{nullptr, "comes without a state"}, Case{&own, "a state of 72 numbers of its own"},
        Case{&narrow, "a state of 5 numbers"}}) {
    const StepRow row = MedusaRow(bad.state, &slot, logits.data());
    const absl::Status status = (*engine)->Step({&row, 1});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.error));
    EXPECT_THAT(std::string(status.message()), HasSubstr("72 numbers of the target"));
  }
  EXPECT_THAT(logits, Each(7.0f));
  const SlotId outside = 16;
  const InputState good{.values = values};
  const StepRow row = MedusaRow(&good, &outside, logits.data());
  EXPECT_EQ((*engine)->Step({&row, 1}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE((*engine)->has_features());
}

}  // namespace
}  // namespace tandem
