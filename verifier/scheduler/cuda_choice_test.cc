// Requests on a GPU's engine, emulated, from their submission to their last token: the device's choices give
// the output that the host's give, with speculation and without.

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/engine/cpu/testing/random_model.h"
#include "common/engine/cuda/cuda_engine.h"
#include "common/engine/cuda/testing/host_ops.h"
#include "common/testing/fake_constraint.h"
#include "verifier/testing/scheduler_test_fixture.h"

namespace tandem {
namespace {

// Counts what is asked of an engine, and takes its choices away where it should not make any.
class ObservedEngine final : public Engine {
 public:
  ObservedEngine(Engine* engine, bool chooses) : engine_(engine), chooses_(chooses) {}

  const ModelConfig& config() const override { return engine_->config(); }
  uint32_t num_blocks() const override { return engine_->num_blocks(); }
  uint32_t max_rows() const override { return engine_->max_rows(); }
  bool chooses() const override { return chooses_ && engine_->chooses(); }
  absl::Status Step(absl::Span<const StepRow> rows) override {
    Count(rows);
    return engine_->Step(rows);
  }
  absl::Status Start(absl::Span<const StepRow> rows) override {
    Count(rows);
    return engine_->Start(rows);
  }
  absl::Status Finish() override { return engine_->Finish(); }
  bool overlaps() const override { return engine_->overlaps(); }
  absl::Status CopyKv(absl::Span<const KvCopy> copies) override { return engine_->CopyKv(copies); }

  uint64_t num_logits = 0;
  uint64_t num_choices = 0;

 private:
  void Count(absl::Span<const StepRow> rows) {
    for (const StepRow& row : rows) {
      num_logits += row.logits != nullptr;
      num_choices += row.choice != nullptr;
    }
  }

  Engine* const engine_;
  const bool chooses_;
};

const FakeConstraint::Options kAllowed = {.vocab_size = kVocabSize};

class CudaChoiceTest : public SchedulerTest {
 protected:
  void OpenEngine(WeightType weight_type) {
    ModelConfig config;
    config.architecture = "Qwen3ForCausalLM";
    config.hidden_size = 24;
    config.num_layers = 2;
    config.num_heads = 4;
    config.num_kv_heads = 2;
    config.head_dim = 8;
    config.intermediate_size = 40;
    config.vocab_size = kVocabSize;
    config.max_context = 200;
    config.qk_norm = true;
    const auto model = MakeRandomModel({.config = config, .dtype = TensorView::DType::kBF16});
    ASSERT_NE(model, nullptr);
    auto engine = CudaEngine::Create(*model, {.num_blocks = 48, .max_rows = 64, .weight_type = weight_type},
                                     std::make_unique<HostOps>(HostOps::Options{.seed = 3}));
    ASSERT_TRUE(engine.ok()) << engine.status();
    gpu_ = *std::move(engine);
  }

  std::map<SessionId, Ask> Asks(bool drafted) const {
    std::vector<SamplingParameters> samplings = {
        {.temperature = 0.0f},
        {.temperature = 0.8f, .seed = 7},
        {.temperature = 1.3f, .top_k = 9, .top_p = 0.9f, .min_p = 0.02f, .seed = 8},
        {.temperature = 0.7f, .repetition_penalty = 1.3f, .frequency_penalty = 0.7f, .seed = 9},
        {.temperature = 0.8f, .seed = 10}};
    samplings[4].logit_bias = {{3, 1.0f}, {4, -100.0f}};
    // Three tokens take turns: every choice depends on how often each stands on the path to it.
    samplings.push_back({.temperature = 0.0f, .frequency_penalty = 0.5f});
    samplings[5].logit_bias = {{7, 50.0f}, {8, 50.0f}, {9, 50.0f}};
    // Some tokens never come, and others not before the output is half as long as it gets.
    samplings.push_back({.temperature = 0.9f,
                         .seed = 12,
                         .banned_tokens = {3, 4, 5, 31, 32},
                         .early_banned_tokens = {6, 7},
                         .early_ban_end = 15});
    std::map<SessionId, Ask> asks;
    for (SessionId id = 1; id <= samplings.size(); ++id) {
      asks[id] = {.sampling = samplings[id - 1], .rules = {.max_tokens = 18}, .drafted = drafted};
      asks[id].prompt.push_back(static_cast<TokenId>(id));
    }
    return asks;
  }

  // The same under a constraint, which leaves about a third of the tokens, and in places none but those that
  // session 7 bans: it is not among them.
  std::map<SessionId, Ask> ConstrainedAsks(bool drafted) const {
    std::map<SessionId, Ask> asks = Asks(drafted);
    asks.erase(7);
    for (auto& [id, ask] : asks) {
      ask.rules.stop_tokens = {FakeConstraint::kEnd};
      if (id != 2) ask.constraint = [] { return std::make_unique<FakeConstraint>(kAllowed); };
    }
    return asks;
  }

  // Runs `asks` side by side and returns their outputs. A drafter that knows them drafts chains of which the
  // first tokens are right.
  std::map<SessionId, TokenIds> Run(const std::map<SessionId, Ask>& asks, bool chooses,
                                    const std::map<SessionId, TokenIds>& known = {}) {
    observed_ = std::make_unique<ObservedEngine>(gpu_.get(), chooses);
    engine_ = std::make_unique<SteppingEngine>(observed_.get(), &clock_, observed_->overlaps());
    pool_ = std::make_unique<BlockPool>(BlockPool::Options{.num_blocks = gpu_->num_blocks()});
    scheduler_ = std::make_unique<Scheduler>(FixedWindow(4), engine_.get(), pool_.get(),
                                             RoundTimeModel({{1, 0.002}, {64, 0.002}}), &clock_, this);
    records_.clear();
    drafts_.clear();
    scheduler_->OnLinkUp(kLink);
    for (const auto& [id, ask] : asks) EXPECT_TRUE(Submit(id, ask).ok());
    for (int turn = 0; turn < 500 && scheduler_->NextWake() < absl::InfiniteFuture(); ++turn) {
      AnswerOpens();
      for (const auto& [id, output] : known) {
        DraftOutput(id, asks.at(id).prompt, output, static_cast<uint32_t>((id + turn) % 4), 1);
      }
      const absl::Time wake = scheduler_->NextWake();
      if (wake > clock_.Now() && wake < absl::InfiniteFuture()) clock_.Advance(wake - clock_.Now());
      scheduler_->Step();
    }
    std::map<SessionId, TokenIds> outputs;
    for (const auto& [id, record] : records_) {
      EXPECT_TRUE(record.ends.size() == 1 && record.ends[0].ok()) << "session " << id;
      outputs[id] = record.tokens;
    }
    return outputs;
  }

  std::unique_ptr<CudaEngine> gpu_;
  std::unique_ptr<ObservedEngine> observed_;
};

class CudaChoiceWeights : public CudaChoiceTest, public testing::WithParamInterface<WeightType> {};

TEST_P(CudaChoiceWeights, OutputsAreThoseOfTheHostsChoice) {
  ASSERT_NO_FATAL_FAILURE(OpenEngine(GetParam()));
  const std::map<SessionId, TokenIds> plain = Run(Asks(/*drafted=*/false), /*chooses=*/false);
  ASSERT_EQ(plain.size(), 7u);
  EXPECT_EQ(plain.at(1).size(), 18u);
  EXPECT_EQ(observed_->num_choices, 0u);
  EXPECT_EQ(Run(Asks(/*drafted=*/false), /*chooses=*/true), plain);
  EXPECT_EQ(observed_->num_choices, 7 * 18u);
  EXPECT_EQ(observed_->num_logits, 0u);
  EXPECT_EQ(Run(Asks(/*drafted=*/true), /*chooses=*/true, plain), plain);
  EXPECT_EQ(observed_->num_logits, 0u);
  for (const auto& [id, record] : records_) {
    EXPECT_GT(record.summary.accepted_tokens, 3u) << "session " << id;
    EXPECT_GT(record.summary.draft_tokens, record.summary.accepted_tokens) << "session " << id;
  }
  std::map<SessionId, Ask> mixed = Asks(/*drafted=*/true);
  mixed[2].num_logprobs = 0;
  mixed[4].num_logprobs = 3;
  EXPECT_EQ(Run(mixed, /*chooses=*/true, plain), plain);
  EXPECT_GT(observed_->num_logits, 10u);
  EXPECT_GT(observed_->num_choices, 10u);
  EXPECT_TRUE(violations_.empty());
}

TEST_P(CudaChoiceWeights, ConstrainedOutputsAreThoseOfTheHostsChoice) {
  ASSERT_NO_FATAL_FAILURE(OpenEngine(GetParam()));
  const std::map<SessionId, TokenIds> plain = Run(ConstrainedAsks(/*drafted=*/false), /*chooses=*/false);
  ASSERT_EQ(plain.size(), 6u);
  for (const auto& [id, output] : plain) {
    for (size_t i = 0; i < output.size() && id != 2; ++i) {
      EXPECT_TRUE(FakeConstraint::Allows(kAllowed, absl::MakeConstSpan(output).first(i), output[i]));
    }
  }
  EXPECT_EQ(Run(ConstrainedAsks(/*drafted=*/false), /*chooses=*/true), plain);
  EXPECT_EQ(observed_->num_logits, 0u);
  EXPECT_GT(observed_->num_choices, 6 * 10u);
  EXPECT_EQ(Run(ConstrainedAsks(/*drafted=*/true), /*chooses=*/true, plain), plain);
  EXPECT_EQ(observed_->num_logits, 0u);
  for (const auto& [id, record] : records_) {
    EXPECT_GT(record.summary.accepted_tokens, 1u) << "session " << id;
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaChoiceWeights,
                         testing::Values(WeightType::kAsInFile, WeightType::kInt8, WeightType::kInt4,
                                         WeightType::kFp8),
                         [](const auto& param_info) {
                           return std::string(WeightTypeName(param_info.param));
                         });

}  // namespace
}  // namespace tandem
