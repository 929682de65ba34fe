// Experts by themselves: which a row takes, with which weights, what of them is read, and in which order it
// adds them up.

#include "common/engine/cpu/expert_stage.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "common/engine/cpu/kernels.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;

constexpr int32_t kHidden = 5;
constexpr int32_t kIntermediate = 3;
constexpr int32_t kExperts = 4;

// An expert's matrices, every number of each the same.
struct Constants {
  float gate = 1.0f;
  float up = 1.0f;
  float down = 1.0f;
};

PackedMatrix Packed(const std::vector<float>& numbers, int64_t outputs, const KernelTable& kernels,
                    ThreadTeam* team) {
  const TensorView view = {.dtype = TensorView::DType::kF32,
                           .shape = {outputs, static_cast<int64_t>(numbers.size()) / outputs},
                           .data = numbers.data()};
  return PackedMatrix::Pack({view}, WeightFormat::kF32, kernels, team).value();
}

class StageUnderTest {
 public:
  StageUnderTest(const ExpertsDescription& experts, const std::vector<float>& router,
                 const std::vector<Constants>& constants, int num_threads = 2)
      : team_(ThreadTeam::Create(num_threads).value()) {
    config_.hidden_size = kHidden;
    config_.block.experts = experts;
    stage_ = ExpertStage::Create(config_, kernels_, team_.get(), /*max_rows=*/3).value();
    inputs_ = ProductInputs::Allocate(kernels_, 3, kHidden).value();
    weights_.router = Packed(router, static_cast<int64_t>(router.size()) / kHidden, kernels_, team_.get());
    for (const Constants& each : constants) {
      const size_t size = size_t{kHidden} * kIntermediate;
      CpuWeights::Mlp& mlp = weights_.each.emplace_back();
      mlp.gate = Packed(std::vector<float>(size, each.gate), kIntermediate, kernels_, team_.get());
      mlp.up = Packed(std::vector<float>(size, each.up), kIntermediate, kernels_, team_.get());
      mlp.down = Packed(std::vector<float>(size, each.down), kHidden, kernels_, team_.get());
    }
  }

  // The first number of each row's sum.
  std::vector<float> Run(const std::vector<std::vector<float>>& rows) {
    for (size_t i = 0; i < rows.size(); ++i) {
      std::copy(rows[i].begin(), rows[i].end(), inputs_.floats().row(static_cast<uint32_t>(i)));
    }
    stage_->BeginStep();
    const auto num_rows = static_cast<uint32_t>(rows.size());
    team_->Run([&](int thread) { stage_->Run(thread, weights_, inputs_, num_rows); });
    std::vector<float> sums;
    for (uint32_t i = 0; i < num_rows; ++i) sums.push_back(stage_->sum(i)[0]);
    return sums;
  }

  const ExpertStage& stage() const { return *stage_; }

 private:
  const KernelTable& kernels_ = PortableKernels();
  std::unique_ptr<ThreadTeam> team_;
  ModelConfig config_;
  std::unique_ptr<ExpertStage> stage_;
  ProductInputs inputs_;
  CpuWeights::Experts weights_;
};

// Router rows: expert e has `logits[e]` for inputs whose first number is 1 and others 0.
std::vector<float> Router(const std::vector<float>& logits) {
  std::vector<float> router;
  for (const float logit : logits) {
    router.push_back(logit);
    router.resize(router.size() + kHidden - 1, 0.0f);
  }
  return router;
}

const std::vector<float> kUnit = {1, 0, 0, 0, 0};

// Of an expert of constants c and the input kUnit.
float Output(const Constants& c) {
  return static_cast<float>(kIntermediate) * c.down * (c.gate / (1 + std::exp(-c.gate)) * c.up);
}

TEST(ExpertStage, WeighsExpertsByTheirSoftmax) {
  const std::vector<Constants> constants = {{1, 1, 1}, {2, 1, 1}, {1, 3, 1}, {1, 1, 4}};
  const std::vector<float> logits = {0.5f, 2.0f, -1.0f, 1.0f};
  for (const bool over_chosen : {false, true}) {
    StageUnderTest stage({.num_experts = kExperts,
                          .num_chosen = 2,
                          .intermediate_size = kIntermediate,
                          .scores_add_up_to_one = over_chosen},
                         Router(logits), constants);
    double total = 0;
    for (const size_t expert : {0, 1, 2, 3}) {
      if (!over_chosen || expert == 1 || expert == 3) total += std::exp(logits[expert]);
    }
    const double expected =
        (std::exp(logits[1]) * Output(constants[1]) + std::exp(logits[3]) * Output(constants[3])) / total;
    EXPECT_NEAR(stage.Run({kUnit}).front(), expected, 1e-5 * expected) << over_chosen;
    EXPECT_EQ(stage.stage().num_read(), 2u);
  }
}

// Weights that are not numbers would show in the sum, whatever they are multiplied with.
TEST(ExpertStage, OfEqualExpertsTheFirstAreTakenAndTheOthersNotRead) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const ExpertsDescription experts = {
      .num_experts = kExperts, .num_chosen = 2, .intermediate_size = kIntermediate};
  StageUnderTest equal(experts, Router({1, 1, 1, 1}), {{1, 1, 1}, {1, 1, 2}, {nan, nan, nan}, {nan, 1, 1}});
  EXPECT_NEAR(equal.Run({kUnit, kUnit, kUnit}).at(2), 1.5f * Output({}), 1e-5);
  // Three rows, two experts.
  EXPECT_EQ(equal.stage().num_read(), 2u);
  StageUnderTest last(experts, Router({0, 3, 2, 3}), {{nan, 1, 1}, {1, 1, 1}, {nan, 1, 1}, {1, 1, 2}});
  EXPECT_NEAR(last.Run({kUnit}).front(), 1.5f * Output({}), 1e-5);
  StageUnderTest second(experts, Router({0, 2, 2, 3}), {{nan, 1, 1}, {1, 1, 1}, {nan, 1, 1}, {1, 1, 1}});
  EXPECT_FALSE(std::isnan(second.Run({kUnit}).front()));
}

// Whatever a router of a spoilt file says, a row takes as many experts as it should, each once.
TEST(ExpertStage, RoutersOfNoNumbersHarmOnlyTheirRow) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  StageUnderTest stage({.num_experts = kExperts, .num_chosen = 3, .intermediate_size = kIntermediate},
                       Router({1, 1, 1, 1}), {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}});
  const std::vector<float> alone = stage.Run({kUnit});
  const std::vector<float> together = stage.Run({{nan, 0, 0, 0, 0}, kUnit});
  EXPECT_TRUE(std::isnan(together.at(0)));
  EXPECT_EQ(together.at(1), alone.front());
  EXPECT_EQ(stage.stage().num_read(), 3u);
}

// Sums of numbers of very different sizes, which depend on their order.
TEST(ExpertStage, ARowAddsInTheOrderOfExpertsWhoeverElseTakesThem) {
  const std::vector<Constants> constants = {{1, 1, 1e8f}, {1, 1, 1}, {1, 1, -1e8f}, {1, 1, 0.3f}};
  const ExpertsDescription experts = {
      .num_experts = kExperts, .num_chosen = 4, .intermediate_size = kIntermediate};
  // The logits of the second row are the other way round.
  std::vector<float> router = Router({0.1f, 0.2f, 0.3f, 0.4f});
  for (size_t expert = 0; expert < kExperts; ++expert) {
    router[expert * kHidden + 1] = -router[expert * kHidden];
  }
  StageUnderTest one(experts, router, constants, /*num_threads=*/1);
  const std::vector<float> other = {0, 1, 0, 0, 0};
  const float alone = one.Run({kUnit}).front();
  for (const int num_threads : {1, 2, 3}) {
    StageUnderTest stage(experts, router, constants, num_threads);
    const std::vector<float> sums = stage.Run({other, kUnit, other});
    EXPECT_EQ(sums.at(1), alone);
    EXPECT_EQ(sums.at(0), sums.at(2));
  }
}

TEST(ExpertStage, TheSharedExpertHasAGateOfItsOwn) {
  // One output more than there are experts.
  StageUnderTest stage(
      {.num_experts = kExperts, .num_chosen = 1, .intermediate_size = kIntermediate, .shared_size = 7},
      Router({0, 0, 0, 0, 1.5f}), {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}});
  EXPECT_THAT(stage.Run({kUnit}), ElementsAre(testing::FloatNear(Output({}), 1e-5f)));
  EXPECT_NEAR(stage.stage().SharedWeight(0), 1 / (1 + std::exp(-1.5)), 1e-6);
}

}  // namespace
}  // namespace tandem
