// Law 3: whatever a drafter sends, outputs stay what they are, and after three messages that break the
// protocol it is heard no more.
#include <cstdint>
#include <functional>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "verifier/testing/scheduler_test_fixture.h"

namespace tandem {
namespace {

constexpr uint32_t kMillion = 1'000'000;

// How a message that was fine is made another one.
struct Hostility {
  const char* name;
  std::function<void(DraftResponse& response, Grow& grow)> damage;
};

void PrintTo(const Hostility& hostility, std::ostream* stream) {
  *stream << hostility.name;
}

std::vector<Hostility> Hostilities() {
  return {
      {"ItsOwnParent", [](auto&, Grow& grow) { grow.parents[1] = grow.first_id + 1; }},
      {"CycleOfTwo",
       [](auto&, Grow& grow) {
         grow.parents[0] = grow.first_id + 1;
         grow.parents[1] = grow.first_id;
       }},
      {"ParentThatWasNeverSent",
       [](auto&, Grow& grow) {
         grow.first_id += 10;
         grow.parents = {grow.first_id - 5, grow.first_id};
       }},
      {"ParentBeyondAllIds", [](auto&, Grow& grow) { grow.parents[0] = std::numeric_limits<NodeId>::max(); }},
      {"MillionNodes",
       [](auto&, Grow& grow) {
         grow.parents.assign(kMillion, 0);
         grow.tokens.assign(kMillion, 1);
         grow.scores.assign(kMillion, 0.5f);
       }},
      {"IdsThatOverflow", [](auto&, Grow& grow) { grow.first_id = std::numeric_limits<NodeId>::max(); }},
      {"IdZero", [](auto&, Grow& grow) { grow.first_id = 0; }},
      {"TokenBeyondTheLogits", [](auto&, Grow& grow) { grow.tokens[1] = kVocabSize; }},
      {"NegativeToken", [](auto&, Grow& grow) { grow.tokens[0] = -1; }},
      {"GreatestToken", [](auto&, Grow& grow) { grow.tokens[0] = std::numeric_limits<TokenId>::max(); }},
      {"ScoreThatIsNoNumber",
       [](auto&, Grow& grow) { grow.scores[0] = std::numeric_limits<float>::quiet_NaN(); }},
      {"InfiniteScore", [](auto&, Grow& grow) { grow.scores[1] = std::numeric_limits<float>::infinity(); }},
      {"NegativeScore", [](auto&, Grow& grow) { grow.scores[1] = -0.5f; }},
      {"ScoreAboveOne", [](auto&, Grow& grow) { grow.scores[0] = 1.0001f; }},
      {"ArraysOfDifferentLengths", [](auto&, Grow& grow) { grow.scores.pop_back(); }},
      {"NoNodes",
       [](auto&, Grow& grow) {
         grow.parents = {};
         grow.tokens = {};
         grow.scores = {};
         grow.exhausted = false;
       }},
      {"TheSameTokenTwice",
       [](auto&, Grow& grow) {
         grow.parents = {0, 0};
         grow.tokens = {7, 7};
       }},
      {"CommitOfTheFuture", [](auto&, Grow& grow) { ++grow.seen_commit; }},
      {"SessionThatNeverWas", [](DraftResponse& response, auto&) { response.session = 1000; }},
  };
}

class HostileTest : public SchedulerTest {
 protected:
  static constexpr SessionId kSession = 1;
  const Ask ask_{.drafted = true};

  void Begin() {
    Make({.window_policy = "fixed", .max_draft_wait = absl::Milliseconds(1)});
    scheduler_->OnLinkUp(kLink);
    ASSERT_TRUE(Submit(kSession, ask_).ok());
    scheduler_->Step();
    AnswerOpens();
  }
  void SendDamaged(const std::function<void(DraftResponse&, Grow&)>& damage) {
    DraftResponse response{.session = kSession};
    Grow grow = Chain(kSession, {3, 4});
    damage(response, grow);
    response.event = std::move(grow);
    scheduler_->OnDraftResponse(kLink, response);
  }
};

class HostileMessageTest : public HostileTest, public ::testing::WithParamInterface<Hostility> {};

TEST_P(HostileMessageTest, ChangesNothingAndIsQuarantinedTheThirdTime) {
  Begin();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(violations_.size(), static_cast<size_t>(i));
    EXPECT_EQ(NumSent<CloseSession>(), 0u);
    SendDamaged(GetParam().damage);
    if (i < 2) scheduler_->Step();
  }
  EXPECT_EQ(violations_, (std::vector<bool>{false, false, true}));
  EXPECT_EQ(NumSent<CloseSession>(), 1u);
  RunToTheEnd();
  ExpectReference(kSession, ask_);
  EXPECT_EQ(records_[kSession].summary.drafter_lost, "the drafter is quarantined");
  EXPECT_EQ(records_[kSession].summary.draft_tokens, 0u);
}

INSTANTIATE_TEST_SUITE_P(All, HostileMessageTest, ::testing::ValuesIn(Hostilities()),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

// A drafter may have lost its way honestly, so that it is given the prompt again, but not for ever.
TEST_F(HostileTest, AHashThatIsAlwaysWrongEndsInTheQuarantine) {
  Begin();
  for (int i = 0; i < 100 && drafts_.contains(kSession); ++i) {
    SendDamaged([](auto&, Grow& grow) { grow.prefix_hash ^= 1; });
    AnswerOpens();
  }
  EXPECT_EQ(violations_.size(), 1u);
  for (SessionId id : {2, 3}) {
    ASSERT_TRUE(Submit(id, ask_).ok());
    scheduler_->Step();
    AnswerOpens();
    for (int i = 0; i < 100 && drafts_.contains(id); ++i) {
      Grow grow = Chain(id, {3, 4});
      grow.prefix_hash ^= 1;
      Send(id, grow);
      AnswerOpens();
    }
  }
  EXPECT_EQ(violations_, (std::vector<bool>{false, false, true}));
  RunToTheEnd();
  for (SessionId id : {1, 2, 3}) ExpectReference(id, ask_);
}

}  // namespace
}  // namespace tandem
