#include "verifier/session/draft_peer.h"

#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/hash.h"
#include "common/engine/block_pool.h"
#include "common/speculation/policies/window_policy.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "verifier/session/drafter_record.h"
#include "verifier/session/session.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using Event = DraftPeer::Event;
using State = DraftPeer::State;

constexpr SessionId kPeerDraftId = 9;
constexpr int32_t kPeerVocabulary = 100;
constexpr uint64_t kPeerHash = 0xabc;

absl::Time At(double seconds) {
  return absl::UnixEpoch() + absl::Seconds(seconds);
}

class DraftPeerTest : public ::testing::Test {
 protected:
  DraftPeerTest() { Make(); }

  void Make() {
    peer_ = std::make_unique<DraftPeer>(kPeerDraftId,
                                        DrafterBinding{.link = 5, .name = "code", .draft_model = "small"},
                                        &record_, kPeerVocabulary, At(0));
    commit_no_ = 0;
  }
  OpenSession Open(DraftBudget budget = {.depth = 4, .nodes = 4}) {
    return peer_->Open({.commit_no = commit_no_, .prefix_hash = kPeerHash + commit_no_, .budget = budget});
  }
  Commit CommitTokens(TokenIds tokens, absl::Time now = At(0),
                      DraftBudget budget = {.depth = 4, .nodes = 4}) {
    ++commit_no_;
    return peer_->AddCommit({.commit_no = commit_no_,
                             .tokens = std::move(tokens),
                             .prefix_hash = kPeerHash + commit_no_,
                             .budget = budget},
                            now);
  }
  // A chain below the root as of the last commit.
  Grow Chain(NodeId first_id, const TokenIds& tokens, bool exhausted = false) const {
    Grow grow{.epoch = peer_->mirror().epoch(),
              .seen_commit = commit_no_,
              .prefix_hash = kPeerHash + commit_no_,
              .first_id = first_id,
              .exhausted = exhausted};
    for (uint32_t i = 0; i < tokens.size(); ++i) {
      grow.parents.push_back(i == 0 ? 0 : first_id + i - 1);
      grow.tokens.push_back(tokens[i]);
      grow.scores.push_back(0.5f);
    }
    return grow;
  }
  DraftPeer::Outcome Receive(decltype(DraftResponse::event) event, absl::Time received = At(0)) {
    return peer_->OnResponse({.session = kPeerDraftId, .event = std::move(event)}, received);
  }
  uint32_t epoch() const { return peer_->mirror().epoch(); }

  // Leads a new peer to `state`.
  void Reach(State state) {
    Make();
    if (state == State::kIdle) return;
    Open();
    if (state == State::kOpening) return;
    ASSERT_EQ(Receive(SessionOpened{.epoch = epoch()}).event, Event::kOpened);
    if (state == State::kSuspended) peer_->Suspend();
    if (state == State::kLost) peer_->Lose();
    ASSERT_EQ(peer_->state(), state);
  }

  DrafterRecord record_;
  std::unique_ptr<DraftPeer> peer_;
  uint32_t commit_no_ = 0;
};

// What a message of the current opening does while the session is open.
struct PeerMessage {
  const char* name;
  std::function<decltype(DraftResponse::event)(uint32_t epoch)> message;
  Event event;
  State after;  // From kOpening; from kAnswered likewise, unless this is kOpening.
};

void PrintTo(const PeerMessage& message, std::ostream* stream) {
  *stream << message.name;
}

Grow GrowthIn(uint32_t epoch) {
  return {.epoch = epoch,
          .prefix_hash = kPeerHash,
          .first_id = 1,
          .parents = {0, 1},
          .tokens = {3, 4},
          .scores = {0.5f, 0.5f}};
}

std::vector<PeerMessage> PeerMessages() {
  return {
      {"Opened", [](uint32_t epoch) { return SessionOpened{.epoch = epoch}; }, Event::kOpened,
       State::kAnswered},
      {"Growth", [](uint32_t epoch) { return GrowthIn(epoch); }, Event::kNone, State::kAnswered},
      {"GrowthOfAnotherText",
       [](uint32_t epoch) {
         Grow grow = GrowthIn(epoch);
         grow.prefix_hash ^= 1;
         return grow;
       },
       Event::kResync, State::kOpening},
      {"GrowthThatBreaksTheProtocol",
       [](uint32_t epoch) {
         Grow grow = GrowthIn(epoch);
         grow.tokens[1] = kPeerVocabulary;
         return grow;
       },
       Event::kViolation, State::kOpening},
      {"Resync", [](uint32_t epoch) { return ResyncNeeded{.epoch = epoch}; }, Event::kResync,
       State::kOpening},
      {"RefusedForLackOfRoom",
       [](uint32_t epoch) {
         return SessionRefused{.epoch = epoch, .status = absl::ResourceExhaustedError("full")};
       },
       Event::kRefused, State::kIdle},
      {"RefusedForGood",
       [](uint32_t epoch) {
         return SessionRefused{.epoch = epoch, .status = absl::NotFoundError("no such model")};
       },
       Event::kRefused, State::kLost},
      {"FeaturesUsedByOneThatReadsNone",
       [](uint32_t epoch) { return FeaturesUsed{.epoch = epoch, .position = 3}; }, Event::kNone,
       State::kOpening},
      {"LoadReport", [](uint32_t) { return LoadReport{}; }, Event::kNone, State::kOpening},
  };
}

class DraftPeerMessageTest : public DraftPeerTest, public ::testing::WithParamInterface<PeerMessage> {};

TEST_P(DraftPeerMessageTest, DoesTheSameInBothOpenStates) {
  for (const State before : {State::kOpening, State::kAnswered}) {
    Reach(before);
    EXPECT_EQ(Receive(GetParam().message(epoch())).event, GetParam().event);
    EXPECT_EQ(peer_->state(), GetParam().after == State::kOpening ? before : GetParam().after);
  }
}

TEST_P(DraftPeerMessageTest, IsDroppedWhileNothingIsOpen) {
  for (const State before : {State::kIdle, State::kSuspended, State::kLost}) {
    Reach(before);
    EXPECT_EQ(Receive(GetParam().message(epoch())).event, Event::kNone);
    EXPECT_EQ(peer_->state(), before);
    EXPECT_TRUE(peer_->mirror().tree().empty());
    EXPECT_EQ(peer_->retry_at(), std::nullopt);
  }
}

TEST_P(DraftPeerMessageTest, IsDroppedIfItIsOfAnEarlierOpening) {
  Reach(State::kAnswered);
  const uint32_t before = epoch();
  EXPECT_EQ(Open().epoch, before + 1);
  EXPECT_EQ(Receive(GetParam().message(before)).event, Event::kNone);
  EXPECT_EQ(peer_->state(), State::kOpening);
  EXPECT_TRUE(peer_->mirror().tree().empty());
}

INSTANTIATE_TEST_SUITE_P(All, DraftPeerMessageTest, ::testing::ValuesIn(PeerMessages()),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

TEST_F(DraftPeerTest, OutcomesSayWhatTheMessageWas) {
  Reach(State::kAnswered);
  EXPECT_EQ(Receive(Chain(1, {3, 4})).added, 2u);
  CommitTokens({7});
  Grow late = Chain(3, {5});
  late.seen_commit = 0;
  late.prefix_hash = kPeerHash;
  const DraftPeer::Outcome stale = Receive(late);
  EXPECT_EQ(std::tuple(stale.added, stale.stale), std::tuple(0u, 1u));
  Grow invalid = Chain(4, {kPeerVocabulary});
  EXPECT_THAT(Receive(invalid).violation, HasSubstr("has token 100"));
  const SessionOpened opened{.epoch = epoch(), .features = FeatureNeeds{.layers = {2}}};
  const DraftResponse response{.session = kPeerDraftId, .event = opened};
  const DraftPeer::Outcome answered = peer_->OnResponse(response, At(0));
  ASSERT_NE(answered.needs, nullptr);
  EXPECT_EQ(answered.needs->layers, std::vector<uint32_t>{2});
  const absl::Status full = absl::ResourceExhaustedError("full");
  EXPECT_EQ(Receive(SessionRefused{.epoch = epoch(), .status = full}).refusal, full);
}

TEST_F(DraftPeerTest, MessagesAreCompletedWithWhatOnlyThePeerKnows) {
  const OpenSession open = Open();
  EXPECT_EQ(open.epoch, 1u);
  EXPECT_EQ(open.draft_model, "small");
  Receive(Chain(1, {3, 4, 5}));
  const Commit hit = CommitTokens({3, 4});
  EXPECT_EQ(hit.epoch, 1u);
  EXPECT_EQ(hit.new_root, 2u);
  EXPECT_EQ(CommitTokens({9}).new_root, std::nullopt);
}

TEST_F(DraftPeerTest, TheBudgetIsTheOneThatWasSentLast) {
  EXPECT_EQ(peer_->budget(), DraftBudget{});
  Open({.depth = 2, .nodes = 6});
  EXPECT_EQ(peer_->budget().nodes, 6u);
  CommitTokens({7}, At(0), {.depth = 3, .nodes = 7});
  EXPECT_EQ(peer_->budget().nodes, 7u);
  for (const auto& end : std::vector<std::function<void()>>{
           [&] { peer_->Close(); }, [&] { peer_->Suspend(); }, [&] { peer_->Lose(); }}) {
    if (!peer_->drafting()) Open();
    end();
    EXPECT_EQ(peer_->budget(), DraftBudget{});
    EXPECT_FALSE(peer_->drafting());
  }
}

TEST_F(DraftPeerTest, WhatIsLostStaysLost) {
  Reach(State::kLost);
  peer_->Close();
  peer_->Suspend();
  EXPECT_TRUE(peer_->lost());
}

TEST_F(DraftPeerTest, ResyncsAreGrantedUntilThereAreTooManyWithoutGrowth) {
  Open();
  const auto resync = [&] { return Receive(ResyncNeeded{.epoch = epoch()}).event; };
  for (int time = 0; time < 3; ++time) {
    // However the drafter says it, and in between it may be closed and opened again.
    EXPECT_EQ(resync(), Event::kResync);
    Open();
    Grow grow = Chain(1, {3});
    grow.prefix_hash ^= 1;
    EXPECT_EQ(Receive(grow).event, Event::kResync);
    peer_->Close();
    Open();
    EXPECT_EQ(resync(), Event::kResync);
    Open();
    // Neither an answer nor growth that comes too late counts as progress.
    Receive(SessionOpened{.epoch = epoch()});
    CommitTokens({7});
    Grow late = Chain(1, {5});
    late.seen_commit = commit_no_ - 1;
    late.prefix_hash = kPeerHash + commit_no_ - 1;
    EXPECT_EQ(Receive(late).stale, 1u);
    EXPECT_EQ(resync(), Event::kResync);
    Open();
    if (time < 2) {
      EXPECT_EQ(Receive(Chain(1, {3})).added, 1u);
    }
  }
  EXPECT_EQ(resync(), Event::kResyncLimit);
}

TEST_F(DraftPeerTest, ItIsReadyWhenItHasDraftedOrHasSaidThatThereIsNothing) {
  EXPECT_FALSE(peer_->ready());
  Open();
  Receive(SessionOpened{.epoch = epoch()});
  EXPECT_FALSE(peer_->ready()) << "an answer is no candidate yet";
  Receive(Chain(1, {}, /*exhausted=*/true));
  EXPECT_TRUE(peer_->ready());
  Open();
  EXPECT_FALSE(peer_->ready()) << "what came before a resync does not count";
  Receive(Chain(1, {3}));
  EXPECT_TRUE(peer_->ready());
  Open({.depth = 0});
  EXPECT_FALSE(peer_->ready());
  Receive(SessionOpened{.epoch = epoch()});
  EXPECT_TRUE(peer_->ready()) << "there is nothing to draft";
}

TEST_F(DraftPeerTest, RetriesComeLaterAndLaterUntilGrowthComes) {
  const auto pause = [&] {
    peer_->Postpone(At(100), absl::Seconds(1), absl::Seconds(3));
    return *peer_->retry_at() - At(100);
  };
  EXPECT_EQ(peer_->retry_at(), std::nullopt);
  EXPECT_EQ(pause(), absl::Seconds(1));
  Open();
  EXPECT_EQ(peer_->retry_at(), std::nullopt);
  Receive(SessionOpened{.epoch = epoch()});
  peer_->Close();
  EXPECT_EQ(pause(), absl::Seconds(2)) << "an answer is no growth";
  EXPECT_EQ(pause(), absl::Seconds(3));
  EXPECT_EQ(pause(), absl::Seconds(3));
  Open();
  Receive(Chain(1, {3}));
  peer_->Close();
  EXPECT_EQ(peer_->retry_at(), std::nullopt);
  EXPECT_EQ(pause(), absl::Seconds(1));
}

TEST_F(DraftPeerTest, FeaturesAreOfOneOpening) {
  Open();
  peer_->features().Start({.layers = {2}});
  EXPECT_EQ(Receive(FeaturesUsed{.epoch = epoch(), .position = 3}).event, Event::kUsed);
  Open();
  EXPECT_FALSE(peer_->features().started());
  EXPECT_EQ(Receive(FeaturesUsed{.epoch = epoch(), .position = 3}).event, Event::kNone);
}

TEST_F(DraftPeerTest, MeasuresTheTimeFromACommitWithoutATreeToItsGrowth) {
  Open();
  CommitTokens({7}, At(0));
  Receive(Chain(1, {3}), At(9));
  EXPECT_FALSE(record_.times.knows_first_growth()) << "it may have read the whole text before";
  CommitTokens({7}, At(1));
  Grow grow = Chain(2, {3});
  grow.step_seconds = 0.25f;
  Receive(grow, At(1.5));
  ASSERT_TRUE(record_.times.knows_first_growth());
  EXPECT_DOUBLE_EQ(record_.times.level_seconds(), 0.25);
  EXPECT_DOUBLE_EQ(record_.times.SecondsTo(1), 0.5);
  EXPECT_DOUBLE_EQ(peer_->seconds_per_level(), 0.25) << "the drafter's own figure, until a round has waited";
  peer_->ObserveWait(0.5, 1);
  EXPECT_DOUBLE_EQ(peer_->seconds_per_level(), 0.375);
}

TEST_F(DraftPeerTest, LearnsNoTimesFromWhatItDrops) {
  Open();
  Receive(Chain(1, {3}));
  CommitTokens({7}, At(1));
  Grow old = Chain(2, {3});
  old.epoch = 0;
  Grow invalid = Chain(2, {kPeerVocabulary});
  for (Grow* const grow : {&old, &invalid}) {
    grow->step_seconds = 0.25f;
    Receive(*grow, At(2));
  }
  // After a resync the drafter has the whole text to read first.
  Open();
  Grow grow = Chain(1, {3});
  Receive(grow, At(9));
  EXPECT_FALSE(record_.times.knows_first_growth());
  EXPECT_EQ(record_.times.level_seconds(), 0.0);
  EXPECT_EQ(peer_->seconds_per_level(), 0.0);
}

TEST_F(DraftPeerTest, NothingIsExpectedOfOneThatHasBeenWaitedForInVain) {
  EXPECT_FALSE(peer_->LacksDrafts());
  Open();
  EXPECT_FALSE(peer_->LacksDrafts()) << "it has not answered";
  Receive(SessionOpened{.epoch = epoch()});
  EXPECT_TRUE(peer_->LacksDrafts());
  peer_->CountVainWait();
  EXPECT_TRUE(peer_->LacksDrafts());
  peer_->CountVainWait();
  EXPECT_FALSE(peer_->LacksDrafts());
  Receive(Chain(1, {3}));
  EXPECT_FALSE(peer_->LacksDrafts()) << "there are candidates";
  CommitTokens({7});
  EXPECT_TRUE(peer_->LacksDrafts());
  Receive(Chain(2, {}, /*exhausted=*/true));
  EXPECT_FALSE(peer_->LacksDrafts());
  CommitTokens({8}, At(0), {.depth = 0});
  EXPECT_FALSE(peer_->LacksDrafts()) << "nothing is to be drafted";
}

TEST_F(DraftPeerTest, AWaitEndsWithTheLevelsTheNodesOrTheEnd) {
  Open({.depth = 4, .nodes = 3});
  Receive(Chain(1, {3}));
  EXPECT_FALSE(peer_->HasAwaited(/*depth=*/2, /*stop_below=*/0.0));
  EXPECT_TRUE(peer_->HasAwaited(1, 0.0));
  EXPECT_TRUE(peer_->HasAwaited(2, /*stop_below=*/0.6)) << "the level is reached too rarely";
  Receive(Chain(2, {4, 5}));
  EXPECT_TRUE(peer_->HasAwaited(4, 0.0)) << "all nodes are there";
  CommitTokens({9}, At(0), {.depth = 4, .nodes = 3});
  EXPECT_FALSE(peer_->HasAwaited(1, 0.0));
  Receive(Chain(4, {}, /*exhausted=*/true));
  EXPECT_TRUE(peer_->HasAwaited(1, 0.0));
  // Of an EAGLE-2 tree only the last nodes say which are the best.
  CommitTokens({9}, At(0), {.depth = 1, .nodes = 1, .shape = TreeShape::kEagle2});
  Receive(Chain(4, {3}));
  EXPECT_FALSE(peer_->HasAwaited(1, 0.9));
  Receive(Chain(5, {}, /*exhausted=*/true));
  EXPECT_TRUE(peer_->HasAwaited(1, 0.0));
}

TEST_F(DraftPeerTest, PredictionsAreHeededFromTheAnswerOn) {
  Open();
  Receive(SessionOpened{.epoch = epoch(), .predicts_acceptance = true});
  Grow grow = Chain(1, {3});
  Receive(grow);
  EXPECT_FALSE(peer_->HasAwaited(2, /*stop_below=*/0.6)) << "a score of 0.5 is no prediction";
  Grow prediction = Chain(2, {});
  prediction.predictions = {{.node = 1, .acceptance = 0.4f}};
  Receive(prediction);
  EXPECT_TRUE(peer_->HasAwaited(2, 0.6));
}

TEST_F(DraftPeerTest, OneThatAddsTooLittleIsFoundAfterATrial) {
  for (int round = 0; round < 63; ++round) peer_->ObserveAdded(0);
  EXPECT_TRUE(peer_->adds()) << "it is not known yet";
  peer_->ObserveAdded(1);
  EXPECT_FALSE(peer_->adds());
  peer_->ObserveAdded(1);
  EXPECT_TRUE(peer_->adds());
  // What it did long ago says less than what it does now.
  for (int round = 0; round < 200; ++round) peer_->ObserveAdded(0);
  EXPECT_FALSE(peer_->adds());
}

TEST_F(DraftPeerTest, AcceptanceIsTheSessionsOwnAndTheRecords) {
  DraftPeer other(kPeerDraftId + 1, DrafterBinding{}, &record_, kPeerVocabulary, At(0));
  const double before = other.FirstLevelAcceptance();
  for (int round = 0; round < 20; ++round) peer_->ObserveRound({.depth = 1, .rejected = true});
  EXPECT_LT(other.FirstLevelAcceptance(), before) << "what one session saw is known to the others";
  other.ObserveRound({.depth = 1, .accepted = 1});
  EXPECT_GT(other.FirstLevelAcceptance(), peer_->FirstLevelAcceptance());
  EXPECT_DOUBLE_EQ(peer_->ExpectedAccepted(1), peer_->FirstLevelAcceptance());
}

// Peers of a session in their roles.
class SessionPeersTest : public ::testing::Test {
 protected:
  SessionPeersTest() : pool_({.num_blocks = 16}) {
    SessionRequest request;
    request.prompt = {1, 2, 3};
    request.max_tokens = 20;
    absl::StatusOr<std::unique_ptr<WindowPolicy>> policy = MakeWindowPolicy("fixed");
    session_ = std::make_unique<Session>(77, std::move(request), *std::move(policy), WindowLimits{}, &pool_,
                                         kPeerVocabulary);
  }
  void Bind(DraftRole role, std::string name) {
    session_->Bind(role, {.link = 5, .name = std::move(name)}, &record_, At(0));
  }
  OpenSession Open(DraftRole role) {
    return session_->OpenAt(role, 0, {.round_time = &round_time_, .batch = 1, .limits = session_->limits()});
  }
  DraftPeer::Outcome Receive(DraftRole role, decltype(DraftResponse::event) event) {
    return session_->OnDraftResponse(role, {.event = std::move(event)}, At(0));
  }

  BlockPool pool_;
  DrafterRecord record_;
  RoundTimeModel round_time_{{{1, 0.001}}};
  std::unique_ptr<Session> session_;
};

TEST_F(SessionPeersTest, PromotionIsAMoveBetweenRoles) {
  for (const DraftRole role : {DraftRole::kStandby, DraftRole::kPartner}) {
    Bind(DraftRole::kDrafter, "old");
    Open(DraftRole::kDrafter);
    Bind(role, "new");
    const OpenSession open = Open(role);
    DraftPeer* const peer = session_->peer(role);
    Receive(role, SessionOpened{.epoch = open.epoch});
    Receive(role, Grow{.epoch = open.epoch,
                       .prefix_hash = open.prefix_hash,
                       .first_id = 1,
                       .parents = {0},
                       .tokens = {3},
                       .scores = {0.5f}});
    const SessionId old_id = session_->peer(DraftRole::kDrafter)->draft_id();
    const SessionId new_id = peer->draft_id();
    session_->LoseDrafter("gone");
    session_->Promote(role);
    EXPECT_EQ(session_->peer(DraftRole::kDrafter), peer);
    EXPECT_EQ(session_->peer(role), nullptr);
    EXPECT_EQ(session_->RoleOf(new_id), DraftRole::kDrafter);
    EXPECT_EQ(session_->RoleOf(old_id), std::nullopt) << "late messages find nobody";
    EXPECT_TRUE(session_->drafting() && peer->answered() && peer->grown());
    EXPECT_EQ(peer->mirror().tree().size(), 1u) << "its tree is there";
    EXPECT_EQ(session_->summary().drafter, "new");
    EXPECT_EQ(session_->summary().drafter_lost, "");
    peer->Close();
  }
}

TEST_F(SessionPeersTest, ALostDrafterStaysLostUntilTheOneThatTookItsPlaceAnswers) {
  Bind(DraftRole::kDrafter, "old");
  Open(DraftRole::kDrafter);
  Bind(DraftRole::kStandby, "new");
  const OpenSession open = Open(DraftRole::kStandby);
  session_->peer(DraftRole::kDrafter)->Close();
  session_->LoseDrafter("gone");
  session_->Promote(DraftRole::kStandby);
  EXPECT_EQ(session_->summary().drafter_lost, "gone");
  Receive(DraftRole::kDrafter, SessionOpened{.epoch = open.epoch});
  EXPECT_EQ(session_->summary().drafter_lost, "");
}

TEST_F(SessionPeersTest, NoTwoPeersHaveTheSameDraftId) {
  Bind(DraftRole::kDrafter, "drafter");
  EXPECT_EQ(session_->peer(DraftRole::kDrafter)->draft_id(), 77u);
  for (int turn = 0; turn < 600; ++turn) {
    Bind(DraftRole::kPartner, "partner");
    const SessionId id = session_->peer(DraftRole::kPartner)->draft_id();
    EXPECT_EQ(session_->RoleOf(id), DraftRole::kPartner);
    EXPECT_EQ(Session::IdOfDraft(id), 77u);
    ASSERT_EQ(session_->RoleOf(77), DraftRole::kDrafter);
  }
}

TEST_F(SessionPeersTest, EveryOpenPeerGetsTheDraftersBudget) {
  Bind(DraftRole::kDrafter, "drafter");
  Bind(DraftRole::kPartner, "partner");
  const OpenSession open = Open(DraftRole::kDrafter);
  EXPECT_GT(open.budget.depth, 0u);
  EXPECT_EQ(Open(DraftRole::kPartner).budget, open.budget);
  EXPECT_EQ(session_->open_peer(DraftRole::kStandby), nullptr);
  session_->peer(DraftRole::kPartner)->Close();
  EXPECT_EQ(session_->open_peer(DraftRole::kPartner), nullptr);
  EXPECT_NE(session_->peer(DraftRole::kPartner), nullptr);
}

}  // namespace
}  // namespace tandem
