#include "drafter/model_host.h"

#include "absl/strings/str_cat.h"
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

TEST(ModelHostTest, SaysWhichFolderIsMissing) {
  const absl::Status status = ModelHost::Open({{"a", DemoModel("no-such-model")}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no-such-model"));
}

}  // namespace
}  // namespace tandem
