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
    if (std::holds_alternative<OpenSession>(request.event)) links_[request.session] = link;
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

  std::map<SessionId, LinkId> links_;
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

}  // namespace
}  // namespace tandem
