// What a request may ask of its output besides sampling: tokens that are allowed or banned, a least length, a
// prediction, its prompt's log probabilities, a priority. What changes the output is a part of the target's
// distribution, so that law 2 holds with it; the rest changes nothing.

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "common/drafting/predicted_output.h"
#include "gmock/gmock.h"
#include "verifier/testing/scheduler_test_fixture.h"

namespace tandem {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

class RequestOptionsTest : public SchedulerTest {
 protected:
  // Sampling that allows, bans, and holds back until the output has eight tokens.
  static std::vector<SamplingParameters> Restrictions() {
    const TokenIds evens = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22};
    std::vector<SamplingParameters> samplings;
    for (const float temperature : {0.0f, 0.8f}) {
      samplings.push_back({.temperature = temperature, .seed = 3, .allowed_tokens = evens});
      samplings.push_back({.temperature = temperature, .seed = 4, .banned_tokens = evens});
      samplings.push_back({.temperature = temperature,
                           .repetition_penalty = 1.3f,
                           .seed = 5,
                           .allowed_tokens = evens,
                           .banned_tokens = {4, 5},
                           .early_banned_tokens = {0, 2, 6, 8},
                           .early_ban_end = 5 + 8});
      // Every pair of tokens less than four apart, so that each token rules out others after it; and single
      // tokens and longer sequences among them.
      std::vector<TokenIds> sequences = {{7}, {1, 2, 3}, {30, 31, 32, 33}};
      for (TokenId token = 0; token < kVocabSize; ++token) {
        for (TokenId next = token; next < std::min(token + 4, kVocabSize); ++next)
          sequences.push_back({token, next});
      }
      samplings.push_back({.temperature = temperature, .seed = 6, .banned_sequences = std::move(sequences)});
    }
    return samplings;
  }
  // Of an output after the prompt of Ask.
  static void ExpectAllowed(const SamplingParameters& sampling, const TokenIds& output) {
    TargetSampler sampler(sampling, kVocabSize, {});
    uint32_t position = 5;
    for (const TokenId token : output) {
      EXPECT_TRUE(sampler.Allows(token, position)) << token << " at " << position;
      sampler.Append(token);
      ++position;
    }
  }
  void Forget() {
    records_.clear();
    drafts_.clear();
    requests_.clear();
    parts_.clear();
  }
  void OnPromptPart(SessionId id, PromptPart part) override {
    EXPECT_TRUE(records_[id].started && records_[id].tokens.empty());
    parts_[id].push_back(std::move(part));
  }

  std::map<SessionId, std::vector<PromptPart>> parts_;
};

TEST_F(RequestOptionsTest, RestrictionsHoldWithAndWithoutDraftsWhoeverChooses) {
  for (const SamplingParameters& sampling : Restrictions()) {
    for (const bool chooses : {false, true}) {
      for (const uint32_t num_right : {0u, 2u, 4u}) {
        Make(FixedWindow(4), {.chooses = chooses});
        Forget();
        scheduler_->OnLinkUp(kLink);
        const Ask ask{.sampling = sampling, .drafted = true};
        ASSERT_TRUE(Submit(1, ask).ok());
        RunToTheEnd([&] {
          AnswerOpens();
          Draft(ask, num_right, 4 - num_right);
        });
        ExpectReference(1, ask);
        ExpectAllowed(sampling, records_[1].tokens);
        EXPECT_EQ(records_[1].summary.accepted_tokens > 0, num_right > 0);
      }
    }
  }
}

// A draft of what is banned costs no row.
TEST_F(RequestOptionsTest, BannedDraftsAreDroppedBeforeTheyAreVerified) {
  Make(FixedWindow(4));
  scheduler_->OnLinkUp(kLink);
  Ask ask{.drafted = true};
  const TokenIds free = Reference(ask).tokens;
  ask.sampling.banned_tokens = {free[0]};
  ASSERT_TRUE(Submit(1, ask).ok());
  RunToTheEnd([&] {
    AnswerOpens();
    const auto found = drafts_.find(1);
    if (found == drafts_.end() || !std::exchange(found->second.wants_growth, false)) return;
    Send(1, Chain(1, {free[0], 1, 2}));
  });
  ExpectReference(1, ask);
  EXPECT_EQ(records_[1].summary.draft_tokens, 0u);
  EXPECT_GT(records_[1].summary.masked_draft_tokens, 0u);
}

// So is one that would complete a sequence, of which a part may be in the draft.
TEST_F(RequestOptionsTest, DraftsThatCompleteABannedSequenceAreDropped) {
  for (const bool chooses : {false, true}) {
    Make(FixedWindow(4), {.chooses = chooses});
    Forget();
    scheduler_->OnLinkUp(kLink);
    Ask ask{.drafted = true};
    const TokenIds free = Reference(ask).tokens;
    // The draft is the free output, and the sequence is its second to fourth token.
    ask.sampling.banned_sequences = {{free[1], free[2], free[3]}};
    ASSERT_TRUE(Submit(1, ask).ok());
    bool sent = false;
    RunToTheEnd([&] {
      AnswerOpens();
      const auto found = drafts_.find(1);
      if (found == drafts_.end() || !std::exchange(found->second.wants_growth, false)) return;
      if (std::exchange(sent, true) || found->second.tokens.size() != 5) return;
      Send(1, Chain(1, {free[0], free[1], free[2], free[3]}));
    });
    ExpectReference(1, ask);
    ExpectAllowed(ask.sampling, records_[1].tokens);
    EXPECT_NE(records_[1].tokens, free);
  }
}

// Where every token would complete a sequence, the request ends with that.
TEST_F(RequestOptionsTest, SequencesMayLeaveNothing) {
  for (const bool chooses : {false, true}) {
    Make(FixedWindow(4), {.chooses = chooses});
    Forget();
    const Ask ask{.sampling = {.temperature = 0.0f, .allowed_tokens = {0}, .banned_sequences = {{0, 0, 0}}}};
    ASSERT_TRUE(Submit(1, ask).ok());
    RunToTheEnd();
    ASSERT_EQ(records_[1].ends.size(), 1u);
    EXPECT_TRUE(absl::IsFailedPrecondition(records_[1].ends[0])) << records_[1].ends[0];
    EXPECT_EQ(records_[1].tokens, (TokenIds{0, 0}));
  }
}

// With max_tokens 0 the prompt is described as it is with an output, and nothing follows.
TEST_F(RequestOptionsTest, APromptIsScoredWithoutAnOutput) {
  for (const bool chooses : {false, true}) {
    for (const uint32_t length : {1u, 2u, 5u, 40u}) {
      Make({.prefill_chunk = 16}, {.chooses = chooses});
      Forget();
      Ask ask{.num_prompt_logprobs = 2};
      ask.prompt.clear();
      for (uint32_t i = 0; i < length; ++i)
        ask.prompt.push_back(static_cast<TokenId>((7 * i + 3) % kVocabSize));
      ASSERT_TRUE(Submit(1, ask).ok());
      ask.rules.max_tokens = 0;
      ask.speculate = false;
      ASSERT_TRUE(Submit(2, ask).ok());
      RunToTheEnd();
      EXPECT_TRUE(records_[2].ends.at(0).ok()) << records_[2].ends[0];
      EXPECT_TRUE(records_[2].tokens.empty());
      EXPECT_EQ(records_[2].summary.output_tokens, 0u);
      EXPECT_EQ(records_[2].summary.rounds, 0u);
      EXPECT_EQ(records_[2].summary.end.reason, OutputEnd::Reason::kMaxTokens);
      const auto described = [this](SessionId id) {
        std::vector<TokenChoice> all;
        for (const PromptPart& part : parts_[id])
          all.insert(all.end(), part.tokens.begin(), part.tokens.end());
        return all;
      };
      const std::vector<TokenChoice> scored = described(2);
      const std::vector<TokenChoice> beside = described(1);
      ASSERT_EQ(scored.size(), length);
      ASSERT_EQ(beside.size(), length);
      for (size_t i = 0; i < length; ++i) {
        EXPECT_EQ(scored[i].token, beside[i].token);
        EXPECT_EQ(scored[i].logprob, beside[i].logprob);
      }
    }
  }
}

TEST_F(RequestOptionsTest, RulesThatSampleDraftsKeepToTheRestrictions) {
  for (const VerificationRuleKind rule : {VerificationRuleKind::kRejection, VerificationRuleKind::kBlock}) {
    for (const SamplingParameters& sampling : Restrictions()) {
      Scheduler::Options options = FixedWindow(4);
      options.verification_rule = rule;
      Make(options);
      Forget();
      const Ask ask{.sampling = sampling, .num_logprobs = 2};
      ASSERT_TRUE(Submit(1, ask).ok());
      RunToTheEnd();
      ExpectAllowed(sampling, records_[1].tokens);
    }
  }
}

// Law 2: the output is the reference's; law 6: a right prediction saves rounds.
TEST_F(RequestOptionsTest, APredictionSavesRoundsAndChangesNothing) {
  for (const float temperature : {0.0f, 0.8f}) {
    for (const bool chooses : {false, true}) {
      for (const char* policy : {"goodput", "fixed"}) {
        Ask ask{.sampling = {.temperature = temperature, .seed = 11}, .rules = {.max_tokens = 60}};
        ask.window_policy = policy;
        Make({}, {.chooses = chooses});
        ask.prediction = Reference(ask).tokens;
        // Some of it is not as the output will be.
        for (size_t at = 7; at < ask.prediction.size(); at += 17)
          ask.prediction[at] = (ask.prediction[at] + 1) % kVocabSize;
        ask.prediction.erase(ask.prediction.begin() + 20, ask.prediction.begin() + 23);
        Forget();
        ASSERT_TRUE(Submit(1, ask).ok());
        RunToTheEnd();
        ExpectReference(1, ask);
        const SessionSummary& summary = records_[1].summary;
        EXPECT_LT(summary.rounds, 40u) << policy;
        EXPECT_EQ(summary.rounds + summary.accepted_tokens, 60u);
        ASSERT_EQ(summary.by_origin.size(), 1u);
        EXPECT_EQ(summary.by_origin[0].origin, DraftOrigin::kPrediction);
        EXPECT_EQ(summary.by_origin[0].accepted_tokens, summary.accepted_tokens);
      }
    }
  }
}

TEST_F(RequestOptionsTest, APredictionThatIsWrongChangesNothing) {
  Make();
  Ask ask{.rules = {.max_tokens = 40}};
  const TokenIds output = Reference(ask).tokens;
  for (const TokenId token : output) ask.prediction.push_back((token + 1) % kVocabSize);
  ASSERT_TRUE(Submit(1, ask).ok());
  ask.speculate = false;
  ask.prediction = output;
  ASSERT_TRUE(Submit(2, ask).ok());
  RunToTheEnd();
  ExpectReference(1, ask);
  ExpectReference(2, ask);
  EXPECT_EQ(records_[2].summary.draft_tokens, 0u) << "speculation is off";
}

// The prompt's log probabilities are those of its own rows, however the prefill is cut and whatever the
// prefix cache has, and the output is what it was.
TEST_F(RequestOptionsTest, APromptsLogProbabilitiesAreItsRowsOwn) {
  for (const size_t length : {size_t{1}, size_t{2}, size_t{33}, size_t{150}}) {
    for (const uint32_t chunk : {1u, 7u, 128u}) {
      for (const bool chooses : {false, true}) {
        Make({.prefill_chunk = chunk}, {.chooses = chooses});
        Forget();
        Ask ask{.sampling = {.temperature = 0.8f, .top_k = 3, .seed = 9, .banned_tokens = {1, 2}}};
        ask.prompt.clear();
        for (size_t i = 0; i < length; ++i) ask.prompt.push_back(static_cast<TokenId>(i * i % kVocabSize));
        ASSERT_TRUE(Submit(1, ask).ok());  // Fills the cache.
        RunToTheEnd();
        ask.num_prompt_logprobs = 3;
        ASSERT_TRUE(Submit(2, ask).ok());
        ASSERT_TRUE(Submit(3, ask).ok());
        RunToTheEnd();
        for (const SessionId id : {2, 3}) {
          ExpectReference(id, ask);
          EXPECT_EQ(records_[id].summary.cached_prompt_tokens, 0u);
          ASSERT_EQ(parts_[id].size(), 1u);
          ASSERT_EQ(parts_[id][0].tokens.size(), length);
          EXPECT_EQ(parts_[id][0].tokens[0].token, ask.prompt[0]);
          for (size_t at = 1; at < length; ++at) {
            std::vector<float> logits = model_->ReferenceLogits(absl::MakeConstSpan(ask.prompt).first(at));
            const TokenChoice expected =
                TargetSampler({}, kVocabSize, {})
                    .Describe(absl::MakeSpan(logits), ask.prompt[at], static_cast<uint32_t>(at), 3);
            const TokenChoice& told = parts_[id][0].tokens[at];
            EXPECT_EQ(told.token, ask.prompt[at]);
            EXPECT_EQ(told.logprob, expected.logprob) << at;
            ASSERT_EQ(told.top_logprobs.size(), 3u);
            for (size_t i = 0; i < 3; ++i) {
              EXPECT_EQ(told.top_logprobs[i].token, expected.top_logprobs[i].token);
              EXPECT_EQ(told.top_logprobs[i].logprob, expected.top_logprobs[i].logprob);
            }
          }
        }
        EXPECT_TRUE(parts_[1].empty());
      }
    }
  }
}

TEST_F(RequestOptionsTest, ALongPromptIsToldInPartsAndOnceThoughItIsPreempted) {
  // Two prompts of 1,500 tokens do not fit beside their outputs.
  Make({.prefill_chunk = 512}, {.max_context = 8192, .num_blocks = 190, .max_rows = 600});
  Ask ask{.rules = {.max_tokens = 60}};
  ask.prompt.clear();
  for (int i = 0; i < 1500; ++i) ask.prompt.push_back(i * 31 % kVocabSize);
  ask.num_prompt_logprobs = 0;
  ASSERT_TRUE(Submit(1, ask).ok());
  ASSERT_TRUE(Submit(2, ask).ok());
  RunToTheEnd();
  EXPECT_GT(num_preemptions_, 0u) << "nothing was preempted, so nothing was tested";
  for (const SessionId id : {1, 2}) {
    ExpectReference(id, ask);
    ASSERT_EQ(parts_[id].size(), 2u);
    EXPECT_EQ(parts_[id][0].offset, 0u);
    EXPECT_EQ(parts_[id][0].tokens.size(), kMostPromptPart);
    EXPECT_EQ(parts_[id][1].offset, kMostPromptPart);
    EXPECT_EQ(parts_[id][1].tokens.size(), 1500 - kMostPromptPart);
  }
}

// Rows that nobody asks about have no logits.
TEST_F(RequestOptionsTest, OtherPromptsPayNothing) {
  Make({}, {.chooses = true});
  Ask ask;
  for (int i = 0; i < 60; ++i) ask.prompt.push_back(i % kVocabSize);
  ASSERT_TRUE(Submit(1, ask).ok());
  RunToTheEnd();
  EXPECT_EQ(model_->num_logits(), 0u);
  ask.num_prompt_logprobs = 0;
  ASSERT_TRUE(Submit(2, ask).ok());
  RunToTheEnd();
  EXPECT_EQ(model_->num_logits(), ask.prompt.size() - 1);
}

class PriorityTest : public RequestOptionsTest {
 protected:
  void SubmitAs(SessionId id, const std::string& tenant, int32_t priority) {
    Ask ask{.rules = {.max_tokens = 2}};
    ask.tenant = tenant;
    ask.priority = priority;
    ASSERT_TRUE(Submit(id, ask).ok());
  }
  void OnStarted(SessionId id) override {
    order_.push_back(id);
    RequestOptionsTest::OnStarted(id);
  }
  std::vector<SessionId> order_;
};

TEST_F(PriorityTest, OrdersATenantsOwnWaitingRequestsAndNothingElse) {
  Make({.max_running = 1});
  SubmitAs(1, "a", 0);
  SubmitAs(2, "b", 5);
  SubmitAs(3, "a", 7);
  SubmitAs(4, "b", -5);  // Before 2, in its place.
  SubmitAs(5, "a", 7);
  SubmitAs(6, "a", -100);  // Before 1: nothing has run yet.
  SubmitAs(7, "c", 100);
  RunToTheEnd();
  // Places of a: 1st, 3rd, 5th and 6th; of b: 2nd and 4th; of c: the last.
  EXPECT_THAT(order_, ElementsAre(6, 4, 1, 2, 3, 5, 7));
}

}  // namespace
}  // namespace tandem
