#include "drafter/models/model_host.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/file.h"
#include "common/base/temporary_folder.h"
#include "common/model/testing/family_fixture.h"
#include "common/model/testing/quantized_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string DemoModel(absl::string_view name) {
  return absl::StrCat(TANDEM_SOURCE_DIR, "/deploy/demo-models/", name);
}

TEST(ModelHostTest, ModelsAreNamedByFlagOrFolder) {
  const auto specs = ParseModelSpecs({"code=/models/a=b", "/models/general/", "math"});
  ASSERT_TRUE(specs.ok()) << specs.status();
  EXPECT_THAT(*specs, ElementsAre(ModelSpec{"code", "/models/a=b"}, ModelSpec{"general", "/models/general"},
                                  ModelSpec{"math", "math"}));
}

TEST(ModelHostTest, RefusesNamesThatCannotBeServed) {
  for (const std::vector<std::string>& values : std::vector<std::vector<std::string>>{
           {}, {""}, {"=folder"}, {"name="}, {"/"}, {"a=x", "a=y"}, {"x/a", "y/a"}}) {
    EXPECT_EQ(ParseModelSpecs(values).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(ModelHostTest, NamesOfPlainHeadsAreThoseOfModels) {
  std::vector<ModelSpec> specs = {{"code", "/models/code"}, {"eagle3", "/models/head"}};
  EXPECT_EQ(MarkPlainHeads({"eagle3"}, /*all_known=*/true, &specs), absl::OkStatus());
  EXPECT_FALSE(specs[0].plain_eagle3);
  EXPECT_TRUE(specs[1].plain_eagle3);
  const absl::Status unknown = MarkPlainHeads({"other"}, /*all_known=*/true, &specs);
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("\"other\", expected the name of a --model"));
  EXPECT_EQ(MarkPlainHeads({"other"}, /*all_known=*/false, &specs), absl::OkStatus());
  // The demo head is plain and says so: there is nothing to take otherwise.
  const absl::Status refused =
      ModelHost::Open({{"eagle3", DemoModel("tandem-eagle3-15m"), true}}, {}, DemoModel("tandem-target-15m"))
          .status();
  EXPECT_THAT(std::string(refused.message()), HasSubstr("field norm_output: --plain-eagle3 expects"));
}

TEST(ModelHostTest, LoadsSeveralModels) {
  auto host = ModelHost::Open(
      {{"code", DemoModel("tandem-draft-code-1m")}, {"general", DemoModel("tandem-draft-general-1m")}});
  ASSERT_TRUE(host.ok()) << host.status();
  EXPECT_EQ((*host)->load_progress(), 0.0);
  ASSERT_TRUE((*host)->Load({.kv_tokens = 1000}).ok());
  EXPECT_EQ((*host)->load_progress(), 1.0);
  const std::vector<DraftModel> models = (*host)->draft_models();
  ASSERT_EQ(models.size(), 2u);
  EXPECT_EQ(models[0].name, "code");
  EXPECT_EQ(models[0].pool->num_blocks(), 63u);
  EXPECT_EQ(models[0].context_length, std::min(1008, models[0].engine->config().max_context));
  EXPECT_EQ(models[0].vocabulary_fingerprint, models[1].vocabulary_fingerprint);
  const ModelHost::Description general = (*host)->descriptions().at(1);
  EXPECT_EQ(general.name, "general");
  EXPECT_EQ(general.vocabulary_fingerprint, models[1].vocabulary_fingerprint);
  EXPECT_EQ(general.model->config().vocab_size, models[1].engine->config().vocab_size);
}

TEST(ModelHostTest, WhatHasFewBitsIsInt8OnACpuWhereNothingIsSaid) {
  const TemporaryFolder folder;
  WriteQuantizedModel(QuantizedGolden("awq"), folder);
  const auto quantized = Model::Load(folder.path());
  ASSERT_TRUE(quantized.ok()) << quantized.status();
  EXPECT_EQ(ModelHost::WeightTypeOf(**quantized, {}), WeightType::kAsInFile) << "has few bits already";
  const auto bf16 = MakeFamilyModel("llama-yarn", TensorView::DType::kBF16);
  EXPECT_EQ(ModelHost::WeightTypeOf(*bf16, {}), WeightType::kInt8);
  const auto f32 = MakeFamilyModel("llama-yarn", TensorView::DType::kF32);
  EXPECT_EQ(ModelHost::WeightTypeOf(*f32, {}), WeightType::kAsInFile);
  EXPECT_EQ(ModelHost::WeightTypeOf(**quantized, {.weight_type = WeightType::kInt4}), WeightType::kInt4);
  EXPECT_EQ(ModelHost::WeightTypeOf(**quantized, {.device = {.is_cuda = true}}), WeightType::kAsInFile);
}

TEST(ModelHostTest, LoadingStopsWhenItShould) {
  auto host = ModelHost::Open(
      {{"code", DemoModel("tandem-draft-code-1m")}, {"general", DemoModel("tandem-draft-general-1m")}});
  ASSERT_TRUE(host.ok()) << host.status();
  // In the second model.
  EXPECT_TRUE(absl::IsCancelled(
      (*host)->Load({.kv_tokens = 1000, .stopped = [&host] { return (*host)->load_progress() > 0.5; }})));
  EXPECT_GT((*host)->load_progress(), 0.5);
  EXPECT_LT((*host)->load_progress(), 1.0);
}

TEST(ModelHostTest, HostsSourcesAndMergesThemWithModels) {
  const auto specs = ParseModelSpecs(
      {absl::StrCat("code=", DemoModel("tandem-draft-code-1m")), "trie", "lookup=ngram:min=2,max=7"});
  ASSERT_TRUE(specs.ok()) << specs.status();
  const auto merges = ParseMergeSpecs({"both=code+suffix:min=3+trie"}, *specs);
  ASSERT_TRUE(merges.ok()) << merges.status();
  auto host = ModelHost::Open(*specs, *merges);
  ASSERT_TRUE(host.ok()) << host.status();
  ASSERT_TRUE((*host)->Load({.kv_tokens = 256}).ok());
  EXPECT_EQ((*host)->load_progress(), 1.0);
  const std::vector<DraftModel> models = (*host)->draft_models();
  ASSERT_EQ(models.size(), 4u);
  EXPECT_TRUE(models[0].sources.empty());
  EXPECT_EQ(models[1].name, "trie");
  EXPECT_EQ(models[1].engine, nullptr);
  EXPECT_EQ(models[1].sources.size(), 1u);
  EXPECT_EQ(models[2].name, "lookup");
  EXPECT_EQ(models[3].name, "both");
  EXPECT_EQ(models[3].engine, models[0].engine);
  EXPECT_EQ(models[3].pool, models[0].pool);
  EXPECT_EQ(models[3].sources.size(), 2u);
  EXPECT_EQ((*host)->descriptions().at(1).model, nullptr);
  EXPECT_EQ((*host)->descriptions().at(3).name, "both");
}

// Every look at it finds that so much time has passed.
class HastyClock final : public Clock {
 public:
  explicit HastyClock(absl::Duration step) : step_(step) {}
  absl::Time Now() const override {
    ++looks_;
    return now_ += step_;
  }
  int passes() const { return looks_ / 2; }

 private:
  const absl::Duration step_;
  mutable int looks_ = 0;
  mutable absl::Time now_ = absl::UnixEpoch();
};

TEST(ModelHostTest, MeasuresAsLongAsThereIsTime) {
  auto host = ModelHost::Open(
      {{"a", DemoModel("tandem-draft-general-1m")}, {"b", DemoModel("tandem-draft-code-1m")}});
  ASSERT_TRUE(host.ok()) << host.status();
  ASSERT_TRUE((*host)->Load({.kv_tokens = 256}).ok());
  for (const auto& [seconds, passes] :
       {std::pair(0.1, 6), std::pair(1.0, 4), std::pair(2.0, 2), std::pair(9.0, 2)}) {
    const HastyClock clock(absl::Seconds(seconds));
    const auto levels = (*host)->MeasureLevels(clock);
    ASSERT_TRUE(levels.ok()) << levels.status();
    EXPECT_EQ(clock.passes(), passes) << seconds << " s each";
    for (const auto& [model, level] : *levels) EXPECT_NEAR(level, seconds, 1e-9);
  }
}

TEST(ModelHostTest, HostsHeadsBesideModels) {
  const std::vector<ModelSpec> specs = {{"eagle3", DemoModel("tandem-eagle3-15m")},
                                        {"medusa", DemoModel("tandem-medusa-15m")}};
  for (const WeightType weight_type : {WeightType::kAsInFile, WeightType::kInt8, WeightType::kInt4}) {
    auto host = ModelHost::Open(specs, {}, DemoModel("tandem-target-15m"));
    ASSERT_TRUE(host.ok()) << host.status();
    ASSERT_TRUE((*host)->Load({.kv_tokens = 256, .weight_type = weight_type}).ok());
    EXPECT_EQ((*host)->load_progress(), 1.0);
    const std::vector<DraftModel> models = (*host)->draft_models();
    ASSERT_EQ(models.size(), 2u);
    EXPECT_EQ(models[0].context_length, 256u);
    EXPECT_EQ(models[1].context_length, 1u << 20) << "Medusa heads hold nothing of a text";
    const auto levels = (*host)->MeasureLevels();
    ASSERT_TRUE(levels.ok()) << levels.status();
    for (const ModelHost::Description& model : (*host)->descriptions()) {
      EXPECT_GT(levels->at(model.model.get()), 0.0) << model.name;
      EXPECT_EQ(HeadKindName(model.model->config().head->kind), model.name);
      EXPECT_EQ(model.vocabulary_fingerprint, models[0].vocabulary_fingerprint);
    }
  }
  const absl::Status none =
      ModelHost::Open({{"mtp", DemoModel("tandem-target-15m")}}, {}, DemoModel("tandem-target-15m")).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(none.message()), HasSubstr("num_nextn_predict_layers: found 0"));
}

// A target's folder without its weights, the demo target's but for config.json.
void WriteTargetVocabulary(absl::string_view config, const TemporaryFolder& folder) {
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
    folder.Write(name, ReadFile(absl::StrCat(DemoModel("tandem-target-15m"), "/", name), 1 << 20).value());
  }
  folder.Write("config.json", config);
}

TEST(ModelHostTest, BridgesModelsToTargetsOfNearlyTheirVocabulary) {
  const std::string config = ReadFile(DemoModel("tandem-target-15m/config.json"), 1 << 20).value();
  const TemporaryFolder same;
  WriteTargetVocabulary(config, same);
  const TemporaryFolder padded;
  WriteTargetVocabulary(absl::StrReplaceAll(config, {{"\"vocab_size\": 4096", "\"vocab_size\": 4160"}}),
                        padded);
  const std::string other = TANDEM_SOURCE_DIR "/common/tokenizer/testdata/llama2";
  const TemporaryFolder foreign;
  WriteTargetVocabulary(absl::StrReplaceAll(config, {{"\"vocab_size\": 4096", "\"vocab_size\": 32000"}}),
                        foreign);
  foreign.Write("tokenizer.json", ReadFile(other + "/tokenizer.json", 64 << 20).value());
  foreign.Remove("tokenizer_config.json");

  const std::vector<ModelSpec> specs = {{"code", DemoModel("tandem-draft-code-1m")},
                                        {"eagle3", DemoModel("tandem-eagle3-15m")}};
  auto host = ModelHost::Open(specs, {}, DemoModel("tandem-target-15m"),
                              {same.path(), padded.path(), foreign.path()});
  ASSERT_TRUE(host.ok()) << host.status();
  ASSERT_TRUE((*host)->Load({.kv_tokens = 256}).ok());
  const DraftModel model = (*host)->draft_models()[0];
  ASSERT_EQ(model.other_vocabularies.size(), 2u) << "one of them is its own";
  const OtherVocabulary& bridged = model.other_vocabularies[0];
  ASSERT_NE(bridged.bridge, nullptr) << bridged.difference;
  EXPECT_EQ(bridged.target, padded.path());
  EXPECT_EQ(bridged.bridge->target_width(), 4160);
  EXPECT_EQ(bridged.difference, "logits of 4096 ids for 4160");
  EXPECT_EQ(*BridgeFor(model, bridged.fingerprint), bridged.bridge.get());
  EXPECT_EQ(model.other_vocabularies[1].bridge, nullptr);
  EXPECT_THAT(std::string(BridgeFor(model, model.other_vocabularies[1].fingerprint).status().message()),
              HasSubstr("ordinary tokens"));
  EXPECT_TRUE((*host)->draft_models()[1].other_vocabularies.empty()) << "of a head";
  EXPECT_EQ((*host)->descriptions()[0].other_vocabularies.size(), 2u);

  const absl::Status missing = ModelHost::Open(specs, {}, "", {"/no/such/folder"}).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("/no/such/folder/config.json"));
}

TEST(ModelHostTest, RefusesMergesThatCannotBeServed) {
  const std::vector<ModelSpec> models = {{"code", "folder"}, {"trie", "trie"}};
  const std::pair<const char*, const char*> wrong[] = {{"x", "expected NAME=MODEL+SOURCE"},
                                                       {"x=code", "expected NAME=MODEL+SOURCE"},
                                                       {"=code+trie", "expected NAME=MODEL+SOURCE"},
                                                       {"code=code+trie", "is used twice"},
                                                       {"x=math+trie", "expected a --model"},
                                                       {"x=trie+ngram", "expected a --model"},
                                                       {"x=code+cache", "expected ngram, suffix or trie"}};
  for (const auto& [value, message] : wrong) {
    const absl::Status status = ParseMergeSpecs({value}, models).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << value;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
  EXPECT_FALSE(ParseMergeSpecs({"x=code+trie", "x=code+ngram"}, models).ok());
  EXPECT_FALSE(ModelHost::Open({{"broken", "ngram:max=99"}}).ok());
}

TEST(ModelHostTest, SaysWhichFolderIsMissing) {
  const absl::Status status = ModelHost::Open({{"a", DemoModel("no-such-model")}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no-such-model"));
}

}  // namespace
}  // namespace tandem
