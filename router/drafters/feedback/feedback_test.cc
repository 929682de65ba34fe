#include "router/drafters/feedback/feedback.h"

#include <algorithm>
#include <map>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/tracing/testing/span_collector.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// Keeps what it is asked until the test answers.
class FakeScorer final : public Scorer {
 public:
  struct Asked {
    FeedbackDrafter drafter;
    v1::ScoreRequest request;
    TraceContext trace;
    absl::Time deadline;
    Done done;
  };
  explicit FakeScorer(std::vector<Asked>* asked) : asked_(asked) {}
  ~FakeScorer() override {
    for (Asked& one : *asked_) {
      if (one.done) std::exchange(one.done, nullptr)(absl::CancelledError("over"));
    }
  }
  void Score(const FeedbackDrafter& drafter, v1::ScoreRequest request, const TraceContext& trace,
             absl::Time deadline, Done done) override {
    asked_->push_back({drafter, std::move(request), trace, deadline, std::move(done)});
  }

 private:
  std::vector<Asked>* asked_;
};

class FakeSink final : public FeedbackSink {
 public:
  std::optional<double> PredictAcceptance(const FeedbackRequest&, absl::string_view drafter) const override {
    const auto found = predictions.find(std::string(drafter));
    if (found == predictions.end()) return std::nullopt;
    return found->second;
  }
  void OnScored(const FeedbackRequest& request, const DrafterScore& score) override {
    scored.emplace_back(request.tenant, score.drafter, score.acceptance);
    last = score;
  }

  std::optional<double> RealisedThroughput(const FeedbackRequest&) const override { return realised; }
  void OnScoreAnswered(const FeedbackRequest&, absl::string_view drafter, bool is_answer) override {
    answered.emplace_back(drafter, is_answer);
  }

  std::optional<double> realised;
  std::vector<std::pair<std::string, bool>> answered;
  std::map<std::string, double> predictions;
  std::vector<std::tuple<std::string, std::string, double>> scored;
  DrafterScore last;
};

class FeedbackTest : public ::testing::Test {
 protected:
  void Make(double share = 1.0, uint32_t slots = 8) {
    feedback_ =
        std::make_unique<Feedback>(Feedback::Options{.share = share,
                                                     .max_tokens = 100,
                                                     .slots = {.per_drafter = slots, .timeout = kTimeout},
                                                     .draw = [this] { return bits_ += 0x9e3779b97f4a7c15; }},
                                   std::make_unique<FakeScorer>(&asked_), &sink_, &clock_, &registry_);
  }
  // One request is scored, so that both drafters have all their slots.
  void Prove() {
    feedback_->Offer(Finished("code"), kBoth);
    Answer(asked_.size() - 1, Right(1));
    Answer(asked_.size() - 2, Right(1));
    asked_.clear();
    sink_.scored.clear();
  }

  static v1::VerifierGenerateRequest Request(const std::string& drafter) {
    v1::VerifierGenerateRequest request;
    request.set_tenant("acme");
    request.set_model("letters");
    for (uint32_t id : {7u, 8u, 9u}) request.mutable_prompt()->add_ids(id);
    request.mutable_sampling()->set_seed(42);
    request.set_cache_salt(5);
    if (!drafter.empty()) request.mutable_drafter()->set_name(drafter);
    return request;
  }
  // A sampled request with ten output tokens.
  FeedbackRequest Finished(const std::string& drafter) {
    std::optional<FeedbackRequest> sampled = feedback_->Sample(Request(drafter), 99, false);
    EXPECT_TRUE(sampled.has_value());
    for (uint32_t i = 0; i < 10; ++i) sampled->tokens.push_back(20 + i);
    return *std::move(sampled);
  }
  static v1::ScoreResponse Right(uint32_t accepted, bool remembers = false) {
    v1::ScoreResponse response;
    std::string ranks(10, '\0');
    for (uint32_t i = 0; i < accepted; ++i) ranks[i] = '\x01';
    response.set_ranks(ranks);
    response.set_accepted_tokens(accepted);
    response.set_prompt_negative_log_likelihood(6.0);
    response.set_prompt_tokens(2);
    response.set_remembers_outputs(remembers);
    return response;
  }
  void Answer(size_t index, absl::StatusOr<v1::ScoreResponse> response) {
    std::exchange(asked_.at(index).done, nullptr)(std::move(response));
  }

  static constexpr absl::Duration kTimeout = absl::Seconds(5);
  const std::vector<FeedbackDrafter> kBoth = {{"code", "c:1", "draft-code"}, {"math", "m:1", "draft-math"}};
  uint64_t bits_ = 0;
  ManualClock clock_;
  MetricsRegistry registry_;
  std::vector<FakeScorer::Asked> asked_;
  FakeSink sink_;
  std::unique_ptr<Feedback> feedback_;
};

TEST_F(FeedbackTest, EveryCandidateIsAskedWhatItWouldHaveGuessed) {
  Make();
  feedback_->Offer(Finished("code"), kBoth);
  ASSERT_THAT(asked_, SizeIs(2));
  EXPECT_EQ(asked_[1].drafter.endpoint, "m:1");
  const v1::ScoreRequest& request = asked_[1].request;
  EXPECT_EQ(request.draft_model(), "draft-math");
  EXPECT_EQ(request.vocabulary_fingerprint(), 99u);
  EXPECT_EQ(request.tokens_size(), 13);
  EXPECT_EQ(request.prompt_length(), 3u);
  EXPECT_EQ(request.sampling().seed(), 42u);
  EXPECT_EQ(request.cache_salt(), 5u);
  EXPECT_EQ(asked_[1].deadline, clock_.Now() + absl::Seconds(5));
  EXPECT_EQ(feedback_->in_flight(), 1u);

  sink_.predictions = {{"math", 0.75}};
  Answer(1, Right(5));
  EXPECT_THAT(sink_.scored, IsEmpty());
  Answer(0, Right(3));
  using Scored = std::tuple<std::string, std::string, double>;
  EXPECT_THAT(sink_.scored, ElementsAre(Scored("acme", "code", 0.3), Scored("acme", "math", 0.5)));
  EXPECT_EQ(sink_.last.output_tokens, 10u);
  EXPECT_EQ(sink_.last.prompt_negative_log_likelihood, 3.0);
  EXPECT_EQ(feedback_->in_flight(), 0u);

  const std::string text = registry_.Expose();
  EXPECT_THAT(text, HasSubstr("tandem_router_feedback_requests_total{outcome=\"scored\"} 1"));
  EXPECT_THAT(text, HasSubstr("tandem_router_acceptance_error_sum{drafter=\"math\",tenant=\"acme\"} 0.25"));
  EXPECT_THAT(text, Not(HasSubstr("tandem_router_acceptance_error_sum{drafter=\"code\",tenant=\"acme\"}")));
  EXPECT_THAT(text, HasSubstr("tandem_router_feedback_chosen_total{drafter=\"code\",tenant=\"acme\"} 1"));
  EXPECT_THAT(text, HasSubstr("tandem_router_feedback_best_total{drafter=\"math\",tenant=\"acme\"} 1"));
}

TEST_F(FeedbackTest, EveryScoreIsASpanOfTheRequestsTrace) {
  Make();
  SpanCollector collector;
  uint64_t ids = 100;
  const Tracer tracer({.sink = &collector, .draw = [&ids] { return ++ids; }});
  const TraceContext parent{.trace_high = 1, .trace_low = 2, .span_id = 3, .sampled = true, .state = "v=1"};
  FeedbackRequest request = Finished("code");
  request.trace = std::make_shared<Span>(
      tracer.StartServer("call", parent, clock_.Now()).Child("feedback", SpanKind::kInternal, clock_.Now()));
  const TraceContext feedback = request.trace->context();
  feedback_->Offer(std::move(request), kBoth);
  ASSERT_THAT(asked_, SizeIs(2));
  clock_.Advance(absl::Seconds(1));
  Answer(0, Right(3));
  Answer(1, absl::NotFoundError("no such model"));
  const std::vector<SpanRecord> spans = collector.spans();
  ASSERT_THAT(spans, SizeIs(3));
  for (const size_t i : {0, 1}) {
    EXPECT_EQ(spans[i].name, "tandem.v1.Drafter/Score");
    EXPECT_EQ(spans[i].parent_id, feedback.span_id);
    EXPECT_EQ(FormatTraceparent(asked_[i].trace), FormatTraceparent(spans[i].context));
    EXPECT_EQ(asked_[i].trace.state, "v=1");
  }
  EXPECT_FALSE(spans[0].failed);
  EXPECT_TRUE(spans[1].failed);
  EXPECT_EQ(spans[2].name, "feedback");
  EXPECT_EQ(spans[2].end - spans[2].start, absl::Seconds(1));
}

TEST_F(FeedbackTest, RegretIsWhatTheBestCandidateWouldHaveGained) {
  struct Case {
    const char* chosen;
    uint32_t code;
    uint32_t math;
    double regret;
    const char* best;
  };
  const auto gain = [](double acceptance) { return FeedbackSink::TokensPerRound(acceptance); };
  for (const Case& one : {Case{"code", 5, 5, 0.0, "code"}, Case{"math", 5, 5, 0.0, "math"},
                          Case{"code", 3, 5, 1.0 - gain(0.3) / gain(0.5), "math"},
                          Case{"", 0, 5, 1.0 - 1.0 / gain(0.5), "math"}, Case{"", 0, 0, 0.0, "none"},
                          Case{"code", 10, 5, 0.0, "code"}}) {
    MetricsRegistry registry;
    asked_.clear();
    Feedback feedback({.share = 1.0, .draw = [] { return uint64_t{0}; }},
                      std::make_unique<FakeScorer>(&asked_), &sink_, &clock_, &registry);
    FeedbackRequest request = *feedback.Sample(Request(one.chosen), 99, false);
    request.tokens.resize(13);
    feedback.Offer(std::move(request), kBoth);
    Answer(0, Right(one.code));
    Answer(1, Right(one.math));
    const std::string text = registry.Expose();
    EXPECT_THAT(text, HasSubstr("tandem_router_regret_ratio_count{tenant=\"acme\"} 1"));
    const std::string sum = "tandem_router_regret_ratio_sum{tenant=\"acme\"} ";
    const size_t at = text.find(sum);
    ASSERT_NE(at, std::string::npos);
    EXPECT_NEAR(std::stod(text.substr(at + sum.size())), one.regret, 1e-6) << one.chosen;
    EXPECT_THAT(text, HasSubstr("tandem_router_feedback_best_total{drafter=\"" + std::string(one.best) +
                                "\",tenant=\"acme\"} 1"));
  }
}

TEST_F(FeedbackTest, AShareIsSampledAndAllThatIsLearnedFrom) {
  Make(0.25);
  int sampled = 0;
  for (int i = 0; i < 4000; ++i) sampled += feedback_->Sample(Request("code"), 1, false).has_value() ? 1 : 0;
  EXPECT_NEAR(sampled, 1000, 120);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(feedback_->Sample(Request("code"), 1, true).has_value());
  feedback_.reset();
  MetricsRegistry registry;
  Feedback none({.share = 0.0, .draw = [] { return uint64_t{0}; }}, std::make_unique<FakeScorer>(&asked_),
                &sink_, &clock_, &registry);
  EXPECT_FALSE(none.Sample(Request("code"), 1, false).has_value());
  EXPECT_FALSE(none.Sample(Request("code"), 1, true).has_value());
}

TEST_F(FeedbackTest, WhatWouldHaveToWaitIsDropped) {
  Make(1.0, /*slots=*/2);
  Prove();
  for (int i = 0; i < 5; ++i) feedback_->Offer(Finished("code"), kBoth);
  EXPECT_THAT(asked_, SizeIs(4));
  EXPECT_EQ(feedback_->in_flight(), 2u);
  const std::string text = registry_.Expose();
  EXPECT_THAT(text, HasSubstr("tandem_router_feedback_requests_total{outcome=\"dropped\"} 3"));
  EXPECT_THAT(text, HasSubstr("tandem_router_feedback_withheld_total{drafter=\"math\",reason=\"busy\"} 3"));
  Answer(0, Right(1));
  Answer(1, Right(1));
  feedback_->Offer(Finished("code"), kBoth);
  EXPECT_THAT(asked_, SizeIs(6));
}

TEST_F(FeedbackTest, OneThatHangsHoldsUpNoOther) {
  Make(1.0, /*slots=*/2);
  Prove();
  for (int i = 0; i < 5; ++i) {
    feedback_->Offer(Finished("math"), kBoth);
    for (FakeScorer::Asked& one : asked_) {
      if (one.drafter.name == "math" && one.done) std::exchange(one.done, nullptr)(Right(4));
    }
  }
  // The last three were not offered to the one that hangs; the first two wait for it.
  EXPECT_THAT(sink_.scored, SizeIs(3));
  EXPECT_EQ(feedback_->in_flight(), 2u);
  EXPECT_THAT(registry_.Expose(), HasSubstr("tandem_router_regret_ratio_count{tenant=\"acme\"} 4"));
  // By what it took before, its answer is late long before the longest time that it may take.
  EXPECT_EQ(asked_[0].drafter.name, "code");
  EXPECT_EQ(asked_[0].deadline - clock_.Now(), absl::Seconds(1));
  clock_.Advance(absl::Seconds(1));
  for (FakeScorer::Asked& one : asked_) {
    if (one.done) std::exchange(one.done, nullptr)(absl::DeadlineExceededError("hangs"));
  }
  EXPECT_THAT(sink_.scored, SizeIs(5)) << "what the others answered is learned as soon as it gives up";
  for (const auto& [tenant, drafter, acceptance] : sink_.scored) EXPECT_EQ(drafter, "math");
  EXPECT_EQ(feedback_->in_flight(), 0u);
  EXPECT_THAT(registry_.Expose(), HasSubstr("tandem_router_regret_ratio_count{tenant=\"acme\"} 6"));

  asked_.clear();
  feedback_->Offer(Finished("math"), kBoth);
  EXPECT_THAT(asked_, SizeIs(1));
  EXPECT_THAT(registry_.Expose(),
              HasSubstr("tandem_router_feedback_withheld_total{drafter=\"code\",reason=\"backoff\"} 1"));
}

// Ten simulated minutes of a request every tenth of a second and three drafters, one of which hangs for the
// first half. What is left to chance is how long answers take.
TEST_F(FeedbackTest, LearningGoesOnWhileADrafterHangs) {
  constexpr uint64_t kSeed = 20261123;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  std::mt19937_64 random(kSeed);
  Make(1.0, /*slots=*/4);
  const std::vector<FeedbackDrafter> three = {
      {"hangs", "h:1", "draft"}, {"quick", "q:1", "draft"}, {"slow", "s:1", "draft"}};
  const absl::Time start = clock_.Now();
  const absl::Time mended = start + absl::Minutes(5);
  std::multimap<absl::Time, FakeScorer::Asked> answers;
  absl::Duration longest;
  int num_offered = 0;
  int num_hung = 0;
  const auto scores_of = [this](absl::string_view drafter) {
    return std::count_if(sink_.scored.begin(), sink_.scored.end(),
                         [&](const auto& scored) { return std::get<1>(scored) == drafter; });
  };
  int64_t quick_while_hanging = 0;
  const auto answer_until = [&](absl::Time until) {
    while (!answers.empty() && answers.begin()->first <= until) {
      FakeScorer::Asked one = std::move(answers.begin()->second);
      clock_.Advance(answers.begin()->first - clock_.Now());
      answers.erase(answers.begin());
      one.done(clock_.Now() < one.deadline ? absl::StatusOr<v1::ScoreResponse>(Right(4))
                                           : absl::DeadlineExceededError("late"));
    }
    clock_.Advance(until - clock_.Now());
  };
  for (absl::Time now = start; now < start + absl::Minutes(10); now += absl::Milliseconds(100)) {
    answer_until(now);
    if (now == mended) quick_while_hanging = scores_of("quick");
    feedback_->Offer(Finished("quick"), three);
    ++num_offered;
    for (FakeScorer::Asked& one : asked_) {
      const bool hangs = one.drafter.name == "hangs" && now < mended;
      num_hung += hangs ? 1 : 0;
      const absl::Duration took = absl::Milliseconds((one.drafter.name == "slow" ? 200 : 5) + random() % 20);
      const absl::Time answered = hangs ? one.deadline : std::min(one.deadline, now + took);
      longest = std::max(longest, answered - now);
      answers.emplace(answered, std::move(one));
    }
    asked_.clear();
  }
  answer_until(start + absl::Minutes(11));
  EXPECT_EQ(feedback_->in_flight(), 0u);
  // Requests whose scores waited for the one that hangs are scored by the others all the same.
  EXPECT_EQ(scores_of("quick"), num_offered);
  EXPECT_GT(scores_of("slow"), num_offered - 10) << "but for those before its first answer";
  EXPECT_GE(quick_while_hanging, 2990);
  EXPECT_LE(longest, kTimeout);
  // Two minutes at most between two of its probes, each of which costs it one slot.
  EXPECT_GE(num_hung, 6);
  EXPECT_LE(num_hung, 12);
  EXPECT_GT(scores_of("hangs"), 1700) << "asked for every request again, two minutes after it was mended";
}

TEST_F(FeedbackTest, NothingToScoreIsSkipped) {
  Make();
  feedback_->Offer(Finished("code"), {});
  FeedbackRequest silent = Finished("code");
  silent.tokens.resize(3);
  feedback_->Offer(std::move(silent), kBoth);
  FeedbackRequest endless = Finished("code");
  endless.tokens.resize(101);
  feedback_->Offer(std::move(endless), kBoth);
  EXPECT_THAT(asked_, IsEmpty());
  EXPECT_THAT(registry_.Expose(), HasSubstr("tandem_router_feedback_requests_total{outcome=\"skipped\"} 3"));
}

TEST_F(FeedbackTest, ADrafterThatFailsOrLiesIsLeftOut) {
  Make();
  std::vector<absl::StatusOr<v1::ScoreResponse>> answers = {absl::UnavailableError("gone")};
  v1::ScoreResponse bad = Right(3);
  bad.set_ranks("short");
  answers.push_back(bad);
  bad = Right(3);
  bad.set_accepted_tokens(9);
  answers.push_back(bad);
  bad = Right(3);
  bad.set_prompt_negative_log_likelihood(std::nan(""));
  answers.push_back(bad);
  bad = Right(3);
  bad.set_prompt_tokens(4);
  answers.push_back(bad);
  for (size_t i = 0; i < answers.size(); ++i) {
    // Until it is asked again.
    clock_.Advance(absl::Minutes(2));
    feedback_->Offer(Finished("code"), kBoth);
    Answer(2 * i, answers[i]);
    Answer(2 * i + 1, Right(4));
  }
  ASSERT_THAT(sink_.scored, SizeIs(5));
  for (const auto& [tenant, drafter, acceptance] : sink_.scored) EXPECT_EQ(drafter, "math");
  const std::string text = registry_.Expose();
  EXPECT_THAT(text, HasSubstr("{outcome=\"incomplete\"} 5"));
  EXPECT_THAT(text, HasSubstr("{drafter=\"code\",outcome=\"invalid_argument\"} 4"));
  // The chosen drafter's own score is missing: no regret is made up.
  EXPECT_THAT(text, Not(HasSubstr("tandem_router_regret_ratio_count{tenant=\"acme\"}")));
}

// As a draft head, which cannot score: its own requests' regret is known by what was accepted of it.
TEST_F(FeedbackTest, AChosenDrafterWithoutAScoreIsTakenAtWhatItCameTo) {
  Make();
  sink_.realised = 2.0 * FeedbackSink::TokensPerRound(0.4);
  feedback_->Offer(Finished("code"), kBoth);
  Answer(0, absl::FailedPreconditionError("a head"));
  Answer(1, Right(4));
  std::string text = registry_.Expose();
  EXPECT_THAT(text, HasSubstr("tandem_router_regret_ratio_sum{tenant=\"acme\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("tandem_router_feedback_best_total{drafter=\"code\",tenant=\"acme\"} 1"));
  sink_.realised = FeedbackSink::TokensPerRound(0.4) / 2.0;
  clock_.Advance(absl::Minutes(2));
  feedback_->Offer(Finished("code"), kBoth);
  Answer(2, absl::FailedPreconditionError("a head"));
  Answer(3, Right(4));
  text = registry_.Expose();
  EXPECT_THAT(text, HasSubstr("tandem_router_regret_ratio_sum{tenant=\"acme\"} 0.5\n"));
  EXPECT_THAT(text, HasSubstr("tandem_router_feedback_best_total{drafter=\"math\",tenant=\"acme\"} 1"));
}

TEST_F(FeedbackTest, WhoDoesNotScoreIsTold) {
  Make();
  feedback_->Offer(Finished("code"), kBoth);
  Answer(0, absl::FailedPreconditionError("a head"));
  Answer(1, Right(4));
  EXPECT_THAT(sink_.answered, ElementsAre(std::pair("code", false), std::pair("math", true)));
  sink_.answered.clear();
  // It is left alone for a while, which is no answer either.
  feedback_->Offer(Finished("code"), kBoth);
  EXPECT_THAT(sink_.answered, ElementsAre(std::pair("code", false)));
  // Who is only busy may answer later.
  sink_.answered.clear();
  while (asked_.size() < 10) feedback_->Offer(Finished("code"), {kBoth[1]});
  feedback_->Offer(Finished("code"), {kBoth[1]});
  EXPECT_THAT(sink_.answered, IsEmpty());
}

TEST_F(FeedbackTest, WhatHadSeenTheOutputDoesNotCount) {
  Make();
  feedback_->Offer(Finished("code"), kBoth);
  Answer(0, Right(10, /*remembers=*/true));
  Answer(1, Right(4, /*remembers=*/true));
  ASSERT_THAT(sink_.scored, SizeIs(1));
  EXPECT_EQ(std::get<1>(sink_.scored[0]), "math");
}

TEST_F(FeedbackTest, DestructionEndsWhatIsUnderWay) {
  Make();
  feedback_->Offer(Finished("code"), kBoth);
  feedback_.reset();
  EXPECT_THAT(sink_.scored, IsEmpty());
  EXPECT_THAT(registry_.Expose(), HasSubstr("{drafter=\"code\",outcome=\"cancelled\"} 1"));
}

}  // namespace
}  // namespace tandem::router
