// What calls tell the live page, and what that changes for their verifiers and clients.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "router/live/live_call.h"
#include "router/testing/client_call.h"
#include "router/testing/stub_verifier.h"
#include "router/testing/test_router.h"

namespace tandem::router {
namespace {

using nlohmann::json;
using testing::ChunkEvent;
using testing::ClientCall;
using testing::FinishedEvent;
using ::testing::HasSubstr;
using testing::LettersConfig;
using testing::Parse;
using testing::StartedEvent;
using testing::StubVerifier;
using testing::TestRouter;

constexpr char kAsking[] = R"pb(text: "hello"
                                request_id: "r-1"
                                output { live_page: true })pb";
// Only a test that fails waits as long.
constexpr absl::Duration kWait = absl::Seconds(30);

class LivePageTest : public ::testing::Test {
 protected:
  void Begin(const LiveFeed::Options& options = {}) {
    view_ = std::make_unique<LiveView>(options, "a");
    router_ = std::make_unique<TestRouter>(LettersConfig({verifier_.endpoint()}), nullptr, nullptr,
                                           VerifierPool::Options{}, Tracer::Off(), view_.get());
  }

  // The next event that the page is told: {"type", its JSON}.
  std::pair<std::string, json> Told() {
    while (told_.empty()) {
      const LiveFeed::Watcher::Batch batch = watcher_->Next(kWait);
      if (batch.events.empty()) return {"nothing", json()};
      for (const auto& event : batch.events) told_.emplace_back(event->type, json::parse(event->json));
    }
    auto first = std::move(told_.front());
    told_.erase(told_.begin());
    return first;
  }

  // A round of two tokens whose tree has three nodes.
  static v1::GenerateResponse TracedRound(uint32_t offset) {
    v1::GenerateResponse event = ChunkEvent(offset, "ab");
    event.mutable_chunk()->mutable_details(0)->set_source(v1::TOKEN_SOURCE_ACCEPTED);
    event.mutable_chunk()->set_kind(v1::ROUND_KIND_HIT);
    event.mutable_chunk()->set_window(2);
    event.mutable_chunk()->set_draft_tokens(3);
    v1::RoundTrace& round = *event.mutable_chunk()->mutable_round();
    round.set_verify_seconds(0.5);
    for (const uint32_t parent : {0u, 1u, 0u}) {
      v1::TreeNodeTrace& node = *round.add_tree();
      node.set_parent(parent);
      node.set_token('a' + parent);
      node.set_accepted(round.tree_size() == 1);
    }
    return event;
  }

  // Lets the verifier answer with one round, and the call end.
  void Answer(StubVerifier::Call& call) {
    call.Send(StartedEvent(call.request()));
    call.Send(TracedRound(0));
    call.Send(FinishedEvent(call.request(), 2));
    call.Finish(absl::OkStatus());
  }

  StubVerifier verifier_;
  std::unique_ptr<LiveView> view_;
  std::unique_ptr<TestRouter> router_;
  std::unique_ptr<LiveFeed::Watcher> watcher_;
  std::vector<std::pair<std::string, json>> told_;
};

TEST_F(LivePageTest, ShowsARequestThatAsksForIt) {
  Begin();
  watcher_ = view_->feed.Watch().value();
  ClientCall client(*router_, Parse(kAsking), "secret-a");
  const auto call = verifier_.NextCall();
  ASSERT_NE(call, nullptr);
  EXPECT_TRUE(call->request().output().round_trace());
  EXPECT_TRUE(call->request().output().round_tree());
  EXPECT_FALSE(call->request().output().live_page()) << "nothing to a verifier";
  Answer(*call);

  EXPECT_TRUE(client.Read().has_started());
  const v1::GenerateResponse chunk = client.Read();
  EXPECT_EQ(chunk.chunk().text(), "ab");
  EXPECT_FALSE(chunk.chunk().has_round()) << "the client has not asked for it";
  EXPECT_TRUE(client.Finish().ok());

  auto [start_type, start] = Told();
  EXPECT_EQ(start_type, "start");
  EXPECT_EQ(start["tenant"], "acme");
  EXPECT_EQ(start["request_id"], "r-1");
  EXPECT_EQ(start["drafter"], "code");
  EXPECT_EQ(start["reason"], "tenant");
  EXPECT_EQ(start["prompt_tokens"], 6);
  EXPECT_FALSE(start.contains("prompt"));
  ASSERT_EQ(start["candidates"].size(), 3u) << start << ": plain decoding and what the tenant may use";
  EXPECT_EQ(start["candidates"][1]["drafter"], "code");
  EXPECT_EQ(start["candidates"][1]["chosen"], true);
  EXPECT_EQ(Told().first, "started");
  auto [round_type, round] = Told();
  EXPECT_EQ(round_type, "round");
  EXPECT_EQ(round["g"], start["g"]);
  EXPECT_EQ(round["tokens"], json::parse(R"([{"t":"a","a":1,"l":0},{"t":"b","a":0,"l":0}])"));
  EXPECT_EQ(round["tree"].size(), 3u);
  EXPECT_EQ(round["tree"][0]["a"], 1);
  EXPECT_EQ(round["tree"][2]["a"], 0);
  auto [end_type, end] = Told();
  EXPECT_EQ(end_type, "end");
  EXPECT_EQ(end["code"], "OK");
}

TEST_F(LivePageTest, OthersAreNotShownAndNothingIsAskedForThem) {
  Begin();
  watcher_ = view_->feed.Watch().value();
  ClientCall client(*router_, Parse(R"pb(text: "hello")pb"), "secret-a");
  const auto call = verifier_.NextCall();
  ASSERT_NE(call, nullptr);
  EXPECT_FALSE(call->request().output().round_trace());
  EXPECT_FALSE(call->request().output().round_tree());
  Answer(*call);
  EXPECT_TRUE(client.Finish().ok());
  EXPECT_TRUE(watcher_->Next(absl::ZeroDuration()).events.empty());
  // It counts all the same.
  EXPECT_EQ(view_->tallies.All().at("acme").finished, 1u);
  EXPECT_EQ(view_->tallies.All().at("acme").tokens, 2u);
}

TEST_F(LivePageTest, NothingIsAskedForWhileNobodyWatches) {
  Begin({.all_requests = true});
  ClientCall client(*router_, Parse(kAsking), "secret-a");
  const auto call = verifier_.NextCall();
  ASSERT_NE(call, nullptr);
  EXPECT_FALSE(call->request().output().round_trace());
  EXPECT_FALSE(call->request().output().live_page());
  Answer(*call);
  EXPECT_TRUE(client.Finish().ok());
  EXPECT_TRUE(view_->feed.Watch().value()->Next(absl::ZeroDuration()).events.empty());
}

TEST_F(LivePageTest, WithAllRequestsAndPromptsBothAreShown) {
  Begin({.all_requests = true, .prompts = true});
  watcher_ = view_->feed.Watch().value();
  ClientCall client(*router_, Parse(R"pb(text: "<script>")pb"), "secret-z");
  const auto call = verifier_.NextCall();
  ASSERT_NE(call, nullptr);
  Answer(*call);
  EXPECT_TRUE(client.Finish().ok());
  const auto [type, start] = Told();
  EXPECT_EQ(type, "start");
  EXPECT_EQ(start["prompt"], "\x01<script>");
  EXPECT_EQ(start["drafter"], "");
  EXPECT_EQ(start["reason"], "none");
}

TEST_F(LivePageTest, AClientGetsWhatItAskedForAndNoMore) {
  Begin();
  watcher_ = view_->feed.Watch().value();
  for (const bool tree : {false, true}) {
    v1::GenerateRequest request = Parse(kAsking);
    request.mutable_output()->set_round_trace(true);
    request.mutable_output()->set_round_tree(tree);
    ClientCall client(*router_, request, "secret-a");
    const auto call = verifier_.NextCall();
    ASSERT_NE(call, nullptr);
    Answer(*call);
    EXPECT_TRUE(client.Read().has_started());
    const v1::GenerateResponse chunk = client.Read();
    ASSERT_TRUE(chunk.chunk().has_round());
    EXPECT_EQ(chunk.chunk().round().verify_seconds(), 0.5);
    EXPECT_EQ(chunk.chunk().round().tree_size(), tree ? 3 : 0);
    EXPECT_TRUE(client.Finish().ok());
  }
}

// The router asks the second verifier for trees like the first, and tells the page about the failover.
TEST_F(LivePageTest, GoesOnWithAnotherVerifier) {
  StubVerifier other;
  view_ = std::make_unique<LiveView>(LiveFeed::Options{}, "a");
  router_ = std::make_unique<TestRouter>(LettersConfig({verifier_.endpoint(), other.endpoint()}), nullptr,
                                         nullptr, VerifierPool::Options{}, Tracer::Off(), view_.get());
  const auto lose = [](StubVerifier::Call& call) {
    call.Send(StartedEvent(call.request()));
    if (call.request().emitted().ids().empty()) {
      call.Send(TracedRound(0));
      call.Finish(absl::UnavailableError("lost on purpose"));
      return;
    }
    EXPECT_TRUE(call.request().output().round_tree());
    call.Send(TracedRound(2));
    call.Send(FinishedEvent(call.request(), 4));
    call.Finish(absl::OkStatus());
  };
  verifier_.SetScript(lose);
  other.SetScript(lose);
  watcher_ = view_->feed.Watch().value();
  ClientCall client(*router_, Parse(kAsking), "secret-a");
  EXPECT_TRUE(client.Finish().ok());
  EXPECT_EQ(client.text(), "abab");
  EXPECT_EQ(Told().first, "start");
  EXPECT_EQ(Told().first, "started");
  EXPECT_EQ(Told().second["n"], 0);
  const auto [type, note] = Told();
  EXPECT_EQ(type, "note");
  EXPECT_THAT(note["note"].get<std::string>(), HasSubstr("lost on purpose"));
  const auto [next_type, next] = Told();
  EXPECT_EQ(next_type, "round");
  EXPECT_EQ(next["n"], 1);
  EXPECT_EQ(next["offset"], 2);
  EXPECT_EQ(Told().second["code"], "OK");
}

TEST_F(LivePageTest, ARequestThatFailsEndsWithItsStatus) {
  Begin();
  watcher_ = view_->feed.Watch().value();
  ClientCall client(*router_, Parse(kAsking), "secret-a");
  const auto call = verifier_.NextCall();
  ASSERT_NE(call, nullptr);
  call->Send(StartedEvent(call->request()));
  call->Finish(absl::InvalidArgumentError("not like that"));
  EXPECT_FALSE(client.Finish().ok());
  EXPECT_EQ(Told().first, "start");
  EXPECT_EQ(Told().first, "started");
  const auto [type, end] = Told();
  EXPECT_EQ(type, "end");
  EXPECT_EQ(end["code"], "INVALID_ARGUMENT");
  EXPECT_THAT(end["message"].get<std::string>(), HasSubstr("not like that"));
  EXPECT_EQ(view_->tallies.All().at("acme").failed, 1u);
  EXPECT_EQ(view_->tallies.All().at("acme").running, 0u);
}

}  // namespace
}  // namespace tandem::router
