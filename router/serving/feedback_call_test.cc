// What of a request is handed to feedback when it is over.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/rpc/channel.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "router/drafters/feedback/feedback.h"
#include "router/testing/letter_encoder.h"
#include "router/testing/stub_verifier.h"
#include "router/testing/test_router.h"
#include "tandem/v1/generation.grpc.pb.h"

namespace tandem::router {
namespace {

using ::testing::ElementsAre;
using testing::LettersConfig;
using testing::Saying;
using ::testing::SizeIs;
using testing::StartedEvent;
using testing::StubVerifier;
using testing::TestRouter;

// Notes what it is asked and answers that nothing was right.
class NotingScorer final : public Scorer {
 public:
  struct Notes {
    absl::Mutex mutex;
    std::vector<std::pair<FeedbackDrafter, v1::ScoreRequest>> asked ABSL_GUARDED_BY(mutex);

    std::vector<std::pair<FeedbackDrafter, v1::ScoreRequest>> WaitFor(size_t count) {
      const auto enough = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex) { return asked.size() >= count; };
      absl::MutexLock lock(&mutex);
      mutex.AwaitWithTimeout(absl::Condition(&enough), absl::Seconds(60));
      return asked;
    }
  };
  explicit NotingScorer(Notes* notes) : notes_(notes) {}

  void Score(const FeedbackDrafter& drafter, v1::ScoreRequest request, const TraceContext&, absl::Time,
             Done done) override {
    v1::ScoreResponse response;
    response.set_ranks(
        std::string(static_cast<size_t>(request.tokens_size()) - request.prompt_length(), '\0'));
    {
      absl::MutexLock lock(&notes_->mutex);
      notes_->asked.emplace_back(drafter, std::move(request));
    }
    done(std::move(response));
  }

 private:
  Notes* notes_;
};

class SilentSink final : public FeedbackSink {
 public:
  void OnScored(const FeedbackRequest&, const DrafterScore&) override {}
};

class FeedbackCallTest : public ::testing::Test {
 protected:
  grpc::Status Generate(TestRouter& router, const std::string& token,
                        absl::Duration limit = absl::Seconds(60)) {
    const auto stub = v1::Generation::NewStub(CreateChannel(router.endpoint()));
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + token);
    context.set_deadline(absl::ToChronoTime(absl::Now() + limit));
    v1::GenerateRequest request;
    request.set_text("abc");
    request.mutable_sampling()->set_seed(17);
    const auto reader = stub->Generate(&context, request);
    v1::GenerateResponse event;
    while (reader->Read(&event)) {
    }
    return reader->Finish();
  }

  NotingScorer::Notes notes_;
  SilentSink sink_;
  SystemClock clock_;
  MetricsRegistry registry_;
  Feedback feedback_{{.share = 1.0, .draw = [] { return uint64_t{0}; }},
                     std::make_unique<NotingScorer>(&notes_),
                     &sink_,
                     &clock_,
                     &registry_};
};

TEST_F(FeedbackCallTest, AFinishedRequestIsScoredByWhatItsTenantMayUse) {
  StubVerifier verifier;
  verifier.SetScript(Saying("hello", 2));
  TestRouter router(LettersConfig({verifier.endpoint()}), nullptr, &feedback_);
  ASSERT_TRUE(Generate(router, "secret-a").ok());
  const auto asked = notes_.WaitFor(2);
  ASSERT_THAT(asked, SizeIs(2));
  EXPECT_EQ(asked[0].first.name, "code");
  EXPECT_EQ(asked[0].first.endpoint, "drafter:7003");
  EXPECT_EQ(asked[1].first.draft_model, "draft-math");
  const v1::ScoreRequest& request = asked[0].second;
  EXPECT_EQ(request.draft_model(), "draft-code");
  EXPECT_EQ(request.sampling().seed(), 17u);
  EXPECT_EQ(request.vocabulary_fingerprint(), router.router().model(0).vocabulary_fingerprint);
  const std::vector<uint32_t> tokens(request.tokens().begin(), request.tokens().end());
  EXPECT_THAT(std::vector<uint32_t>(tokens.begin() + request.prompt_length(), tokens.end()),
              ElementsAre('h', 'e', 'l', 'l', 'o'));

  ASSERT_TRUE(Generate(router, "secret-z").ok());
  const auto more = notes_.WaitFor(3);
  ASSERT_THAT(more, SizeIs(3));
  EXPECT_EQ(more[2].first.name, "math");
}

TEST_F(FeedbackCallTest, OneThatFailedIsNot) {
  StubVerifier verifier;
  verifier.SetScript([](StubVerifier::Call& call) {
    call.Send(StartedEvent(call.request()));
    call.Send(testing::ChunkEvent(0, "he"));
    call.Finish(absl::InternalError("broken"));
  });
  TestRouter router(LettersConfig({verifier.endpoint()}), nullptr, &feedback_);
  EXPECT_FALSE(Generate(router, "secret-z").ok());
  verifier.SetScript(Saying("later", 5));
  ASSERT_TRUE(Generate(router, "secret-z").ok());
  const auto asked = notes_.WaitFor(1);
  ASSERT_THAT(asked, SizeIs(1));
  EXPECT_EQ(asked[0].second.tokens(asked[0].second.tokens_size() - 1), uint32_t{'r'});
}

// Whoever chooses learns from every request at first, however small the share; a pinned drafter teaches
// nobody.
TEST_F(FeedbackCallTest, WhatTheChoiceLearnsFromIsScored) {
  MetricsRegistry registry;
  Feedback feedback({.share = 1e-9, .draw = [] { return ~uint64_t{0} / 2; }},
                    std::make_unique<NotingScorer>(&notes_), &sink_, &clock_, &registry);
  StubVerifier verifier;
  verifier.SetScript(Saying("hello", 2));
  v1::RouterConfig config = LettersConfig({verifier.endpoint()});
  v1::TenantConfig& zeta = *config.mutable_tenants(1);
  zeta.clear_allowed_drafters();
  zeta.set_drafter_policy(v1::DRAFTER_POLICY_AUTO);
  TestRouter router(config, nullptr, &feedback);
  ASSERT_TRUE(Generate(router, "secret-a").ok());
  ASSERT_TRUE(Generate(router, "secret-z").ok());
  ASSERT_TRUE(Generate(router, "secret-a").ok());
  ASSERT_TRUE(Generate(router, "secret-z").ok());
  const auto asked = notes_.WaitFor(4);
  ASSERT_THAT(asked, SizeIs(4));
  EXPECT_EQ(asked[0].first.name, "code");
  EXPECT_EQ(asked[1].first.name, "math");
  EXPECT_EQ(asked[2].first.name, "code");
  EXPECT_EQ(asked[3].first.name, "math");
}

}  // namespace
}  // namespace tandem::router
