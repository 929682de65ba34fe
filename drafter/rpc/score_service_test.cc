// Drafter.Score over gRPC.

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/rpc/server.h"
#include "common/testing/fake_engine.h"
#include "drafter/models/model_host.h"
#include "drafter/rpc/service.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kFingerprint = 0xabcd;

v1::ScoreRequest Request(int num_tokens) {
  v1::ScoreRequest request;
  request.set_draft_model("draft");
  request.set_vocabulary_fingerprint(kFingerprint);
  for (int i = 0; i < num_tokens; ++i) request.add_tokens((3 + 7 * i) % 64);
  request.set_prompt_length(10);
  request.mutable_sampling()->set_temperature(0.0f);
  return request;
}

class ScoreServiceTest : public ::testing::Test {
 protected:
  ScoreServiceTest() {
    auto server = ServerRunner::Start({.listen_address = "127.0.0.1:0"},
                                      {{v1::Drafter::service_full_name(), &service_}}, {});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = v1::Drafter::NewStub(server_->InProcessChannel());
  }

  void Serve() {
    DraftModel model{.name = "draft",
                     .engine = &engine_,
                     .pool = &pool_,
                     .vocabulary_fingerprint = kFingerprint,
                     .context_length = 4096};
    service_.Serve({}, {model});
  }

  grpc::Status Score(const v1::ScoreRequest& request, v1::ScoreResponse* response,
                     std::chrono::seconds limit = std::chrono::seconds(60)) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + limit);
    return stub_->Score(&context, request, response);
  }

  FakeEngine engine_{{}};
  BlockPool pool_{{.num_blocks = 256}};
  MetricsRegistry registry_;
  DrafterMetrics metrics_{&registry_};
  DrafterService service_{&metrics_};
  std::unique_ptr<ServerRunner> server_;
  std::unique_ptr<v1::Drafter::Stub> stub_;
};

TEST_F(ScoreServiceTest, ScoresAnOutputAndCountsIt) {
  v1::ScoreResponse response;
  EXPECT_EQ(Score(Request(50), &response).error_code(), grpc::StatusCode::UNAVAILABLE);
  Serve();
  const grpc::Status status = Score(Request(50), &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.ranks().size(), 40u);
  EXPECT_EQ(response.prompt_tokens(), 9u);
  EXPECT_GT(response.prompt_negative_log_likelihood(), 0.0);
  v1::ScoreRequest bad = Request(50);
  bad.set_prompt_length(51);
  EXPECT_EQ(Score(bad, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  const std::string text = registry_.Expose();
  EXPECT_THAT(text, HasSubstr("tandem_drafter_scores_total{outcome=\"ok\"} 1"));
  EXPECT_THAT(text, HasSubstr("tandem_drafter_scores_total{outcome=\"invalid_argument\"} 1"));
  EXPECT_THAT(text, HasSubstr("tandem_drafter_score_seconds_count 1"));
}

TEST_F(ScoreServiceTest, ManyCallersAreServed) {
  Serve();
  std::vector<std::future<std::string>> ranks;
  for (int i = 0; i < 16; ++i) {
    ranks.push_back(std::async(std::launch::async, [this] {
      v1::ScoreResponse response;
      const grpc::Status status = Score(Request(300), &response);
      return status.ok() ? response.ranks() : status.error_message();
    }));
  }
  const std::string first = ranks[0].get();
  EXPECT_EQ(first.size(), 290u);
  for (size_t i = 1; i < ranks.size(); ++i) EXPECT_EQ(ranks[i].get(), first);
}

// Nothing is left for scores in these, so that they wait for as long as anyone lets them.
class WaitingScoreTest : public ScoreServiceTest {
 protected:
  WaitingScoreTest() {
    while (const std::optional<BlockId> block = pool_.Allocate()) taken_.push_back(*block);
    Serve();
  }
  ~WaitingScoreTest() override {
    service_.Stop();
    for (BlockId block : taken_) pool_.Release(block);
  }

  // Starts a call and returns when its score waits.
  void Start(grpc::ClientContext* context) {
    stub_->async()->Score(context, &request_, &response_,
                          [this](grpc::Status status) { ended_.set_value(std::move(status)); });
    AwaitScores(1);
  }
  void AwaitScores(uint32_t count) const {
    while (service_.stats().num_scores != count) std::this_thread::yield();
  }

  const v1::ScoreRequest request_ = Request(50);
  v1::ScoreResponse response_;
  std::promise<grpc::Status> ended_;
  std::vector<BlockId> taken_;
};

TEST_F(WaitingScoreTest, TheDeadlineEndsAScore) {
  EXPECT_EQ(Score(request_, &response_, std::chrono::seconds(1)).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  AwaitScores(0);
}

TEST_F(WaitingScoreTest, ACancelledCallEndsItsScore) {
  grpc::ClientContext context;
  Start(&context);
  context.TryCancel();
  EXPECT_EQ(ended_.get_future().get().error_code(), grpc::StatusCode::CANCELLED);
  AwaitScores(0);
  EXPECT_EQ(service_.stats().answered_scores.at(absl::StatusCode::kCancelled), 1u);
}

TEST_F(WaitingScoreTest, DrainingEndsScores) {
  grpc::ClientContext context;
  Start(&context);
  service_.Drain(absl::Now() + absl::Seconds(60));
  EXPECT_EQ(ended_.get_future().get().error_code(), grpc::StatusCode::UNAVAILABLE);
  v1::ScoreResponse response;
  EXPECT_EQ(Score(request_, &response).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(WaitingScoreTest, StoppingEndsScores) {
  grpc::ClientContext context;
  Start(&context);
  service_.Stop();
  EXPECT_EQ(ended_.get_future().get().error_code(), grpc::StatusCode::UNAVAILABLE);
}

// What greedy one-token drafts of a real model would have had accepted.
class DemoModelScore : public ::testing::TestWithParam<float> {};

TEST_P(DemoModelScore, AgreesWithDrafting) {
  const std::string folder = absl::StrCat(TANDEM_SOURCE_DIR, "/deploy/demo-models/tandem-draft-");
  auto host = ModelHost::Open({{"general", folder + "general-1m"}, {"code", folder + "code-1m"}});
  ASSERT_TRUE(host.ok()) << host.status();
  ASSERT_TRUE((*host)->Load({.kv_tokens = 2048}).ok());
  const SystemClock clock;
  DraftCore core({}, (*host)->draft_models(), &clock);
  const DraftModel writer = (*host)->draft_models()[1];
  const SamplingParameters sampling{.temperature = GetParam(), .seed = 5};

  // The other model writes: its first guess below each token, one at a time.
  TokenIds tokens = {4090, 500, 600, 700};
  const uint32_t prompt_length = static_cast<uint32_t>(tokens.size());
  uint32_t epoch = 0;
  const auto first_guess = [&](absl::string_view model) {
    core.OnRequest(1, {.session = 1,
                       .event = OpenSession{.epoch = ++epoch,
                                            .draft_model = std::string(model),
                                            .vocabulary_fingerprint = writer.vocabulary_fingerprint,
                                            .tokens = tokens,
                                            .prefix_hash = ExtendPrefixHash(kEmptyPrefixHash, tokens),
                                            .sampling = sampling,
                                            .prompt_length = prompt_length,
                                            .budget = {.depth = 1, .nodes = 1, .branching = 1}}});
    while (core.HasWork()) core.Step();
    TokenId guess = -1;
    for (const auto& [link, response] : core.TakeResponses()) {
      const auto* grow = std::get_if<Grow>(&response.event);
      if (grow != nullptr && !grow->tokens.empty()) guess = grow->tokens[0];
    }
    core.OnRequest(1, {.session = 1, .event = CloseSession{}});
    return guess;
  };
  std::vector<uint8_t> right;
  while (right.size() < 60) {
    const TokenId token = first_guess("code");
    ASSERT_GE(token, 0);
    right.push_back(first_guess("general") == token ? 1 : 0);
    tokens.push_back(token);
  }
  core.OnScore(1,
               {.draft_model = "general",
                .vocabulary_fingerprint = writer.vocabulary_fingerprint,
                .tokens = tokens,
                .prompt_length = prompt_length,
                .sampling = sampling},
               absl::InfiniteFuture());
  while (core.HasWork()) core.Step();
  std::vector<ScoreAnswer> answers = core.TakeScores();
  ASSERT_EQ(answers.size(), 1u);
  ASSERT_TRUE(answers[0].result.ok()) << answers[0].result.status();
  std::vector<uint8_t> first;
  for (uint8_t rank : answers[0].result->ranks) first.push_back(rank == 1 ? 1 : 0);
  EXPECT_EQ(first, right);
  EXPECT_GT(answers[0].result->accepted_tokens, 10u);
}

INSTANTIATE_TEST_SUITE_P(Temperatures, DemoModelScore, ::testing::Values(0.0f, 0.8f));

}  // namespace
}  // namespace tandem
