// Feedback over gRPC from two drafters, one of which takes scores and never answers.
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/rpc/server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/drafters/feedback/feedback.h"
#include "router/drafters/feedback/score_client.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kLongest = absl::Seconds(60);

// Scores every output as guessed in half, or hangs.
class ScoringDrafter final : public v1::Drafter::CallbackService {
 public:
  ScoringDrafter()
      : server_(ServerRunner::Start({.listen_address = "127.0.0.1:0"},
                                    {{v1::Drafter::service_full_name(), this}}, {})
                    .value()) {}
  ~ScoringDrafter() override { server_.reset(); }

  FeedbackDrafter AsCandidate(const std::string& name) const { return {name, server_->address(), name}; }
  void Hang(bool hangs) { hangs_ = hangs; }
  int num_calls() const { return num_calls_; }

  grpc::ServerUnaryReactor* Score(grpc::CallbackServerContext*, const v1::ScoreRequest* request,
                                  v1::ScoreResponse* response) override {
    class Call final : public grpc::ServerUnaryReactor {
     public:
      explicit Call(bool hangs) : hangs_(hangs) {
        if (!hangs) Finish(grpc::Status::OK);
      }
      void OnCancel() override {
        if (hangs_) Finish(grpc::Status::CANCELLED);
      }
      void OnDone() override { delete this; }

     private:
      const bool hangs_;
    };
    ++num_calls_;
    const size_t output = static_cast<size_t>(request->tokens_size()) - request->prompt_length();
    std::string ranks(output, '\0');
    for (size_t i = 0; i < output / 2; ++i) ranks[i] = '\x01';
    response->set_accepted_tokens(static_cast<uint32_t>(output / 2));
    response->set_ranks(std::move(ranks));
    return new Call(hangs_);
  }

 private:
  std::atomic<bool> hangs_{false};
  std::atomic<int> num_calls_{0};
  std::unique_ptr<ServerRunner> server_;
};

class CountingSink final : public FeedbackSink {
 public:
  void OnScored(const FeedbackRequest&, const DrafterScore& score) override {
    absl::MutexLock lock(&mutex_);
    ++scores_[score.drafter];
  }
  // Waits until there are so many, but not for ever; returns how many there are.
  int WaitFor(const std::string& drafter, int count) {
    absl::MutexLock lock(&mutex_);
    const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return scores_[drafter] >= count; };
    mutex_.AwaitWithTimeout(absl::Condition(&enough), kLongest);
    return scores_[drafter];
  }

 private:
  absl::Mutex mutex_;
  std::map<std::string, int> scores_ ABSL_GUARDED_BY(mutex_);
};

TEST(HangingDrafterTest, TheOthersGoOn) {
  SystemClock clock;
  MetricsRegistry registry;
  CountingSink sink;
  ScoringDrafter good;
  ScoringDrafter hanging;
  hanging.Hang(true);
  const std::vector<FeedbackDrafter> both = {good.AsCandidate("good"), hanging.AsCandidate("hanging")};
  // Longer than the test waits for anything: nothing below happens because a score timed out.
  auto feedback = std::make_unique<Feedback>(
      Feedback::Options{
          .share = 1.0, .slots = {.timeout = 10 * kLongest}, .draw = [] { return uint64_t{0}; }},
      std::make_unique<ScoreClient>(), &sink, &clock, &registry);
  const auto offer = [&](const std::vector<FeedbackDrafter>& candidates) {
    FeedbackRequest request{.tenant = "acme", .model = "m", .drafter = "good", .prompt_length = 2};
    request.tokens = {1, 2, 3, 4, 5, 6};
    feedback->Offer(std::move(request), candidates);
  };
  offer({both[0]});
  ASSERT_EQ(sink.WaitFor("good", 1), 1);
  // The first of these waits for the one that hangs; those that come after it do not.
  offer(both);
  constexpr int kRequests = 40;
  for (int i = 1; i <= kRequests; ++i) {
    offer(both);
    ASSERT_EQ(sink.WaitFor("good", 1 + i), 1 + i);
  }
  EXPECT_LE(hanging.num_calls(), 1);
  const std::string text = registry.Expose();
  EXPECT_THAT(text,
              HasSubstr(absl::StrCat(
                  "tandem_router_feedback_withheld_total{drafter=\"hanging\",reason=\"busy\"} ", kRequests)));
  EXPECT_THAT(text, HasSubstr("tandem_router_feedback_requests_total{outcome=\"incomplete\"} "));
  // The incomplete request also teaches the sink, once feedback gives up on the hanging drafter.
  feedback.reset();
  EXPECT_EQ(sink.WaitFor("good", 2 + kRequests), 2 + kRequests);
}

TEST(HangingDrafterTest, OneThatHangsIsGivenUpAndAskedAgain) {
  SystemClock clock;
  MetricsRegistry registry;
  CountingSink sink;
  ScoringDrafter good;
  ScoringDrafter hanging;
  hanging.Hang(true);
  const std::vector<FeedbackDrafter> both = {good.AsCandidate("good"), hanging.AsCandidate("hanging")};
  Feedback feedback({.share = 1.0,
                     .slots = {.timeout = absl::Seconds(1), .first_pause = absl::Milliseconds(1)},
                     .draw = [] { return uint64_t{0}; }},
                    std::make_unique<ScoreClient>(), &sink, &clock, &registry);
  for (int i = 1; i <= 3; ++i) {
    FeedbackRequest request{.tenant = "acme", .model = "m", .drafter = "good", .prompt_length = 2};
    request.tokens = {1, 2, 3, 4, 5, 6};
    feedback.Offer(std::move(request), both);
    ASSERT_EQ(sink.WaitFor("good", i), i) << "the answer is used when the other drafter has timed out";
  }
  hanging.Hang(false);
  // Until its pause is over.
  for (const absl::Time end = absl::Now() + kLongest; absl::Now() < end && sink.WaitFor("hanging", 0) == 0;) {
    FeedbackRequest request{.tenant = "acme", .model = "m", .drafter = "good", .prompt_length = 2};
    request.tokens = {1, 2, 3, 4, 5, 6};
    const int known = sink.WaitFor("good", 0);
    feedback.Offer(std::move(request), both);
    ASSERT_EQ(sink.WaitFor("good", known + 1), known + 1);
  }
  EXPECT_GT(sink.WaitFor("hanging", 1), 0);
}

}  // namespace
}  // namespace tandem::router
