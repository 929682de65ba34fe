#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "verifier/testing/scheduler_test_fixture.h"

namespace tandem {
namespace {

constexpr LinkId kPartnerLink = kLink + 1;
constexpr size_t kDrafter = static_cast<size_t>(DraftOrigin::kDrafter);
constexpr size_t kPartner = static_cast<size_t>(DraftOrigin::kPartner);

// A session with a drafter on kLink and a partner on kPartnerLink; each draft is known by its wire id.
class DraftPartnerTest : public SchedulerTest {
 protected:
  void OnDraftRequest(LinkId link, DraftRequest request) override {
    if (const auto* open = std::get_if<OpenSession>(&request.event)) {
      links_[request.session] = link;
      epochs_on_[link].push_back({request.session, open->epoch});
    }
    EXPECT_EQ(link, links_.at(request.session));
    SchedulerTest::OnDraftRequest(kLink, std::move(request));
  }
  void OnDrafterChanged(SessionId, const DrafterBinding& binding) override { bound_.push_back(binding.name); }
  void TearDown() override {
    SchedulerTest::TearDown();
    EXPECT_TRUE(drafts_.empty()) << "every draft is closed in the end, or its link is lost";
  }

  absl::Status SubmitPair(SessionId id, const Ask& ask) {
    SessionRequest request{.prompt = ask.prompt,
                           .max_tokens = ask.rules.max_tokens,
                           .sampling = ask.sampling,
                           .output = std::make_unique<OutputAssembler>(TestTokenizer(), ask.rules)};
    request.drafter = DrafterBinding{.link = kLink, .name = "first", .draft_model = "first-model"};
    request.partner = DrafterBinding{.link = kPartnerLink, .name = "second", .draft_model = "second-model"};
    return scheduler_->Submit(id, std::move(request));
  }

  std::vector<SessionId> DraftsOn(LinkId link) const {
    std::vector<SessionId> ids;
    for (const auto& [id, state] : drafts_) {
      if (links_.at(id) == link) ids.push_back(id);
    }
    return ids;
  }
  void Answer(SessionId draft, decltype(DraftResponse::event) event) {
    scheduler_->OnDraftResponse(links_.at(draft), {.session = draft, .event = std::move(event)});
  }
  // Everything that drafts on `link` sends `num_right` tokens of the output and then wrong ones.
  void DraftOn(LinkId link, const Ask& ask, uint32_t num_right, uint32_t num_wrong) {
    TokenIds all = ask.prompt;
    const TokenIds output = Reference(ask).tokens;
    all.insert(all.end(), output.begin(), output.end());
    for (SessionId draft : DraftsOn(link)) {
      DraftState& state = drafts_.at(draft);
      Answer(draft, SessionOpened{.epoch = state.epoch});
      if (!std::exchange(state.wants_growth, false) || state.budget.depth == 0) continue;
      TokenIds tokens;
      for (size_t at = state.tokens.size(); at < all.size() && tokens.size() < num_right + num_wrong; ++at) {
        const TokenId right = all[at];
        tokens.push_back(tokens.size() < num_right ? right : (right + 1) % kVocabSize);
      }
      if (!tokens.empty()) Answer(draft, Chain(draft, tokens));
    }
  }
  void Lose(LinkId link) {
    for (SessionId draft : DraftsOn(link)) drafts_.erase(draft);
    scheduler_->OnLinkDown(link, absl::UnavailableError("killed"));
  }
  const OriginSummary* SummaryOf(SessionId id, DraftOrigin origin, const std::string& name) {
    for (const OriginSummary& entry : records_[id].summary.by_origin) {
      if (entry.origin == origin && entry.drafter == name) return &entry;
    }
    return nullptr;
  }

  // Brings up both links and the session 1 with its two drafts.
  void OpenPair(const Ask& ask, Scheduler::Options options) {
    Make(options);
    scheduler_->OnLinkUp(kLink);
    scheduler_->OnLinkUp(kPartnerLink);
    ASSERT_TRUE(SubmitPair(1, ask).ok());
    scheduler_->Step();
    DraftOn(kLink, ask, 1, 0);
    ASSERT_EQ(DraftsOn(kPartnerLink).size(), 1u);
  }
  void RefusePartner(absl::Status status) {
    const SessionId draft = DraftsOn(kPartnerLink).at(0);
    const uint32_t epoch = drafts_.at(draft).epoch;
    drafts_.erase(draft);
    Answer(draft, SessionRefused{.epoch = epoch, .status = std::move(status)});
  }
  size_t NumOpensOn(LinkId link) { return epochs_on_[link].size(); }

  std::map<SessionId, LinkId> links_;
  std::map<LinkId, std::vector<std::pair<SessionId, uint32_t>>> epochs_on_;  // Of each opening.
  std::vector<std::string> bound_;
};

TEST_F(DraftPartnerTest, EachIsCreditedWithWhatItAdds) {
  Make();
  scheduler_->OnLinkUp(kLink);
  scheduler_->OnLinkUp(kPartnerLink);
  const Ask ask{.rules = {.max_tokens = 40}};
  ASSERT_TRUE(SubmitPair(1, ask).ok());
  // The second one knows one token more than the first, and the first one's too.
  RunToTheEnd([&] {
    DraftOn(kLink, ask, 1, 1);
    DraftOn(kPartnerLink, ask, 2, 0);
  });
  ExpectReference(1, ask);
  const OriginSummary* const first = SummaryOf(1, DraftOrigin::kDrafter, "first");
  const OriginSummary* const second = SummaryOf(1, DraftOrigin::kPartner, "second");
  ASSERT_TRUE(first != nullptr && second != nullptr);
  EXPECT_GT(first->accepted_tokens, 5u);
  EXPECT_GT(second->accepted_tokens, 5u);
  EXPECT_LT(second->accepted_tokens, second->rounds + 1) << "what both knew is the first one's";
  EXPECT_EQ(first->accepted_tokens + second->accepted_tokens, records_[1].summary.accepted_tokens);
  EXPECT_GT(records_[1].summary.merged_rounds, 5u);
  bool together = false;
  for (const RoundReport& round : records_[1].rounds) {
    together = together || (round.shares[kDrafter].accepted == 1 && round.shares[kPartner].accepted == 1);
    EXPECT_EQ(round.drafters.NameOf(DraftOrigin::kPartner),
              round.shares[kPartner].nodes > 0 ? "second" : round.drafters.partner);
  }
  EXPECT_TRUE(together);
}

TEST_F(DraftPartnerTest, OneThatIsLostOrRefusesCostsNothing) {
  Make();
  scheduler_->OnLinkUp(kLink);
  scheduler_->OnLinkUp(kPartnerLink);
  const Ask ask{.rules = {.max_tokens = 40}};
  ASSERT_TRUE(SubmitPair(1, ask).ok());
  ASSERT_TRUE(SubmitPair(2, ask).ok());
  int turn = 0;
  RunToTheEnd([&] {
    if (++turn == 4) Lose(kPartnerLink);
    if (turn == 6) scheduler_->OnLinkUp(kPartnerLink);
    if (turn == 8) {
      for (SessionId draft : DraftsOn(kPartnerLink)) {
        const uint32_t epoch = drafts_.at(draft).epoch;
        drafts_.erase(draft);
        Answer(draft, SessionRefused{.epoch = epoch, .status = absl::NotFoundError("no such model")});
      }
    }
    DraftOn(kLink, ask, 2, 0);
    DraftOn(kPartnerLink, ask, 3, 0);
  });
  ExpectReference(1, ask);
  ExpectReference(2, ask);
  EXPECT_EQ(records_[1].summary.drafter, "first");
  EXPECT_EQ(records_[1].summary.drafter_lost, "");
  EXPECT_TRUE(bound_.empty());
}

TEST_F(DraftPartnerTest, TakesThePlaceOfADrafterThatIsLost) {
  Make();
  scheduler_->OnLinkUp(kLink);
  scheduler_->OnLinkUp(kPartnerLink);
  const Ask ask{.rules = {.max_tokens = 40}};
  ASSERT_TRUE(SubmitPair(1, ask).ok());
  int turn = 0;
  RunToTheEnd([&] {
    if (++turn == 5) Lose(kLink);
    DraftOn(kLink, ask, 1, 0);
    DraftOn(kPartnerLink, ask, 2, 0);
  });
  ExpectReference(1, ask);
  EXPECT_EQ(bound_, std::vector<std::string>{"second"});
  EXPECT_EQ(records_[1].summary.drafter, "second");
  ASSERT_NE(SummaryOf(1, DraftOrigin::kDrafter, "second"), nullptr);
  EXPECT_GT(SummaryOf(1, DraftOrigin::kDrafter, "second")->accepted_tokens, 0u);
}

TEST_F(DraftPartnerTest, OneThatAddsNothingIsClosed) {
  Make();
  scheduler_->OnLinkUp(kLink);
  scheduler_->OnLinkUp(kPartnerLink);
  const Ask ask{.rules = {.max_tokens = 600}};
  ASSERT_TRUE(SubmitPair(1, ask).ok());
  bool closed = false;
  RunToTheEnd([&] {
    DraftOn(kLink, ask, 2, 0);
    DraftOn(kPartnerLink, ask, 1, 0);
    closed = closed || (DraftsOn(kPartnerLink).empty() && DraftsOn(kLink).size() == 1 &&
                        scheduler_->num_running() == 1 && records_[1].tokens.size() > 20);
  });
  ExpectReference(1, ask);
  EXPECT_TRUE(closed);
}

TEST_F(DraftPartnerTest, LiesEndInQuarantineAndHarmNobody) {
  Make();
  scheduler_->OnLinkUp(kLink);
  scheduler_->OnLinkUp(kPartnerLink);
  const Ask ask{.rules = {.max_tokens = 40}};
  ASSERT_TRUE(SubmitPair(1, ask).ok());
  RunToTheEnd([&] {
    DraftOn(kLink, ask, 2, 0);
    for (SessionId draft : DraftsOn(kPartnerLink)) {
      Grow lie = Chain(draft, {1});
      lie.tokens = {kVocabSize};
      Answer(draft, std::move(lie));
    }
  });
  ExpectReference(1, ask);
  EXPECT_EQ(violations_, (std::vector<bool>{false, false, true}));
  EXPECT_EQ(records_[1].summary.drafter, "first");
}

// It drafts already: nothing is opened anew, and its tree stays.
TEST_F(DraftPartnerTest, TakesThePlaceOfALostDrafterWithTheTreeThatItHas) {
  const Ask ask{.rules = {.max_tokens = 40}};
  OpenPair(ask, {.window_policy = "fixed"});
  DraftOn(kPartnerLink, ask, 3, 0);
  Lose(kLink);
  EXPECT_EQ(bound_, std::vector<std::string>{"second"});
  scheduler_->Step();
  EXPECT_EQ(records_[1].rounds.back().shares[kDrafter].accepted, 3u);
  EXPECT_EQ(NumOpensOn(kPartnerLink), 1u);
  // The lost one is an alternate from now on, and the partner may be lost as well.
  scheduler_->OnLinkUp(kLink);
  Lose(kPartnerLink);
  EXPECT_EQ(bound_, (std::vector<std::string>{"second", "first"}));
  RunToTheEnd([&] { DraftOn(kLink, ask, 1, 0); });
  ExpectReference(1, ask);
  EXPECT_EQ(records_[1].summary.drafter_lost, "");
}

// A refusal for lack of room means the same in every role.
TEST_F(DraftPartnerTest, OneWithoutRoomIsAskedAgainLaterAndLater) {
  const Ask ask{.rules = {.max_tokens = 60}};
  OpenPair(ask, FixedWindow(4));
  size_t num_opens = 1;
  for (const int seconds : {1, 2, 4}) {
    RefusePartner(absl::ResourceExhaustedError("full"));
    // The drafter's own resync does not ask it any earlier.
    const SessionId draft = DraftsOn(kLink).at(0);
    Answer(draft, ResyncNeeded{.epoch = drafts_.at(draft).epoch});
    DraftOn(kLink, ask, 1, 0);
    clock_.Advance(absl::Seconds(seconds) - absl::Milliseconds(3));
    scheduler_->Step();
    EXPECT_EQ(NumOpensOn(kPartnerLink), num_opens) << "after less than " << seconds << " s";
    clock_.Advance(absl::Milliseconds(3));
    scheduler_->Step();
    ASSERT_EQ(NumOpensOn(kPartnerLink), ++num_opens);
    EXPECT_EQ(epochs_on_[kPartnerLink].back().second, num_opens) << "a late message is of an old epoch";
  }
  // A new connection may be to one that has room.
  RefusePartner(absl::ResourceExhaustedError("full"));
  Lose(kPartnerLink);
  scheduler_->OnLinkUp(kPartnerLink);
  EXPECT_EQ(NumOpensOn(kPartnerLink), ++num_opens);
  RefusePartner(absl::NotFoundError("no such model"));
  scheduler_->OnLinkUp(kPartnerLink);
  RunToTheEnd([&] { DraftOn(kLink, ask, 1, 0); });
  ExpectReference(1, ask);
  EXPECT_EQ(NumOpensOn(kPartnerLink), num_opens) << "any other refusal is final";
}

TEST_F(DraftPartnerTest, OneThatKeepsAskingForAResyncIsGivenUpAndThatIsAViolation) {
  const Ask ask{.rules = {.max_tokens = 40}};
  OpenPair(ask, FixedWindow(4));
  const SessionId draft = DraftsOn(kPartnerLink).at(0);
  for (int i = 0; i < 100 && drafts_.contains(draft); ++i) {
    Answer(draft, ResyncNeeded{.epoch = drafts_.at(draft).epoch});
  }
  EXPECT_EQ(NumOpensOn(kPartnerLink), 1u + DraftPeer::kMaxResyncs);
  EXPECT_EQ(violations_, std::vector<bool>{false});
  scheduler_->OnLinkUp(kPartnerLink);
  RunToTheEnd([&] { DraftOn(kLink, ask, 1, 0); });
  ExpectReference(1, ask);
  EXPECT_EQ(NumOpensOn(kPartnerLink), 1u + DraftPeer::kMaxResyncs);
}

// Sessions that run when a drafter is quarantined go on without it, whatever it was to them.
TEST_F(DraftPartnerTest, OneThatWasQuarantinedDoesNotComeBackToTheSession) {
  const Ask ask{.rules = {.max_tokens = 60}};
  OpenPair(ask, FixedWindow(4));
  for (int i = 0; i < 3; ++i) scheduler_->OnMalformedResponse(kPartnerLink, "not a message");
  ASSERT_EQ(violations_, (std::vector<bool>{false, false, true}));
  EXPECT_TRUE(DraftsOn(kPartnerLink).empty());
  clock_.Advance(absl::Minutes(2));
  scheduler_->OnLinkUp(kPartnerLink);
  RunToTheEnd([&] { DraftOn(kLink, ask, 1, 0); });
  ExpectReference(1, ask);
  EXPECT_EQ(NumOpensOn(kPartnerLink), 1u);
}

// Both are closed while there is nothing to draft. A drafter remembers the epoch of what it closed, so that
// the next opening has to be of a later one, or of another id.
TEST_F(DraftPartnerTest, ItIsOpenedAgainWithTheDrafterAndInALaterEpoch) {
  const Ask ask{.rules = {.max_tokens = 60}};
  OpenPair(ask, FixedWindow(4));
  for (uint32_t opening = 2; opening <= 4; ++opening) {
    ASSERT_TRUE(scheduler_->SetWindowPolicy("fsm", {.fsm = {.initial_depth = 0}}).ok());
    const SessionId draft = DraftsOn(kLink).at(0);
    Answer(draft, ResyncNeeded{.epoch = drafts_.at(draft).epoch});
    EXPECT_TRUE(drafts_.empty()) << "there is nothing to draft";
    ASSERT_TRUE(scheduler_->SetWindowPolicy("fixed", {}).ok());
    scheduler_->Step();
    ASSERT_EQ(NumOpensOn(kPartnerLink), opening);
    EXPECT_EQ(epochs_on_[kPartnerLink].back(), std::pair(epochs_on_[kPartnerLink][0].first, opening));
    DraftOn(kLink, ask, 1, 0);
  }
  RunToTheEnd([&] {
    DraftOn(kLink, ask, 1, 0);
    DraftOn(kPartnerLink, ask, 2, 0);
  });
  ExpectReference(1, ask);
}

// What a partner needs for its openings counts as much as what a drafter needs.
TEST_F(DraftPartnerTest, ManyPartnersAreOpenedOneAfterTheOther) {
  Scheduler::Options options = FixedWindow(4);
  options.max_opening_tokens = 20;
  Make(options);
  scheduler_->OnLinkUp(kLink);
  const Ask ask{.rules = {.max_tokens = 100}};
  for (SessionId id = 1; id <= 6; ++id) ASSERT_TRUE(SubmitPair(id, ask).ok());
  for (int turn = 0; turn < 8; ++turn) {
    scheduler_->Step();
    for (SessionId draft : DraftsOn(kLink)) Answer(draft, SessionOpened{.epoch = drafts_.at(draft).epoch});
    clock_.Advance(absl::Milliseconds(20));
  }
  ASSERT_EQ(DraftsOn(kLink).size(), 6u);
  scheduler_->OnLinkUp(kPartnerLink);
  const size_t at_once = NumOpensOn(kPartnerLink);
  EXPECT_GE(at_once, 1u);
  EXPECT_LT(at_once, 6u);
  clock_.Advance(absl::Seconds(1));
  scheduler_->Step();
  EXPECT_EQ(NumOpensOn(kPartnerLink), at_once) << "the drafter has not answered";
  RunToTheEnd([&] {
    DraftOn(kLink, ask, 1, 0);
    DraftOn(kPartnerLink, ask, 2, 0);
  });
  for (SessionId id = 1; id <= 6; ++id) ExpectReference(id, ask);
  EXPECT_EQ(NumOpensOn(kPartnerLink), 6u);
}

}  // namespace
}  // namespace tandem
