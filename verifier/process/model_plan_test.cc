#include "verifier/process/model_plan.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// "name folder tokens" of each, or what is wrong.
std::vector<std::string> PlanOf(const std::vector<std::string>& models, uint64_t kv_tokens,
                                const std::vector<std::string>& shares = {}) {
  const auto plans = PlanModels(models, kv_tokens, shares);
  if (!plans.ok()) return {std::string(plans.status().message())};
  std::vector<std::string> lines;
  for (const ModelPlan& plan : *plans)
    lines.push_back(plan.spec.name + " " + plan.spec.folder + " " + std::to_string(plan.kv_tokens));
  return lines;
}

TEST(ModelPlanTest, SharesAreEqualOrAsWeighed) {
  EXPECT_THAT(PlanOf({"/m/a"}, 65536), ElementsAre("a /m/a 65536"));
  EXPECT_THAT(PlanOf({"/m/a"}, 65537, {"a=3"}), ElementsAre("a /m/a 65537"));
  EXPECT_THAT(PlanOf({"/m/a", "big=/m/b"}, 65536), ElementsAre("a /m/a 32768", "big /m/b 32768"));
  EXPECT_THAT(PlanOf({"/m/a", "big=/m/b"}, 65536, {"big=3"}), ElementsAre("a /m/a 16384", "big /m/b 49152"));
  EXPECT_THAT(PlanOf({"x=/m/a", "y=/m/a"}, 1000, {"x=0.5", "y=0.5"}),
              ElementsAre("x /m/a 500", "y /m/a 500"));
}

TEST(ModelPlanTest, SharesAreOfTheMemoryWhereNoTokensAreGiven) {
  const auto plans = PlanModels({"/m/a", "big=/m/b"}, 0, {"big=3"}).value();
  EXPECT_EQ(plans[0].kv_tokens, 0u);
  EXPECT_EQ(plans[0].kv_share, 0.25);
  EXPECT_EQ(plans[1].kv_tokens, 0u);
  EXPECT_EQ(plans[1].kv_share, 0.75);
}

TEST(ModelPlanTest, RefusesWhatMakesNoSense) {
  EXPECT_THAT(PlanOf({}, 65536), ElementsAre(HasSubstr("--model: 0 models")));
  EXPECT_THAT(PlanOf({"/m/a", "/n/a"}, 65536), ElementsAre(HasSubstr("\"a\" is used twice")));
  EXPECT_THAT(PlanOf({"/m/a", "/m/b"}, 65536, {"c=2"}),
              ElementsAre(HasSubstr("is not the name of a --model")));
  EXPECT_THAT(PlanOf({"/m/a", "/m/b"}, 65536, {"a=2", "a=3"}), ElementsAre(HasSubstr("given twice")));
  EXPECT_THAT(PlanOf({"/m/a", "/m/b"}, 500), ElementsAre(HasSubstr("expected at least 256")));
  EXPECT_THAT(PlanOf({"/m/a", "/m/b"}, 65536, {"a=1000"}), ElementsAre(HasSubstr("leaves 65 for \"b\"")));
  for (const char* share : {"a", "a=", "=1", "a=0", "a=-1", "a=nan", "a=inf", "a=1e9", "a=x"}) {
    EXPECT_THAT(PlanOf({"/m/a", "/m/b"}, 65536, {share}), ElementsAre(HasSubstr("--kv-share"))) << share;
  }
}

// "model/name folder" of each, or what is wrong.
std::vector<std::string> AdaptersOf(const std::vector<std::string>& models,
                                    const std::vector<std::string>& adapters) {
  auto plans = PlanModels(models, 65536, {}).value();
  const absl::Status status = PlanAdapters(adapters, &plans);
  if (!status.ok()) return {std::string(status.message())};
  std::vector<std::string> lines;
  for (const ModelPlan& plan : plans) {
    for (const ModelSpec& adapter : plan.adapters)
      lines.push_back(plan.spec.name + "/" + adapter.name + " " + adapter.folder);
  }
  return lines;
}

TEST(ModelPlanTest, AdaptersAreOfTheOneModelOrOfTheOneThatIsNamed) {
  EXPECT_THAT(AdaptersOf({"/m/a"}, {"x=/l/x", "a:y=/l/y"}), ElementsAre("a/x /l/x", "a/y /l/y"));
  EXPECT_THAT(AdaptersOf({"/m/a", "/m/b"}, {"b:x=/l/x", "a:x=/l/y"}), ElementsAre("a/x /l/y", "b/x /l/x"));
  EXPECT_THAT(AdaptersOf({"/m/a", "/m/b"}, {"x=/l/x"}), ElementsAre(HasSubstr("there are several")));
  EXPECT_THAT(AdaptersOf({"/m/a"}, {"x=/l/x", "x=/l/y"}), ElementsAre(HasSubstr("unique name")));
  for (const char* const wrong : {"x", "x=", "=/l/x", "a:=/l/x"}) {
    EXPECT_THAT(AdaptersOf({"/m/a"}, {wrong}), ElementsAre(HasSubstr("--adapter"))) << wrong;
  }
}

}  // namespace
}  // namespace tandem
