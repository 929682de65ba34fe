// What a window policy has learned, from one request to the next (router/drafters/policy_memory.h).
#include <memory>
#include <string>

#include "common/speculation/policies/qlearning_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/drafters/learned_state.h"
#include "router/state/memory_store.h"
#include "router/state/open_store.h"
#include "router/testing/client_call.h"
#include "router/testing/stub_verifier.h"
#include "router/testing/test_router.h"

namespace tandem::router {
namespace {

using testing::ChunkEvent;
using testing::ClientCall;
using testing::FinishedEvent;
using ::testing::IsEmpty;
using testing::LettersConfig;
using testing::Parse;
using testing::StartedEvent;
using testing::StubVerifier;
using testing::TestRouter;

class PolicyStateTest : public ::testing::Test {
 protected:
  // One request, whose verifier answers `learned` of its window policy; returns what that was given to begin
  // with.
  std::string Serve(TestRouter& router, const std::string& learned, const std::string& token = "secret-a",
                    const std::string& request = R"pb(text: "hello")pb", bool drafter_lost = false) {
    ClientCall call(router, Parse(request), token);
    const std::shared_ptr<StubVerifier::Call> verifier = verifier_.NextCall();
    if (verifier == nullptr) return "no call";
    verifier->Send(StartedEvent(verifier->request()));
    verifier->Send(ChunkEvent(0, "hi"));
    v1::GenerateResponse finished = FinishedEvent(verifier->request(), 2);
    finished.mutable_finished()->mutable_speculation()->set_policy_state(learned);
    if (drafter_lost) finished.mutable_finished()->mutable_speculation()->set_drafter_lost("it was stopped");
    verifier->Send(finished);
    verifier->Finish(absl::OkStatus());
    bool ended = false;
    while (true) {
      const v1::GenerateResponse event = call.Read();
      if (event.event_case() == v1::GenerateResponse::EVENT_NOT_SET) break;
      if (!event.has_finished()) continue;
      ended = true;
      EXPECT_THAT(event.finished().speculation().policy_state(), IsEmpty()) << "clients are not told";
    }
    EXPECT_TRUE(ended);
    const grpc::Status status = call.Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return verifier->request().policy_state();
  }

  static std::string Learned(uint32_t prompts) {
    return QLearningState{
        .prompts = prompts,
        .fresh_prompts = 1,
        .entries = {{.state = 3, .action = 2, .value = 0.5F, .visits = prompts, .fresh = 1}}}
        .Serialize();
  }
  static uint32_t PromptsOf(const std::string& state) {
    return state.empty() ? 0 : QLearningState::Parse(state).value().prompts;
  }

  StubVerifier verifier_;
};

TEST_F(PolicyStateTest, GoesFromOneRequestToTheNextOfItsTenantDrafterAndPolicy) {
  TestRouter router(LettersConfig({verifier_.endpoint()}));
  EXPECT_THAT(Serve(router, Learned(1)), IsEmpty());
  EXPECT_EQ(PromptsOf(Serve(router, Learned(2))), 1u);
  EXPECT_EQ(PromptsOf(Serve(router, "")), 2u);
  EXPECT_THAT(Serve(router, "", "secret-z"), IsEmpty()) << "another tenant";
  EXPECT_THAT(Serve(router, "", "secret-a", R"pb(text: "a"
                                                 speculation { window_policy: "fsm" })pb"),
              IsEmpty())
      << "another policy";
  EXPECT_THAT(Serve(router, "", "secret-a", R"pb(text: "a"
                                                 speculation { mode: SPECULATION_MODE_OFF })pb"),
              IsEmpty())
      << "no drafter";
  EXPECT_EQ(PromptsOf(Serve(router, "")), 2u);
}

TEST_F(PolicyStateTest, OutlivesTheRouter) {
  MemoryStore store;
  {
    TestRouter router(LettersConfig({verifier_.endpoint()}));
    for (uint32_t prompts = 1; prompts <= 3; ++prompts) Serve(router, Learned(prompts));
    const DrafterChooser& chooser = router.router().chooser();
    const LearnedStateSaver saver(&chooser, &router.router().policies(), &store, absl::InfiniteDuration());
  }
  TestRouter next(LettersConfig({verifier_.endpoint()}));
  ASSERT_TRUE(ReadPolicies(store, next.router().policies()).ok());
  EXPECT_EQ(PromptsOf(Serve(next, "")), 3u);
  // It is written only when there is something new.
  const uint64_t version = store.List("").value().version;
  ASSERT_TRUE(WritePolicies(next.router().policies(), store).ok());
  EXPECT_EQ(store.List("").value().version, version);
  // A damaged record costs what was learned, and not the router.
  ASSERT_TRUE(PutBlob(store, "window-policies", "nonsense").ok());
  TestRouter third(LettersConfig({verifier_.endpoint()}));
  EXPECT_TRUE(ReadPolicies(store, third.router().policies()).ok());
  EXPECT_THAT(Serve(third, ""), IsEmpty());
}

TEST_F(PolicyStateTest, WhatAVerifierMakesUpIsNotKept) {
  TestRouter router(LettersConfig({verifier_.endpoint()}));
  Serve(router, Learned(1));
  for (const std::string& bytes : {std::string("nonsense"), std::string(100'000, 'T'), Learned(2) + "x"}) {
    Serve(router, bytes);
  }
  EXPECT_EQ(PromptsOf(Serve(router, "")), 1u);
}

TEST_F(PolicyStateTest, ADrafterThatWasLostTeachesNothing) {
  TestRouter router(LettersConfig({verifier_.endpoint()}));
  Serve(router, Learned(1), "secret-a", R"pb(text: "hello")pb", /*drafter_lost=*/true);
  EXPECT_THAT(Serve(router, ""), IsEmpty());
}

}  // namespace
}  // namespace tandem::router
