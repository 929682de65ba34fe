#include "router/generation/generation.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A generation whose host and observer write down what they are asked for and told. Time stands still unless
// a test moves it.
class GenerationTest : public ::testing::Test, public GenerationHost, public GenerationObserver {
 protected:
  class OneAttempt final : public GenerationHost::Attempt {
   public:
    OneAttempt(GenerationTest* test, size_t verifier)
        : test_(*test), index_(verifier), endpoint_(absl::StrCat("v", verifier, ":1")) {}
    ~OneAttempt() override { test_.Did("leave ", endpoint_); }
    const std::string& endpoint() const override { return endpoint_; }
    size_t index() const override { return index_; }
    uint64_t arithmetic() const override { return 7; }
    void Start(const v1::VerifierGenerateRequest& request) override { test_.sent_.push_back(request); }
    void Acknowledge() override { ++test_.acknowledged_; }
    void OnEvent() override {}
    void OnSuccess() override { test_.Did("success"); }
    void OnFailure() override { test_.Did("failure"); }
    void OnChanged() override { test_.Did("changed"); }

   private:
    GenerationTest& test_;
    const size_t index_;
    const std::string endpoint_;
  };

  static v1::GenerateResponse Started(uint32_t max_tokens = 0) {
    v1::GenerateResponse event;
    event.mutable_started()->set_max_tokens(max_tokens);
    return event;
  }
  static v1::GenerateResponse Chunk(uint32_t offset, uint32_t tokens) {
    v1::GenerateResponse event;
    event.mutable_chunk()->set_offset(offset);
    for (uint32_t i = 0; i < tokens; ++i) event.mutable_chunk()->add_tokens(offset + i);
    return event;
  }
  static v1::GenerateResponse Finished() {
    v1::GenerateResponse event;
    event.mutable_finished()->set_reason(v1::FINISH_REASON_STOP_TOKEN);
    event.mutable_finished()->mutable_speculation()->set_policy_state("learned");
    return event;
  }

  // Prepares a request of two tokens.
  void Prepare() {
    auto asked = std::make_shared<v1::GenerateRequest>();
    GenerationFacts& facts = generation_.facts();
    asked_ = asked;
    facts.asked = std::move(asked);
    facts.request.set_model("m");
    facts.request.mutable_prompt()->add_ids(1);
    facts.request.mutable_prompt()->add_ids(2);
    facts.request.mutable_drafter()->set_name("code");
    generation_.OnPrepared({});
  }
  // The client takes what is written to it.
  void Read() {
    while (writing_) {
      writing_ = false;
      generation_.OnWriteDone(/*ok=*/true);
    }
  }

  template <class... Parts>
  void Did(const Parts&... parts) {
    done_.push_back(absl::StrCat(parts...));
  }
  template <class... Parts>
  void Told(const Parts&... parts) {
    told_.push_back(absl::StrCat(parts...));
  }

  absl::Time Now() override { return now_; }
  absl::Duration Uptime() override { return now_ - absl::UnixEpoch(); }
  size_t num_verifiers() override { return num_verifiers_; }
  bool MayServe() override { return serves_; }
  absl::Status NoneServes() override { return absl::UnavailableError("none serves"); }
  bool TakeRetry() override { return has_budget_; }
  absl::StatusOr<std::unique_ptr<Attempt>> BeginAttempt(int, const v1::VerifierGenerateRequest&,
                                                        absl::Span<const size_t> tried,
                                                        const VerifierNeeds& needs) override {
    needs_.push_back(needs);
    if (tried.size() >= num_verifiers_) return absl::ResourceExhaustedError("full");
    return std::make_unique<OneAttempt>(this, tried.size());
  }
  bool StartWaiting() override {
    Did("wait");
    return may_wait_;
  }
  void StopWaiting() override { Did("stop waiting"); }
  void SetTimer(absl::Time when, int number) override {
    timer_ = number;
    Did("timer ", absl::FormatDuration(when - absl::UnixEpoch()));
  }
  void CancelTimer() override { timer_ = 0; }
  void SetWriteTimer(absl::Duration after) override { Did("write timer ", absl::FormatDuration(after)); }
  void Write(const v1::GenerateResponse& event) override {
    EXPECT_FALSE(std::exchange(writing_, true));
    written_.push_back(event);
  }
  void GiveUpPlace(uint32_t num_sent) override { Did("give up place after ", num_sent); }
  void Finish(const absl::Status& status) override {
    EXPECT_FALSE(writing_);
    finished_.push_back(status);
  }

  void OnPrepared(const GenerationFacts&, v1::VerifierGenerateRequest&, absl::Time) override {
    Told("prepared");
  }
  void OnAttempt(const GenerationFacts&, int number, absl::string_view endpoint, absl::Time) override {
    Told("attempt ", number, " on ", endpoint);
  }
  void OnEvent(const GenerationFacts& facts, v1::GenerateResponse& event, absl::Time) override {
    Told(event.has_started() ? "started"
         : event.has_chunk() ? "chunk"
                             : "finished",
         " ", facts.num_sent, event.finished().speculation().policy_state());
  }
  void OnAttemptEnded(const GenerationFacts&, const absl::Status& status, absl::Time) override {
    Told("attempt ended: ", status.message());
  }
  void OnTurn(Turn turn, const absl::Status&, const GenerationFacts&, absl::Time) override {
    Told("turn ", static_cast<int>(turn));
  }
  void OnEnded(const GenerationFacts&, const absl::Status& status, absl::Time) override {
    Told("ended: ", status.message());
  }

  absl::Time now_ = absl::UnixEpoch();
  size_t num_verifiers_ = 2;
  bool serves_ = true;
  bool has_budget_ = true;
  bool may_wait_ = true;
  std::weak_ptr<const v1::GenerateRequest> asked_;
  std::vector<std::string> done_;
  std::vector<std::string> told_;
  std::vector<VerifierNeeds> needs_;
  std::vector<v1::VerifierGenerateRequest> sent_;
  std::vector<v1::GenerateResponse> written_;
  std::vector<absl::Status> finished_;
  bool writing_ = false;
  int timer_ = 0;
  int acknowledged_ = 0;
  Generation generation_{this,
                         {.deadline = absl::UnixEpoch() + absl::Seconds(10),
                          .longest_wait = absl::Seconds(4),
                          .write_stall_timeout = absl::Seconds(3)},
                         {this}};
};

TEST_F(GenerationTest, TellsObserversWhatHappensInOrder) {
  Prepare();
  for (const auto& event : {Started(), Chunk(0, 2), Finished()}) generation_.OnVerifierEvent(1, event);
  generation_.OnVerifierDone(1, absl::OkStatus());
  EXPECT_THAT(finished_, IsEmpty()) << "not before everything is delivered";
  Read();
  EXPECT_THAT(told_, ElementsAre("prepared", "attempt 1 on v0:1", "started 0", "chunk 2", "finished 2learned",
                                 "attempt ended: ", "ended: "));
  EXPECT_THAT(finished_, ElementsAre(absl::OkStatus()));
  ASSERT_EQ(written_.size(), 3u);
  EXPECT_EQ(written_[1].chunk().arithmetic(), 7u);
  EXPECT_EQ(written_[2].finished().speculation().policy_state(), "") << "it stays with the router";
  EXPECT_THAT(done_, ElementsAre("write timer 3s", "success", "leave v0:1", "give up place after 2"));
}

TEST_F(GenerationTest, ContinuesOnAnotherVerifier) {
  Prepare();
  for (const auto& event : {Started(/*max_tokens=*/30), Chunk(0, 2)}) generation_.OnVerifierEvent(1, event);
  Read();
  EXPECT_EQ(acknowledged_, 2);
  generation_.OnVerifierDone(1, absl::UnavailableError("reset"));
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_THAT(sent_[1].emitted().ids(), ElementsAre(0, 1));
  EXPECT_EQ(sent_[1].arithmetic(), 7u);
  EXPECT_EQ(sent_[1].stopping().max_tokens(), 30u) << "the limit of the first verifier holds";
  EXPECT_EQ(needs_[1].arithmetic, 7u);
  EXPECT_EQ(needs_[1].tokens, 32u);
  // What the lost one still sends does not count, and the second `started` is not passed on.
  generation_.OnVerifierEvent(1, Chunk(2, 5));
  generation_.OnVerifierDone(1, absl::OkStatus());
  for (const auto& event : {Started(), Chunk(2, 1), Finished()}) generation_.OnVerifierEvent(2, event);
  generation_.OnVerifierDone(2, absl::OkStatus());
  Read();
  EXPECT_EQ(written_.size(), 4u);
  EXPECT_THAT(finished_, ElementsAre(absl::OkStatus()));
  EXPECT_THAT(told_, ElementsAre("prepared", "attempt 1 on v0:1", "started 0", "chunk 2",
                                 "attempt ended: reset", "turn 0", "attempt 2 on v1:1", "chunk 3",
                                 "finished 3learned", "attempt ended: ", "ended: "));
}

TEST_F(GenerationTest, EndsWhenThereIsNoBudgetForRetries) {
  has_budget_ = false;
  Prepare();
  generation_.OnVerifierDone(1, absl::UnavailableError("reset"));
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_THAT(finished_[0].message(), HasSubstr("budget for retries is used up"));
  EXPECT_THAT(told_, ElementsAre("prepared", "attempt 1 on v0:1", "attempt ended: reset", "turn 1",
                                 ::testing::StartsWith("ended: ")));
}

TEST_F(GenerationTest, WaitsForAVerifierThatServes) {
  serves_ = false;
  Prepare();
  EXPECT_THAT(done_, ElementsAre("wait", "timer 4s"));
  const int timer = timer_;
  serves_ = true;
  generation_.OnVerifierServes();
  EXPECT_EQ(sent_.size(), 1u);
  // The timer may have been on its way.
  generation_.OnTimer(timer);
  generation_.OnVerifierServes();
  EXPECT_EQ(sent_.size(), 1u);
  EXPECT_THAT(told_, ElementsAre("prepared", "turn 2", "turn 3", "attempt 1 on v0:1"));
}

TEST_F(GenerationTest, TriesAtOnceIfTooManyWait) {
  serves_ = may_wait_ = false;
  Prepare();
  EXPECT_THAT(done_, ElementsAre("wait"));
  EXPECT_EQ(sent_.size(), 1u);
  generation_.OnVerifierServes();
  EXPECT_EQ(sent_.size(), 1u) << "it does not wait";
}

TEST_F(GenerationTest, ADeadlineThatPassesDuringAWaitIsTheStatus) {
  serves_ = false;
  now_ += absl::Seconds(7);
  Prepare();
  EXPECT_THAT(done_, ElementsAre("wait", "timer 10s"));
  now_ = generation_.deadline();
  generation_.OnTimer(timer_);
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(GenerationTest, WaitsNoLongerThanItMay) {
  serves_ = false;
  Prepare();
  now_ += absl::Seconds(4);
  generation_.OnTimer(timer_);
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0], absl::UnavailableError("none serves; waited for 4s"));
  EXPECT_THAT(done_, ElementsAre("wait", "timer 4s", "stop waiting", "give up place after 0"));
}

TEST_F(GenerationTest, AClientThatReadsNothingIsBroken) {
  Prepare();
  for (const auto& event : {Started(), Chunk(0, 2)}) generation_.OnVerifierEvent(1, event);
  now_ += absl::Seconds(2);
  Read();
  generation_.OnVerifierEvent(1, Chunk(2, 1));
  EXPECT_EQ(written_.size(), 3u);
  now_ += absl::Seconds(1);
  EXPECT_FALSE(generation_.OnWriteTimer()) << "this write began 1 s ago";
  now_ += absl::Seconds(2);
  EXPECT_TRUE(generation_.OnWriteTimer());
  EXPECT_TRUE(generation_.ended());
  writing_ = false;
  generation_.OnWriteDone(/*ok=*/false);
  EXPECT_THAT(finished_, IsEmpty()) << "the connection is being broken";
  generation_.OnClientBroken();
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(GenerationTest, NothingIsWrittenToAClientThatIsGone) {
  Prepare();
  for (const auto& event : {Started(), Chunk(0, 2), Finished()}) generation_.OnVerifierEvent(1, event);
  generation_.OnClientGone();
  EXPECT_THAT(finished_, IsEmpty()) << "a write is in flight";
  Read();
  EXPECT_EQ(written_.size(), 1u);
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].code(), absl::StatusCode::kCancelled);
}

TEST_F(GenerationTest, AFailedWriteMeansThatTheClientIsGone) {
  Prepare();
  for (const auto& event : {Started(), Chunk(0, 2)}) generation_.OnVerifierEvent(1, event);
  writing_ = false;
  generation_.OnWriteDone(/*ok=*/false);
  EXPECT_EQ(written_.size(), 1u);
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(acknowledged_, 0);
}

TEST_F(GenerationTest, AVerifierThatBreaksTheProtocolEndsItBehindWhatIsQueued) {
  Prepare();
  for (const auto& event : {Started(), Chunk(0, 2), Chunk(5, 1)}) generation_.OnVerifierEvent(1, event);
  EXPECT_TRUE(generation_.ended());
  EXPECT_THAT(finished_, IsEmpty()) << "a write is in flight";
  Read();
  EXPECT_EQ(written_.size(), 2u);
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].code(), absl::StatusCode::kInternal);
}

TEST_F(GenerationTest, WhatTheClientAskedForDoesNotStayInMemory) {
  Prepare();
  EXPECT_TRUE(asked_.expired());
}

TEST_F(GenerationTest, ACancellationAtTheDeadlineIsTheDeadline) {
  Prepare();
  now_ = generation_.deadline() - absl::Milliseconds(10);
  generation_.OnClientGone();
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(GenerationTest, TheFirstStatusHolds) {
  Prepare();
  generation_.OnVerifierEvent(1, Started());
  generation_.Abandon(absl::UnavailableError("shutting down"));
  generation_.Abandon(absl::InternalError("later"));
  generation_.OnClientGone();
  Read();
  EXPECT_THAT(finished_, ElementsAre(absl::UnavailableError("shutting down")));
  EXPECT_THAT(done_, ElementsAre("write timer 3s", "leave v0:1", "give up place after 0"));
}

TEST_F(GenerationTest, ASwapHoldsForLaterAttempts) {
  Prepare();
  v1::DrafterTarget other;
  other.set_name("other");
  EXPECT_EQ(generation_.Rebind("unknown", other), nullptr);
  const GenerationHost::Attempt* const attempt = generation_.Rebind("code", other);
  ASSERT_NE(attempt, nullptr);
  EXPECT_EQ(attempt->endpoint(), "v0:1");
  generation_.OnVerifierDone(1, absl::UnavailableError("reset"));
  EXPECT_EQ(sent_.back().drafter().name(), "other");
}

}  // namespace
}  // namespace tandem::router
