#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/sequence_kv.h"
#include "common/model/model.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

nlohmann::json ReadJson(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(absl::StrCat(TANDEM_SOURCE_DIR, "/", path), 16 << 20);
  if (!text.ok()) {
    ADD_FAILURE() << text.status();
    return nullptr;
  }
  return nlohmann::json::parse(*text);
}

std::unique_ptr<Engine> OpenEngine(const std::string& folder, InstructionSet instruction_set) {
  auto model = Model::Load(absl::StrCat(TANDEM_SOURCE_DIR, "/", folder));
  if (!model.ok()) {
    ADD_FAILURE() << model.status();
    return nullptr;
  }
  auto engine = CreateCpuEngine(
      *model, {.num_blocks = 64, .max_rows = 64, .num_threads = 2, .instruction_set = instruction_set});
  if (!engine.ok()) {
    ADD_FAILURE() << engine.status();
    return nullptr;
  }
  return *std::move(engine);
}

// A sequence that computes all its tokens and gives the logits at each.
class Decoder {
 public:
  explicit Decoder(Engine* engine)
      : engine_(engine), pool_({.num_blocks = engine->num_blocks()}), sequence_(&pool_, 0) {}

  // Appends and computes `tokens`, a few at a time; returns [tokens, vocab].
  std::vector<std::vector<float>> Add(const TokenIds& tokens) {
    const auto begin = sequence_.num_computed();
    sequence_.Append(tokens);
    const auto length = static_cast<uint32_t>(sequence_.tokens().size());
    EXPECT_TRUE(sequence_.Reserve(length).ok());
    std::vector<std::vector<float>> logits(
        tokens.size(), std::vector<float>(static_cast<size_t>(engine_->config().vocab_size)));
    for (uint32_t first = begin; first < length; first += engine_->max_rows()) {
      const uint32_t end = std::min(first + engine_->max_rows(), length);
      std::vector<StepRow> rows;
      for (uint32_t position = first; position < end; ++position) {
        rows.push_back({.token = sequence_.tokens()[position],
                        .context = sequence_.CommittedRow(position),
                        .logits = logits[position - begin].data()});
      }
      const absl::Status status = engine_->Step(rows);
      EXPECT_TRUE(status.ok()) << status;
      sequence_.MarkComputed(end);
    }
    return logits;
  }

  // Appends and computes one token; returns its states after `layers`, then the normed one.
  // [layers + 1, hidden]
  std::vector<float> StatesOf(TokenId token, const std::vector<uint32_t>& layers) {
    sequence_.Append({token});
    const auto length = static_cast<uint32_t>(sequence_.tokens().size());
    EXPECT_TRUE(sequence_.Reserve(length).ok());
    FeatureRequest features = {.layers = layers, .final_norm = true};
    std::vector<float> states(features.num_states() * static_cast<size_t>(engine_->config().hidden_size));
    features.states = states.data();
    const StepRow row = {
        .token = token, .context = sequence_.CommittedRow(length - 1), .features = &features};
    const absl::Status status = engine_->Step({row});
    EXPECT_TRUE(status.ok()) << status;
    sequence_.MarkComputed(length);
    return states;
  }

 private:
  Engine* engine_;
  BlockPool pool_;
  SequenceKv sequence_;
};

TokenId Argmax(const std::vector<float>& logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// How far logits may be from those of the reference, which computes in float32, for what the products keep of
// their inputs.
double Tolerance(InstructionSet instruction_set) {
  const KernelTable* kernels = SelectKernels(instruction_set).value();
  return kernels->products[static_cast<size_t>(WeightFormat::kBf16)].input_bits >= 16 ? 2e-4 : 6e-2;
}

// The best, and the best of those that keep at least 16 bits of inputs.
std::vector<InstructionSet> FastInstructionSets() {
  const std::vector<InstructionSet> supported = SupportedInstructionSets();
  std::vector<InstructionSet> fast = {supported.front()};
  for (InstructionSet each : supported) {
    if (Tolerance(each) > 1e-3) continue;
    if (each != supported.front()) fast.push_back(each);
    break;
  }
  return fast;
}

class DemoModel : public testing::TestWithParam<std::string> {};

TEST_P(DemoModel, GivesTheReferenceLogitsAndGreedyTokens) {
  const nlohmann::json golden = ReadJson(absl::StrCat("tests/golden/", GetParam(), ".json"));
  ASSERT_FALSE(golden["cases"].empty());
  for (InstructionSet instruction_set : FastInstructionSets()) {
    SCOPED_TRACE(InstructionSetName(instruction_set));
    const double tolerance = Tolerance(instruction_set);
    const auto engine = OpenEngine(absl::StrCat("deploy/demo-models/", GetParam()), instruction_set);
    ASSERT_NE(engine, nullptr);
    int num_greedy_checked = 0;
    for (const nlohmann::json& test_case : golden["cases"]) {
      SCOPED_TRACE(test_case["label"].get<std::string>());
      Decoder decoder(engine.get());
      std::vector<float> logits = decoder.Add(test_case["prompt_ids"].get<TokenIds>()).back();
      const auto top_ids = test_case["top8_ids"].get<TokenIds>();
      const auto top_logits = test_case["top8_logits"].get<std::vector<float>>();
      for (size_t i = 0; i < top_ids.size(); ++i) {
        EXPECT_NEAR(logits[static_cast<size_t>(top_ids[i])], top_logits[i], tolerance)
            << "token " << top_ids[i];
      }
      // Nearer ties may legitimately go either way.
      if (test_case["min_top1_top2_margin"].get<double>() <= 5 * tolerance) continue;
      ++num_greedy_checked;
      TokenIds greedy;
      const auto expected = test_case["greedy_ids"].get<TokenIds>();
      while (greedy.size() < expected.size()) {
        greedy.push_back(Argmax(logits));
        logits = decoder.Add({greedy.back()}).back();
      }
      EXPECT_EQ(greedy, expected);
    }
    if (tolerance < 1e-3) {
      EXPECT_GT(num_greedy_checked, 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, DemoModel,
                         testing::Values("tandem-target-15m", "tandem-draft-general-1m",
                                         "tandem-draft-code-1m", "tandem-draft-math-1m",
                                         "tandem-draft-general-4m"),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

class TinyModel : public testing::TestWithParam<std::string> {};

TEST_P(TinyModel, GivesTheReferenceLogits) {
  const std::string folder = absl::StrCat("common/model/testdata/", GetParam());
  const nlohmann::json golden = ReadJson(absl::StrCat(folder, "/golden.json"));
  ASSERT_FALSE(golden["sequences"].empty());
  for (InstructionSet instruction_set : SupportedInstructionSets()) {
    const auto engine = OpenEngine(folder, instruction_set);
    ASSERT_NE(engine, nullptr);
    for (const nlohmann::json& sequence : golden["sequences"]) {
      Decoder decoder(engine.get());
      const auto logits = decoder.Add(sequence["tokens"].get<TokenIds>());
      const auto positions = sequence["positions"].get<std::vector<size_t>>();
      const auto expected = sequence["logits"].get<std::vector<std::vector<float>>>();
      for (size_t i = 0; i < positions.size(); ++i) {
        ASSERT_EQ(expected[i].size(), logits[positions[i]].size());
        for (size_t token = 0; token < expected[i].size(); ++token) {
          const float want = expected[i][token];
          ASSERT_NEAR(logits[positions[i]][token], want,
                      0.5 * Tolerance(instruction_set) * (1 + std::abs(want)))
              << "position " << positions[i] << " token " << token;
        }
      }
    }
  }
}

TEST_P(TinyModel, GivesTheReferenceStates) {
  const std::string folder = absl::StrCat("common/model/testdata/", GetParam());
  const nlohmann::json golden = ReadJson(absl::StrCat(folder, "/golden.json"));
  for (InstructionSet instruction_set : SupportedInstructionSets()) {
    const auto engine = OpenEngine(folder, instruction_set);
    ASSERT_NE(engine, nullptr);
    std::vector<uint32_t> layers(static_cast<size_t>(engine->config().num_layers) + 1);
    std::iota(layers.begin(), layers.end(), 0u);
    const auto width = static_cast<size_t>(engine->config().hidden_size);
    for (const nlohmann::json& sequence : golden["sequences"]) {
      TokenIds tokens = sequence["tokens"].get<TokenIds>();
      const TokenId last = tokens.back();
      tokens.pop_back();
      Decoder decoder(engine.get());
      if (!tokens.empty()) decoder.Add(tokens);
      const std::vector<float> states = decoder.StatesOf(last, layers);
      const auto expected = sequence["states"].get<std::vector<std::vector<float>>>();
      ASSERT_EQ(states.size(), expected.size() * width);
      for (size_t state = 0; state < expected.size(); ++state) {
        for (size_t i = 0; i < width; ++i) {
          const float want = expected[state][i];
          ASSERT_NEAR(states[state * width + i], want,
                      0.5 * Tolerance(instruction_set) * (1 + std::abs(want)))
              << "state " << state << " of " << tokens.size() + 1 << " tokens";
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, TinyModel,
                         testing::Values("tiny-llama", "tiny-llama-linear", "tiny-llama3", "tiny-mistral",
                                         "tiny-qwen2", "tiny-qwen3"),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace tandem
