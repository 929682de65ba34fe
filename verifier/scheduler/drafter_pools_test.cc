#include "verifier/scheduler/drafter_pools.h"

#include <algorithm>
#include <map>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr PoolId kPool = 9;

class DrafterPoolsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (LinkId link = 0; link < 4; ++link) pools_.OnLinkUp(link);
    pools_.SetMembers(kPool, {3, 2, 1, 0, 0});
  }

  SessionRequest Place(SessionId session) {
    SessionRequest request;
    request.drafter = DrafterBinding{.link = kNoLink, .name = "d", .draft_model = "m", .pool = kPool};
    pools_.Place(session, &request, now_);
    on_[session] = request.drafter->link;
    return request;
  }
  // Makes and carries out a plan.
  DrafterPools::Plan Move(bool may_move = true) {
    now_ += absl::Seconds(1);
    DrafterPools::Plan plan = pools_.MakePlan(now_, [may_move](SessionId) { return may_move; });
    for (const DrafterPools::Move& move : plan.moves) {
      EXPECT_NE(move.to.link, on_[move.session]);
      pools_.OnDrafterChanged(move.session, move.to);
      on_[move.session] = move.to.link;
    }
    return plan;
  }
  // How many of a plan's moves have each reason, by MoveReason.
  static std::vector<int> Reasons(const DrafterPools::Plan& plan) {
    std::vector<int> count(DrafterPools::kNumMoveReasons);
    for (const DrafterPools::Move& move : plan.moves) ++count.at(static_cast<size_t>(move.reason));
    return count;
  }
  void Report(LinkId link, uint32_t sessions, float step_seconds = 0.0f) {
    pools_.OnResponse(link, {.event = Grow{.step_seconds = step_seconds}, .drafter_sessions = sessions},
                      now_);
  }
  std::vector<int> Count() const {
    std::vector<int> count(4);
    for (const auto& [session, link] : on_) ++count.at(link);
    return count;
  }

  absl::Time now_ = absl::UnixEpoch();
  uint64_t state_ = 1;
  DrafterPools pools_{{}, [this] {
                        state_ = state_ * 6364136223846793005u + 1442695040888963407u;
                        return static_cast<double>(state_ >> 11) * 0x1p-53;
                      }};
  std::map<SessionId, LinkId> on_;
};

TEST_F(DrafterPoolsTest, SessionsGoWhereTheFewestAreAndTheOthersStandBy) {
  for (SessionId id = 1; id <= 8; ++id) {
    const SessionRequest request = Place(id);
    std::vector<LinkId> links{request.drafter->link};
    for (const DrafterBinding& alternate : request.alternates) links.push_back(alternate.link);
    std::sort(links.begin(), links.end());
    EXPECT_THAT(links, ElementsAre(0, 1, 2, 3));
  }
  EXPECT_THAT(Count(), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(Move().moves, IsEmpty());
}

TEST_F(DrafterPoolsTest, SessionsOfOtherVerifiersCount) {
  Report(0, 5);
  Report(1, 5);
  Report(2, 5);
  for (SessionId id = 1; id <= 5; ++id) Place(id);
  EXPECT_THAT(Count(), ElementsAre(0, 0, 0, 5));
}

TEST_F(DrafterPoolsTest, AnOldReportSaysNothing) {
  Report(0, 100);
  now_ += absl::Minutes(1);
  for (SessionId id = 1; id <= 4; ++id) Place(id);
  EXPECT_THAT(Count(), ElementsAre(1, 1, 1, 1));
}

TEST_F(DrafterPoolsTest, TheSlowOneGetsItsShareOnly) {
  for (LinkId link = 0; link < 4; ++link) Report(link, 0, link == 0 ? 0.004f : 0.001f);
  for (SessionId id = 1; id <= 13; ++id) Place(id);
  EXPECT_THAT(Count(), ElementsAre(1, 4, 4, 4));
}

TEST_F(DrafterPoolsTest, SessionsLeaveOneThatIsDownOrGone) {
  for (SessionId id = 1; id <= 8; ++id) Place(id);
  pools_.OnLinkDown(0);
  pools_.SetMembers(kPool, {0, 1, 2});
  EXPECT_THAT(Reasons(Move(/*may_move=*/false)), ElementsAre(4, 0, 0));
  EXPECT_THAT(Count(), ElementsAre(0, 4, 4, 0));
}

TEST_F(DrafterPoolsTest, ANewOneGetsItsShare) {
  pools_.SetMembers(kPool, {0, 1});
  for (SessionId id = 1; id <= 16; ++id) Place(id);
  EXPECT_THAT(Count(), ElementsAre(8, 8, 0, 0));
  pools_.SetMembers(kPool, {0, 1, 2, 3});
  EXPECT_THAT(Move(/*may_move=*/false).moves, IsEmpty());
  EXPECT_THAT(Reasons(Move()), ElementsAre(0, 8, 0));
  EXPECT_THAT(Count(), ElementsAre(4, 4, 4, 4));
}

TEST_F(DrafterPoolsTest, WhoHasHadItsShareIsNotNew) {
  for (SessionId id = 1; id <= 16; ++id) Place(id);
  EXPECT_THAT(Move().moves, IsEmpty());
  // Those on two of them end, and the others are spread again.
  for (auto at = on_.begin(); at != on_.end();) {
    if (at->second < 2) {
      ++at;
      continue;
    }
    pools_.OnFinished(at->first);
    at = on_.erase(at);
  }
  EXPECT_THAT(Reasons(Move()), ElementsAre(0, 0, 4));
  EXPECT_THAT(Count(), ElementsAre(2, 2, 2, 2));
}

TEST_F(DrafterPoolsTest, VerifiersMoveTheirPartOfWhatIsTooMuch) {
  // 8 of 32 sessions there are this verifier's: of the 24 that are too many it moves 6.
  pools_.SetMembers(kPool, {0});
  for (SessionId id = 1; id <= 8; ++id) Place(id);
  Report(0, 32);
  pools_.SetMembers(kPool, {0, 1, 2, 3});
  now_ += absl::Seconds(1);
  Report(0, 32);
  EXPECT_THAT(pools_.MakePlan(now_, [](SessionId) { return true; }).moves, SizeIs(6));
}

TEST_F(DrafterPoolsTest, AsksThoseOfWhomItHearsNothing) {
  Place(1);
  Report(0, 1);
  Report(1, 1);
  EXPECT_THAT(Move().queries, ElementsAre(0, 1)) << "the others may not know the question";
  Report(1, 1);
  now_ -= absl::Seconds(1);
  EXPECT_THAT(pools_.MakePlan(now_, [](SessionId) { return true; }).queries, IsEmpty()) << "not due yet";
}

TEST_F(DrafterPoolsTest, WithoutMembersNobodyDraftsUntilOneComes) {
  pools_.SetMembers(kPool, {});
  EXPECT_EQ(Place(1).drafter->link, kNoLink);
  EXPECT_THAT(Move().moves, IsEmpty());
  pools_.SetMembers(kPool, {2});
  EXPECT_EQ(Move().moves.at(0).to.link, 2u);
}

TEST_F(DrafterPoolsTest, IdleWithoutSessions) {
  EXPECT_EQ(pools_.NextPlan(), absl::InfiniteFuture());
  Place(1);
  EXPECT_LT(pools_.NextPlan(), absl::InfiniteFuture());
  pools_.OnFinished(1);
  EXPECT_EQ(pools_.NextPlan(), absl::InfiniteFuture());
}

}  // namespace
}  // namespace tandem
