#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/testing/fake_engine.h"
#include "verifier/testing/scheduler_test_fixture.h"

namespace tandem {
namespace {

constexpr LinkId kOther = kLink + 1;
constexpr LinkId kThird = kLink + 2;

DrafterBinding On(LinkId link, std::string name) {
  return {.link = link, .name = name, .draft_model = name + "-model"};
}

// Drafters on several links; each draft is known by its wire id.
class DrafterSwapTest : public SchedulerTest {
 protected:
  struct Swap {
    SessionId session = 0;
    absl::Status status;
  };

  void OnDraftRequest(LinkId link, DraftRequest request) override {
    if (const auto* open = std::get_if<OpenSession>(&request.event)) {
      draft_links_[request.session] = link;
      models_[request.session] = open->draft_model;
    }
    EXPECT_EQ(link, draft_links_.at(request.session)) << "a draft stays where it was opened";
    sent_on_[link].push_back(request);
    SchedulerTest::OnDraftRequest(kLink, std::move(request));
  }
  void OnSwapEnded(SessionId session, const absl::Status& status) override {
    EXPECT_TRUE(records_[session].ends.empty()) << "before the session's end";
    swaps_.push_back({session, status});
  }
  void OnDrafterChanged(SessionId, const DrafterBinding& binding) override { bound_.push_back(binding.name); }

  void TearDown() override {
    SchedulerTest::TearDown();
    EXPECT_TRUE(drafts_.empty()) << "every draft is closed in the end, or its link is lost";
  }

  absl::Status SubmitOn(SessionId id, const Ask& ask, std::vector<DrafterBinding> drafters) {
    SessionRequest request{.prompt = ask.prompt,
                           .max_tokens = ask.rules.max_tokens,
                           .sampling = ask.sampling,
                           .output = std::make_unique<OutputAssembler>(TestTokenizer(), ask.rules)};
    request.drafter = drafters.front();
    request.alternates.assign(drafters.begin() + 1, drafters.end());
    return scheduler_->Submit(id, std::move(request));
  }

  void Answer(SessionId draft, decltype(DraftResponse::event) event) {
    scheduler_->OnDraftResponse(draft_links_.at(draft), {.session = draft, .event = std::move(event)});
  }
  void Open(SessionId draft) { Answer(draft, SessionOpened{.epoch = drafts_.at(draft).epoch}); }
  void Grow1(SessionId draft, const Ask& ask) {
    DraftState& state = drafts_.at(draft);
    if (!std::exchange(state.wants_growth, false) || state.budget.depth == 0) return;
    TokenIds all = ask.prompt;
    const TokenIds output = Reference(ask).tokens;
    all.insert(all.end(), output.begin(), output.end());
    if (state.tokens.size() < all.size()) Answer(draft, Chain(draft, {all[state.tokens.size()]}));
  }
  void Lose(LinkId link) {
    for (const auto& [draft, on] : draft_links_) {
      if (on == link) drafts_.erase(draft);
    }
    scheduler_->OnLinkDown(link, absl::UnavailableError("killed"));
  }
  // The wire ids of the drafts that are open, in the order of their opening.
  std::vector<SessionId> OpenDrafts() const {
    std::vector<SessionId> ids;
    for (const auto& [id, state] : drafts_) ids.push_back(id);
    return ids;
  }
  void RunAndGrow(const Ask& ask) {
    RunToTheEnd([&] {
      for (SessionId draft : OpenDrafts()) {
        if (!drafts_.contains(draft)) continue;
        Open(draft);
        if (drafts_.contains(draft)) Grow1(draft, ask);
      }
    });
  }

  std::map<SessionId, LinkId> draft_links_;
  std::map<SessionId, std::string> models_;
  std::map<LinkId, std::vector<DraftRequest>> sent_on_;
  std::vector<Swap> swaps_;
  std::vector<std::string> bound_;
};

Scheduler::Options Fixed() {
  return {.window_policy = "fixed"};
}

TEST_F(DrafterSwapTest, TheNewDrafterIsMadeBeforeTheOldOneBreaks) {
  Make(Fixed());
  scheduler_->OnLinkUp(kLink);
  scheduler_->OnLinkUp(kOther);
  const Ask ask{.rules = {.max_tokens = 30}};
  ASSERT_TRUE(SubmitOn(1, ask, {On(kLink, "old")}).ok());
  scheduler_->Step();
  const SessionId old_draft = OpenDrafts().at(0);
  Open(old_draft);
  Grow1(old_draft, ask);
  scheduler_->Step();

  ASSERT_TRUE(scheduler_->SwapDrafter(1, "old", On(kOther, "new")).ok());
  ASSERT_EQ(drafts_.size(), 2u);
  const SessionId new_draft = OpenDrafts().at(1);
  EXPECT_EQ(draft_links_.at(new_draft), kOther);
  EXPECT_EQ(models_.at(new_draft), "new-model");
  EXPECT_EQ(drafts_.at(new_draft).tokens, drafts_.at(old_draft).tokens) << "opened where the output is";

  // The old one goes on drafting; both get the commits.
  const uint32_t drafted = records_[1].rounds.size();
  for (int round = 0; round < 3; ++round) {
    Grow1(old_draft, ask);
    scheduler_->Step();
    EXPECT_EQ(drafts_.at(new_draft).tokens, drafts_.at(old_draft).tokens);
  }
  Open(new_draft);
  scheduler_->Step();
  EXPECT_TRUE(drafts_.contains(old_draft)) << "an answer is not a candidate yet";
  for (size_t i = drafted; i < drafted + 3; ++i) EXPECT_EQ(records_[1].rounds[i].accepted, 1u);
  EXPECT_TRUE(swaps_.empty());

  Grow1(new_draft, ask);
  scheduler_->Step();
  EXPECT_FALSE(drafts_.contains(old_draft));
  ASSERT_EQ(swaps_.size(), 1u);
  EXPECT_TRUE(swaps_[0].status.ok());
  EXPECT_EQ(bound_, std::vector<std::string>{"new"});
  EXPECT_EQ(records_[1].rounds.back().accepted, 1u) << "its first candidates were verified at once";
  RunAndGrow(ask);
  ExpectReference(1, ask);
  EXPECT_EQ(records_[1].summary.drafter, "new");
}

TEST_F(DrafterSwapTest, TwoModelsOfOneProcessAreToldApart) {
  Make(Fixed());
  scheduler_->OnLinkUp(kLink);
  const Ask ask{.rules = {.max_tokens = 12}};
  ASSERT_TRUE(SubmitOn(1, ask, {On(kLink, "old")}).ok());
  scheduler_->Step();
  const SessionId old_draft = OpenDrafts().at(0);
  Open(old_draft);
  ASSERT_TRUE(scheduler_->SwapDrafter(1, "", On(kLink, "new")).ok());
  const SessionId new_draft = OpenDrafts().at(1);
  EXPECT_NE(new_draft, old_draft);
  // A refusal that meant the old one is not the new one's.
  Answer(old_draft, ResyncNeeded{.epoch = drafts_.at(old_draft).epoch});
  EXPECT_EQ(models_.at(old_draft), "old-model");
  RunAndGrow(ask);
  ExpectReference(1, ask);
  EXPECT_EQ(records_[1].summary.drafter, "new");
}

TEST_F(DrafterSwapTest, ARefusedDrafterLeavesTheOldOneInPlaceAndSaysSo) {
  Make(Fixed());
  scheduler_->OnLinkUp(kLink);
  scheduler_->OnLinkUp(kOther);
  const Ask ask;
  ASSERT_TRUE(SubmitOn(1, ask, {On(kLink, "old")}).ok());
  scheduler_->Step();
  Open(OpenDrafts().at(0));
  ASSERT_TRUE(scheduler_->SwapDrafter(1, "old", On(kOther, "new")).ok());
  const SessionId new_draft = OpenDrafts().at(1);
  Answer(new_draft, SessionRefused{.epoch = drafts_.at(new_draft).epoch,
                                   .status = absl::FailedPreconditionError("another vocabulary")});
  drafts_.erase(new_draft);
  ASSERT_EQ(swaps_.size(), 1u);
  EXPECT_EQ(swaps_[0].status, absl::FailedPreconditionError("another vocabulary"));
  RunAndGrow(ask);
  ExpectReference(1, ask);
  EXPECT_EQ(records_[1].summary.drafter, "old");
  EXPECT_GT(records_[1].summary.accepted_tokens, 0u);
}

TEST_F(DrafterSwapTest, ASilentDrafterDoesNotTakeOver) {
  Make(Fixed());
  scheduler_->OnLinkUp(kLink);
  scheduler_->OnLinkUp(kOther);
  const Ask ask{.rules = {.max_tokens = 60}};
  ASSERT_TRUE(SubmitOn(1, ask, {On(kLink, "old")}).ok());
  scheduler_->Step();
  const SessionId old_draft = OpenDrafts().at(0);
  Open(old_draft);
  ASSERT_TRUE(scheduler_->SwapDrafter(1, "", On(kOther, "silent")).ok());
  scheduler_->Step();
  EXPECT_TRUE(swaps_.empty());
  clock_.Advance(absl::Seconds(3));
  scheduler_->Step();
  ASSERT_EQ(swaps_.size(), 1u);
  EXPECT_EQ(swaps_[0].status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(drafts_.size(), 1u) << "it was closed there";

  // One that has answered takes over when the time is up, candidates or not.
  ASSERT_TRUE(scheduler_->SwapDrafter(1, "old", On(kOther, "slow")).ok());
  Open(OpenDrafts().at(1));
  scheduler_->Step();
  EXPECT_EQ(swaps_.size(), 1u);
  clock_.Advance(absl::Seconds(3));
  scheduler_->Step();
  ASSERT_EQ(swaps_.size(), 2u);
  EXPECT_TRUE(swaps_[1].status.ok());
  RunAndGrow(ask);
  ExpectReference(1, ask);
  EXPECT_EQ(records_[1].summary.drafter, "slow");
}

TEST_F(DrafterSwapTest, ALostDrafterIsReplacedByTheNextAlternateAtOnce) {
  Make(Fixed());
  for (LinkId link : {kLink, kThird}) scheduler_->OnLinkUp(link);
  const Ask ask{.rules = {.max_tokens = 30}};
  ASSERT_TRUE(SubmitOn(1, ask, {On(kLink, "a"), On(kOther, "not up"), On(kThird, "c")}).ok());
  scheduler_->Step();
  Open(OpenDrafts().at(0));
  scheduler_->Step();
  Lose(kLink);
  ASSERT_EQ(drafts_.size(), 1u) << "before another round";
  EXPECT_EQ(draft_links_.at(OpenDrafts().at(0)), kThird);
  Open(OpenDrafts().at(0));
  Grow1(OpenDrafts().at(0), ask);
  scheduler_->Step();
  EXPECT_EQ(records_[1].rounds.back().accepted, 1u) << "the next round is drafted again";
  // When that one goes too, the first is asked again as soon as it is back.
  Lose(kThird);
  EXPECT_TRUE(drafts_.empty());
  scheduler_->Step();
  scheduler_->OnLinkUp(kLink);
  ASSERT_EQ(drafts_.size(), 1u);
  EXPECT_EQ(draft_links_.at(OpenDrafts().at(0)), kLink);
  RunAndGrow(ask);
  ExpectReference(1, ask);
  EXPECT_EQ(bound_, (std::vector<std::string>{"c", "a"}));
}

TEST_F(DrafterSwapTest, ALostDrafterStaysLostUntilItAnswers) {
  Make(Fixed());
  scheduler_->OnLinkUp(kLink);
  const Ask ask{.rules = {.max_tokens = 30}};
  ASSERT_TRUE(SubmitOn(1, ask, {On(kLink, "a")}).ok());
  scheduler_->Step();
  Open(OpenDrafts().at(0));
  Lose(kLink);
  scheduler_->Step();
  // The connection is tried again, with nobody there.
  scheduler_->OnLinkUp(kLink);
  ASSERT_EQ(NumSent<OpenSession>(), 2u);
  RunToTheEnd();
  ExpectReference(1, ask);
  EXPECT_EQ(records_[1].summary.drafter_lost, "the connection was lost: killed");
}

TEST_F(DrafterSwapTest, AlternatesThatAllRefuseAreNotAskedForEver) {
  Make(Fixed());
  for (LinkId link : {kLink, kOther, kThird}) scheduler_->OnLinkUp(link);
  const Ask ask;
  ASSERT_TRUE(SubmitOn(1, ask, {On(kLink, "a"), On(kOther, "b"), On(kThird, "c")}).ok());
  RunToTheEnd([&] {
    for (int i = 0; i < 20 && !drafts_.empty(); ++i) {
      const SessionId draft = OpenDrafts().at(0);
      const uint32_t epoch = drafts_.at(draft).epoch;
      drafts_.erase(draft);
      Answer(draft, SessionRefused{.epoch = epoch, .status = absl::ResourceExhaustedError("full")});
    }
  });
  ExpectReference(1, ask);
  EXPECT_EQ(NumSent<OpenSession>(), 3u) << "once each";
  for (LinkId link : {kLink, kOther, kThird}) {
    EXPECT_EQ(std::count_if(
                  sent_on_[link].begin(), sent_on_[link].end(),
                  [](const DraftRequest& sent) { return std::holds_alternative<OpenSession>(sent.event); }),
              1);
  }
}

TEST_F(DrafterSwapTest, TheStandbyStepsInWhenTheOldOneIsLost) {
  Make(Fixed());
  scheduler_->OnLinkUp(kLink);
  scheduler_->OnLinkUp(kOther);
  const Ask ask;
  ASSERT_TRUE(SubmitOn(1, ask, {On(kLink, "old")}).ok());
  scheduler_->Step();
  Open(OpenDrafts().at(0));
  ASSERT_TRUE(scheduler_->SwapDrafter(1, "old", On(kOther, "new")).ok());
  Lose(kLink);
  ASSERT_EQ(swaps_.size(), 1u);
  EXPECT_TRUE(swaps_[0].status.ok());
  EXPECT_EQ(drafts_.size(), 1u);
  RunAndGrow(ask);
  ExpectReference(1, ask);
  EXPECT_EQ(records_[1].summary.drafter, "new");
  EXPECT_GT(records_[1].summary.accepted_tokens, 0u);
}

TEST_F(DrafterSwapTest, SessionsThatWaitAreBoundAtOnce) {
  Make({.max_running = 1, .window_policy = "fixed"});
  scheduler_->OnLinkUp(kLink);
  scheduler_->OnLinkUp(kOther);
  const Ask ask;
  ASSERT_TRUE(SubmitOn(1, ask, {On(kLink, "old")}).ok());
  ASSERT_TRUE(SubmitOn(2, ask, {On(kLink, "old")}).ok());
  scheduler_->Step();
  ASSERT_TRUE(scheduler_->SwapDrafter(2, "old", On(kOther, "new")).ok());
  ASSERT_EQ(swaps_.size(), 1u);
  EXPECT_EQ(swaps_[0].session, 2u);
  EXPECT_TRUE(swaps_[0].status.ok());
  RunAndGrow(ask);
  ExpectReference(1, ask);
  ExpectReference(2, ask);
  EXPECT_EQ(records_[1].summary.drafter, "old");
  EXPECT_EQ(records_[2].summary.drafter, "new");
  EXPECT_GT(records_[2].summary.accepted_tokens, 0u);
}

TEST_F(DrafterSwapTest, WhatCannotBeSwappedIsSaid) {
  Make(Fixed());
  scheduler_->OnLinkUp(kLink);
  const Ask ask;
  ASSERT_TRUE(SubmitOn(1, ask, {On(kLink, "old")}).ok());
  ASSERT_TRUE(Submit(2, ask).ok());
  scheduler_->Step();
  EXPECT_EQ(scheduler_->SwapDrafter(9, "", On(kLink, "new")).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(scheduler_->SwapDrafter(1, "x", On(kLink, "new")).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(scheduler_->SwapDrafter(2, "", On(kLink, "new")).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(swaps_.empty());
  // To where it is already, and to one that is not there.
  ASSERT_TRUE(scheduler_->SwapDrafter(1, "", On(kLink, "old")).ok());
  ASSERT_TRUE(scheduler_->SwapDrafter(1, "", On(kOther, "new")).ok());
  ASSERT_EQ(swaps_.size(), 2u);
  EXPECT_TRUE(swaps_[0].status.ok());
  EXPECT_EQ(swaps_[1].status.code(), absl::StatusCode::kUnavailable);
  // A second one overtakes the first; the end of the request ends the second.
  ASSERT_TRUE(scheduler_->SwapDrafter(1, "", On(kLink, "new")).ok());
  ASSERT_TRUE(scheduler_->SwapDrafter(1, "", On(kLink, "newer")).ok());
  scheduler_->Cancel(1, absl::CancelledError("gone"));
  ASSERT_EQ(swaps_.size(), 4u);
  EXPECT_EQ(swaps_[2].status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(swaps_[3].status.code(), absl::StatusCode::kCancelled);
  RunAndGrow(ask);
  ExpectReference(2, ask);
}

// Every role has the same rule: four resyncs in a row without growth, and the fifth is a violation.
TEST_F(DrafterSwapTest, AStandbyThatKeepsAskingForAResyncIsGivenUp) {
  Make(Fixed());
  scheduler_->OnLinkUp(kLink);
  scheduler_->OnLinkUp(kOther);
  const Ask ask;
  ASSERT_TRUE(SubmitOn(1, ask, {On(kLink, "old")}).ok());
  scheduler_->Step();
  Open(OpenDrafts().at(0));
  ASSERT_TRUE(scheduler_->SwapDrafter(1, "old", On(kOther, "lost")).ok());
  const SessionId draft = OpenDrafts().at(1);
  for (uint32_t epoch = 1; epoch <= DraftPeer::kMaxResyncs; ++epoch) {
    ASSERT_EQ(drafts_.at(draft).epoch, epoch);
    Answer(draft, ResyncNeeded{.epoch = epoch});
  }
  EXPECT_TRUE(swaps_.empty() && violations_.empty());
  Answer(draft, ResyncNeeded{.epoch = drafts_.at(draft).epoch});
  EXPECT_FALSE(drafts_.contains(draft));
  ASSERT_EQ(swaps_.size(), 1u);
  EXPECT_EQ(swaps_[0].status, absl::AbortedError("the drafter keeps asking for a resync"));
  EXPECT_EQ(violations_, std::vector<bool>{false});
  RunAndGrow(ask);
  ExpectReference(1, ask);
  EXPECT_EQ(records_[1].summary.drafter, "old");
}

// The bound on openings is the link's, so that it holds for standbys as well.
TEST_F(DrafterSwapTest, ManySwapsAtATimeAreOpenedOneAfterTheOther) {
  constexpr size_t kSessions = 8;
  const Ask ask{.rules = {.max_tokens = 100}};
  Scheduler::Options options = Fixed();
  options.max_opening_tokens = kSessions * ask.prompt.size();  // They have more tokens when they are swapped.
  options.swap_timeout = absl::Seconds(10);
  Make(options);
  scheduler_->OnLinkUp(kLink);
  scheduler_->OnLinkUp(kOther);
  for (SessionId id = 1; id <= kSessions; ++id) ASSERT_TRUE(SubmitOn(id, ask, {On(kLink, "old")}).ok());
  scheduler_->Step();
  for (SessionId draft : OpenDrafts()) Open(draft);
  for (SessionId id = 1; id <= kSessions; ++id) {
    ASSERT_TRUE(scheduler_->SwapDrafter(id, "old", On(kOther, "new")).ok());
  }
  const auto opened = [&] { return sent_on_[kOther].size(); };
  const size_t at_once = opened();
  EXPECT_GE(at_once, 1u);
  EXPECT_LT(at_once, kSessions);
  clock_.Advance(absl::Seconds(1));
  scheduler_->Step();
  const auto opens_of = [&] {
    return std::count_if(sent_on_[kOther].begin(), sent_on_[kOther].end(), [](const DraftRequest& sent) {
      return std::holds_alternative<OpenSession>(sent.event);
    });
  };
  EXPECT_EQ(opens_of(), static_cast<ptrdiff_t>(at_once)) << "the drafter has not answered";
  RunAndGrow(ask);
  EXPECT_EQ(opens_of(), static_cast<ptrdiff_t>(kSessions));
  ASSERT_EQ(swaps_.size(), kSessions);
  for (SessionId id = 1; id <= kSessions; ++id) {
    EXPECT_TRUE(swaps_[id - 1].status.ok()) << swaps_[id - 1].status;
    ExpectReference(id, ask);
    EXPECT_EQ(records_[id].summary.drafter, "new");
  }
}

// The drafter that refuses waits for a second; the one that takes its place only for its turn to be opened.
TEST_F(DrafterSwapTest, ThePauseAfterARefusalIsOfTheOneThatRefused) {
  Scheduler::Options options = Fixed();
  options.max_opening_tokens = 10;
  Make(options);
  scheduler_->OnLinkUp(kLink);
  scheduler_->OnLinkUp(kOther);
  const Ask ask{.rules = {.max_tokens = 200}};
  ASSERT_TRUE(SubmitOn(1, ask, {On(kOther, "b")}).ok());
  ASSERT_TRUE(SubmitOn(2, ask, {On(kLink, "a"), On(kOther, "b")}).ok());
  scheduler_->Step();
  const SessionId waits_at_b = OpenDrafts().at(0);
  const SessionId refused = OpenDrafts().at(1);
  const uint32_t epoch = drafts_.at(refused).epoch;
  drafts_.erase(refused);
  Answer(refused, SessionRefused{.epoch = epoch, .status = absl::ResourceExhaustedError("full")});
  EXPECT_EQ(bound_, std::vector<std::string>{"b"});
  EXPECT_EQ(drafts_.size(), 1u) << "not while another is being opened there";
  Open(waits_at_b);
  clock_.Advance(absl::Milliseconds(20));
  scheduler_->Step();
  EXPECT_EQ(drafts_.size(), 2u);
  RunAndGrow(ask);
  ExpectReference(1, ask);
  ExpectReference(2, ask);
}

}  // namespace
}  // namespace tandem
