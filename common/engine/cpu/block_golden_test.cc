// DFlash heads against what their trainers' code computes with them
// (common/model/testdata/make_tiny_blocks.py), and law 1 for their rows.

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/temporary_folder.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/sequence_kv.h"
#include "common/model/model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;
using BlockNumbers = std::vector<float>;

std::string BlockFolder(absl::string_view name) {
  return absl::StrCat(TANDEM_SOURCE_DIR, "/common/model/testdata/heads/", name);
}

Json ReadJsonOf(absl::string_view name, const char* file) {
  return Json::parse(ReadFile(absl::StrCat(BlockFolder(name), "/", file), 16 << 20).value());
}

// A copy of a head in which some fields of config.json are others.
absl::StatusOr<std::shared_ptr<const Model>> LoadBlock(absl::string_view name, const Json& patch = {}) {
  const TemporaryFolder copy;
  Json config = ReadJsonOf(name, "config.json");
  if (!patch.is_null()) config.merge_patch(patch);
  copy.Write("config.json", config.dump());
  copy.Write("model.safetensors", ReadFile(BlockFolder(name) + "/model.safetensors", 16 << 20).value());
  return Model::Load(copy.path());
}

// The text of a golden file in an engine, as a session gives it: row j has the token at j + 1 and the states
// behind the one at j.
class BlockRows {
 public:
  BlockRows(Engine* engine, const Json& golden)
      : engine_(engine), pool_({.num_blocks = engine->num_blocks()}), sequence_(&pool_, 0) {
    tokens_ = golden["tokens"].get<TokenIds>();
    for (const Json& states : golden["states"]) states_.push_back(states.get<BlockNumbers>());
    inputs_.resize(states_.size());
    for (size_t i = 0; i < states_.size(); ++i) inputs_[i] = {.values = states_[i]};
    sequence_.Append(absl::MakeConstSpan(tokens_).subspan(1));
    EXPECT_TRUE(sequence_.Reserve(static_cast<uint32_t>(states_.size())).ok());
  }

  StepRow Row(size_t index, float* logits) {
    return {.token = tokens_[index + 1],
            .context = sequence_.CommittedRow(static_cast<uint32_t>(index)),
            .logits = logits,
            .state = &inputs_[index]};
  }
  // Computes rows up to an anchor in one step, or each in one of its own, and returns the anchor's logits.
  BlockNumbers LogitsAt(size_t anchor, bool together) {
    BlockNumbers logits(engine_->config().logits_size());
    std::vector<StepRow> rows;
    for (size_t i = 0; i < anchor; ++i) rows.push_back(Row(i, i + 1 == anchor ? logits.data() : nullptr));
    for (size_t i = 0; i < rows.size(); i += together ? rows.size() : 1) {
      const absl::Status stepped =
          engine_->Step(absl::MakeConstSpan(rows).subspan(i, together ? rows.size() : 1));
      EXPECT_TRUE(stepped.ok()) << stepped;
    }
    return logits;
  }
  size_t size() const { return states_.size(); }
  Engine& engine() { return *engine_; }

 private:
  Engine* const engine_;
  BlockPool pool_;
  SequenceKv sequence_;
  TokenIds tokens_;
  std::vector<BlockNumbers> states_;
  std::vector<InputState> inputs_;
};

// How far the logits of all blocks are from the reference's, at most.
float ErrorOf(Engine* engine, const Json& golden) {
  float most = 0;
  BlockRows rows(engine, golden);
  for (const Json& block : golden["blocks"]) {
    const BlockNumbers logits = rows.LogitsAt(block["anchor"].get<size_t>(), /*together=*/true);
    BlockNumbers expected;
    for (const Json& position : block["logits"]) {
      for (const Json& logit : position) {
        expected.push_back(logit.is_null() ? -std::numeric_limits<float>::infinity() : logit.get<float>());
      }
    }
    EXPECT_EQ(logits.size(), expected.size());
    for (size_t i = 0; i < std::min(logits.size(), expected.size()); ++i) {
      EXPECT_EQ(std::isinf(logits[i]), std::isinf(expected[i])) << i;
      if (std::isfinite(expected[i])) most = std::max(most, std::abs(logits[i] - expected[i]));
    }
  }
  return most;
}

float ErrorWith(absl::string_view name, const Json& patch) {
  const auto model = LoadBlock(name, patch);
  EXPECT_TRUE(model.ok()) << model.status();
  if (!model.ok()) return 0;
  const auto engine =
      CreateCpuEngine(*model, {.num_blocks = 8, .instruction_set = InstructionSet::kPortable}).value();
  return ErrorOf(engine.get(), ReadJsonOf(name, "golden.json"));
}

constexpr const char* kBlockHeads[] = {"dflash-specforge", "dflash-speculators", "dflash-speculators-anchor",
                                       "dspark-speculators", "dspark-deepspec"};

class BlockGolden : public testing::TestWithParam<const char*> {};

TEST_P(BlockGolden, GivesTheReferencesLogits) {
  const Json golden = ReadJsonOf(GetParam(), "golden.json");
  const auto model = Model::Load(BlockFolder(GetParam()));
  ASSERT_TRUE(model.ok()) << model.status();
  const HeadConfig& head = *(*model)->config().head;
  EXPECT_EQ(HeadKindName(head.kind), "dflash");
  EXPECT_EQ(head.feature_layers, golden["taps"].get<std::vector<uint32_t>>());
  EXPECT_EQ(static_cast<size_t>(head.num_positions), golden["blocks"][0]["logits"].size());
  for (const InstructionSet instruction_set : SupportedInstructionSets()) {
    auto engine = CreateCpuEngine(*model, {.num_blocks = 8, .instruction_set = instruction_set});
    ASSERT_TRUE(engine.ok()) << engine.status();
    EXPECT_LT(ErrorOf(engine->get(), golden), 2e-5) << InstructionSetName(instruction_set);
  }
}

// Law 1: the logits of an anchor follow from its own context, whatever rows and anchors are with it, in
// whatever steps, on any number of threads.
TEST_P(BlockGolden, AnchorsDoNotDependOnTheirCompany) {
  const Json golden = ReadJsonOf(GetParam(), "golden.json");
  const auto model = Model::Load(BlockFolder(GetParam()));
  ASSERT_TRUE(model.ok()) << model.status();
  std::vector<BlockNumbers> alone;
  for (const int num_threads : {1, 3}) {
    // A pass holds four blocks.
    const auto engine =
        CreateCpuEngine(*model, {.num_blocks = 8, .max_rows = 17, .num_threads = num_threads}).value();
    BlockRows rows(engine.get(), golden);
    for (size_t anchor = 1; anchor <= rows.size() && num_threads == 1; ++anchor) {
      alone.push_back(rows.LogitsAt(anchor, /*together=*/false));
    }
    std::vector<BlockNumbers> all(rows.size(), BlockNumbers((*model)->config().logits_size()));
    std::vector<StepRow> step;
    for (size_t i = 0; i < rows.size(); ++i) step.push_back(rows.Row(i, all[i].data()));
    const absl::Status stepped = engine->Step(step);
    ASSERT_TRUE(stepped.ok()) << stepped;
    EXPECT_EQ(all, alone) << num_threads << " threads";
  }
}

// DSpark: a block's greedy tokens, each chosen with what the one before it adds.
TEST(DSparkGolden, GivesTheReferencesChain) {
  for (const char* const name : {"dspark-speculators", "dspark-deepspec"}) {
    const Json golden = ReadJsonOf(name, "golden.json");
    const auto model = Model::Load(BlockFolder(name));
    ASSERT_TRUE(model.ok()) << model.status();
    for (const InstructionSet instruction_set : SupportedInstructionSets()) {
      const auto engine =
          CreateCpuEngine(*model, {.num_blocks = 8, .num_threads = 2, .instruction_set = instruction_set})
              .value();
      BlockRows rows(engine.get(), golden);
      const auto vocab_size = static_cast<size_t>((*model)->config().vocab_size);
      for (const Json& block : golden["blocks"]) {
        const auto anchor = block["anchor"].get<size_t>();
        BlockNumbers logits = rows.LogitsAt(anchor, /*together=*/true);
        auto before = golden["tokens"][anchor].get<TokenId>();
        TokenIds chain;
        for (size_t k = 0; k < block["chain"].size(); ++k) {
          const absl::Span<float> level = absl::MakeSpan(logits).subspan(k * vocab_size, vocab_size);
          ASSERT_TRUE(engine->AddTokenBefore(before, level).ok());
          for (size_t token = 0; token < vocab_size; ++token) {
            const Json& expected = block["chain_logits"][k][token];
            ASSERT_EQ(expected.is_null(), std::isinf(level[token]));
            if (expected.is_null()) continue;
            EXPECT_NEAR(level[token], expected.get<float>(), 2e-5) << k << " " << token;
          }
          before = static_cast<TokenId>(std::max_element(level.begin(), level.end()) - level.begin());
          chain.push_back(before);
        }
        EXPECT_EQ(chain, block["chain"].get<TokenIds>()) << name << " at " << anchor;
      }
      BlockNumbers logits(vocab_size);
      EXPECT_EQ(engine->AddTokenBefore(-1, absl::MakeSpan(logits)).code(),
                absl::StatusCode::kInvalidArgument);
      EXPECT_EQ(engine->AddTokenBefore(static_cast<TokenId>(vocab_size), absl::MakeSpan(logits)).code(),
                absl::StatusCode::kInvalidArgument);
      EXPECT_EQ(engine->AddTokenBefore(0, absl::MakeSpan(logits).first(3)).code(),
                absl::StatusCode::kInvalidArgument);
    }
  }
  const auto plain =
      CreateCpuEngine(Model::Load(BlockFolder("dflash-specforge")).value(), {.num_blocks = 8}).value();
  BlockNumbers logits(48);
  EXPECT_EQ(plain->AddTokenBefore(0, absl::MakeSpan(logits)).code(), absl::StatusCode::kUnimplemented);
}

INSTANTIATE_TEST_SUITE_P(Formats, BlockGolden, testing::ValuesIn(kBlockHeads), [](const auto& param_info) {
  std::string name = param_info.param;
  std::erase(name, '-');
  return name;
});

// Each of these would load with another's value and give other numbers.
TEST(BlockFieldsTest, MatterToTheOutput) {
  const Json all_full = Json::array({"full_attention", "full_attention", "full_attention"});
  EXPECT_LT(ErrorWith("dflash-specforge", nullptr), 2e-5);
  for (const Json& patch :
       {Json{{"is_causal", false}}, Json{{"is_causal", true}}, Json{{"layer_types", all_full}},
        Json{{"sliding_window", 4}}, Json{{"dflash_config", {{"causal", true}}}},
        Json{{"dflash_config", {{"mask_token_id", 45}}}}}) {
    EXPECT_GT(ErrorWith("dflash-specforge", patch), 0.01) << patch;
  }
  for (const Json& patch : {Json{{"sliding_window_non_causal", true}}, Json{{"mask_token_id", 45}}}) {
    EXPECT_GT(ErrorWith("dflash-speculators", patch), 0.01) << patch;
  }
  EXPECT_GT(ErrorWith("dflash-speculators-anchor", {{"sliding_window_non_causal", false}}), 0.01);
}

// The same fields where newer files have them.
TEST(BlockFieldsTest, StandInTheFileOrInTheObject) {
  EXPECT_LT(ErrorWith("dflash-specforge", {{"block_size", nullptr}, {"dflash_config", {{"block_size", 4}}}}),
            2e-5);
  EXPECT_LT(
      ErrorWith("dflash-specforge", {{"mask_token_id", 46}, {"dflash_config", {{"mask_token_id", nullptr}}}}),
      2e-5);
}

TEST(BlockEngineTest, RefusesWhatItDoesNotGive) {
  const auto model = Model::Load(BlockFolder("dflash-specforge"));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(std::string(CreateCpuEngine(*model, {.num_blocks = 8, .max_rows = 3}).status().message()),
              HasSubstr("max_rows is 3; expected at least 4, the slots of the head's block"));
  const auto engine = CreateCpuEngine(*model, {.num_blocks = 8}).value();
  EXPECT_FALSE(engine->has_features());
  EXPECT_FALSE(engine->has_adapters());
  BlockRows rows(engine.get(), ReadJsonOf("dflash-specforge", "golden.json"));
  BlockNumbers logits(engine->config().logits_size()), states(32);
  const uint32_t layer = 3;
  const FeatureRequest request{.layers = absl::MakeConstSpan(&layer, 1), .states = states.data()};
  StepRow row = rows.Row(0, logits.data());
  row.features = &request;
  EXPECT_EQ(engine->Step({&row, 1}).code(), absl::StatusCode::kInvalidArgument);
  const InputState own{.values = states, .own = true};
  row = rows.Row(0, logits.data());
  row.state = &own;
  EXPECT_EQ(engine->Step({&row, 1}).code(), absl::StatusCode::kInvalidArgument);
  // The slots of a pass are nobody else's.
  const SlotId beyond = 8 * kBlockTokens;
  row = rows.Row(0, logits.data());
  row.context = {.tail = absl::MakeConstSpan(&beyond, 1)};
  EXPECT_EQ(engine->Step({&row, 1}).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tandem
