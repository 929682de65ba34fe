// Several outputs of one request: each is the request with a seed of its own, and they share one stream.

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/serving/single_call.h"
#include "router/testing/client_call.h"
#include "router/testing/stub_verifier.h"
#include "router/testing/test_router.h"

namespace tandem::router {
namespace {

using testing::ChunkEvent;
using testing::ClientCall;
using ::testing::ElementsAre;
using testing::FinishedEvent;
using ::testing::HasSubstr;
using testing::LettersConfig;
using testing::Parse;
using testing::StartedEvent;
using testing::StubVerifier;
using testing::TestRouter;

using VerifierCall = std::shared_ptr<StubVerifier::Call>;

class OutputsCallTest : public ::testing::Test {
 protected:
  // Plays an output to its end: its text is its seed.
  static void Complete(StubVerifier::Call& call, uint32_t from = 0) {
    const std::string text = absl::StrCat("seed ", call.request().sampling().seed());
    call.Send(ChunkEvent(from, text.substr(from)));
    call.Send(FinishedEvent(call.request(), static_cast<uint32_t>(text.size())));
    call.Finish(absl::OkStatus());
  }

  StubVerifier verifier_;
  TestRouter router_{LettersConfig({verifier_.endpoint()})};
};

const char kThree[] = R"pb(text: "abc"
                           request_id: "three"
                           num_outputs: 3
                           output { prompt_logprobs: 1 }
                           sampling { seed: 18446744073709551615 })pb";

v1::GenerateResponse PromptOf(const v1::VerifierGenerateRequest& request) {
  v1::GenerateResponse event;
  for (const uint32_t token : request.prompt().ids()) {
    event.mutable_prompt()->add_tokens(token);
    event.mutable_prompt()->add_details();
  }
  return event;
}

TEST_F(OutputsCallTest, OthersBeginWithTheFirstTokensAndHaveTheSeedsThatFollow) {
  ClientCall client(router_, Parse(kThree));
  const VerifierCall first = verifier_.NextCall();
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->request().request_id(), "three");
  EXPECT_EQ(first->request().output().prompt_logprobs(), 1u);
  first->Send(StartedEvent(first->request()));
  first->Send(PromptOf(first->request()));
  EXPECT_TRUE(client.Read().has_started());
  EXPECT_TRUE(client.Read().has_prompt());
  EXPECT_EQ(verifier_.num_calls(), 1) << "the prompt may not be computed yet";
  first->Send(ChunkEvent(0, "s"));
  std::map<std::string, VerifierCall> others;
  for (int i = 0; i < 2; ++i) {
    const VerifierCall other = verifier_.NextCall();
    ASSERT_NE(other, nullptr);
    others[other->request().request_id()] = other;
  }
  ASSERT_EQ(others.size(), 2u);
  EXPECT_EQ(others.at("three-1")->request().sampling().seed(), 0u) << "modulo 2^64";
  EXPECT_EQ(others.at("three-2")->request().sampling().seed(), 1u);
  std::map<uint32_t, v1::GenerateResult> results;
  const auto add = [&](v1::GenerateResponse event) {
    const uint32_t output = event.output();
    event.clear_output();
    AddEvent(event, results[output]);
  };
  add(client.Read());
  for (const char* id : {"three-2", "three-1"}) {
    EXPECT_FALSE(others.at(id)->request().output().has_prompt_logprobs());
    others.at(id)->Send(StartedEvent(others.at(id)->request()));
    Complete(*others.at(id));
    for (int i = 0; i < 3; ++i) add(client.Read());
  }
  Complete(*first, 1);
  add(client.Read());
  add(client.Read());
  EXPECT_TRUE(client.Finish().ok());
  ASSERT_EQ(results.size(), 3u);
  EXPECT_EQ(results[0].text(), "seed 18446744073709551615");
  EXPECT_EQ(results[1].text(), "seed 0");
  EXPECT_EQ(results[1].started().request_id(), "three-1");
  EXPECT_EQ(results[2].text(), "seed 1");
  EXPECT_EQ(router_.MetricSum("tandem_router_requests_total"), 3) << "each counts as a request";
}

TEST_F(OutputsCallTest, OneAnswerHasTheOthersInOrder) {
  verifier_.SetScript([](StubVerifier::Call& call) {
    call.Send(StartedEvent(call.request()));
    if (call.request().output().has_prompt_logprobs()) call.Send(PromptOf(call.request()));
    Complete(call);
  });
  const auto stub = v1::Generation::NewStub(CreateChannel(router_.endpoint()));
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer secret-z");
  v1::GenerateResult answer;
  const grpc::Status status = stub->GenerateOnce(&context, Parse(kThree), &answer);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(answer.text(), "seed 18446744073709551615");
  EXPECT_EQ(answer.prompt_size(), 4);
  EXPECT_THAT(answer.prompt_tokens(), ElementsAre(1, 'a', 'b', 'c'));
  ASSERT_EQ(answer.others_size(), 2);
  EXPECT_EQ(answer.others(0).text(), "seed 0");
  EXPECT_EQ(answer.others(1).text(), "seed 1");
  EXPECT_EQ(answer.others(1).others_size() + answer.others(1).prompt_size(), 0);
}

// Whether or not the client gave an id or a seed, output 0 is the request as it is without num_outputs.
TEST_F(OutputsCallTest, WhatWasDrawnForTheFirstHoldsForAll) {
  ClientCall client(router_, Parse(R"pb(text: "abc" num_outputs: 2)pb"));
  const VerifierCall first = verifier_.NextCall();
  ASSERT_NE(first, nullptr);
  first->Send(StartedEvent(first->request()));
  Complete(*first);
  const VerifierCall second = verifier_.NextCall();
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(second->request().request_id(), absl::StrCat(first->request().request_id(), "-1"));
  EXPECT_EQ(second->request().sampling().seed(), first->request().sampling().seed() + 1);
  second->Send(StartedEvent(second->request()));
  Complete(*second);
  EXPECT_TRUE(client.Finish().ok());
}

TEST_F(OutputsCallTest, TheFirstThatFailsEndsTheStreamAndCancelsTheOthers) {
  ClientCall client(router_, Parse(kThree));
  const VerifierCall first = verifier_.NextCall();
  ASSERT_NE(first, nullptr);
  first->Send(StartedEvent(first->request()));
  first->Send(PromptOf(first->request()));
  first->Send(ChunkEvent(0, "s"));
  const VerifierCall second = verifier_.NextCall();
  const VerifierCall third = verifier_.NextCall();
  ASSERT_TRUE(second != nullptr && third != nullptr);
  third->Send(StartedEvent(third->request()));
  second->Finish(absl::FailedPreconditionError("no token is left"));
  const grpc::Status status = client.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("no token is left"));
  EXPECT_TRUE(first->WaitForCancel());
  EXPECT_TRUE(third->WaitForCancel());
}

TEST_F(OutputsCallTest, AFirstOutputThatFailsIsTheOnlyOne) {
  ClientCall client(router_, Parse(kThree));
  const VerifierCall first = verifier_.NextCall();
  ASSERT_NE(first, nullptr);
  first->Send(StartedEvent(first->request()));
  first->Finish(absl::InvalidArgumentError("constraint: nonsense"));
  EXPECT_EQ(client.Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(verifier_.num_calls(), 1);
}

TEST_F(OutputsCallTest, AClientThatGoesCancelsAll) {
  ClientCall client(router_, Parse(kThree));
  const VerifierCall first = verifier_.NextCall();
  ASSERT_NE(first, nullptr);
  first->Send(StartedEvent(first->request()));
  first->Send(PromptOf(first->request()));
  first->Send(ChunkEvent(0, "s"));
  const VerifierCall second = verifier_.NextCall();
  const VerifierCall third = verifier_.NextCall();
  ASSERT_TRUE(second != nullptr && third != nullptr);
  client.Cancel();
  EXPECT_EQ(client.Finish().error_code(), grpc::StatusCode::CANCELLED);
  for (const VerifierCall& call : {first, second, third}) EXPECT_TRUE(call->WaitForCancel());
}

// A verifier that is lost costs no output anything: each goes on by itself.
TEST_F(OutputsCallTest, EachIsReplayedByItself) {
  StubVerifier other;
  TestRouter router(LettersConfig({verifier_.endpoint(), other.endpoint()}));
  ClientCall client(router, Parse(R"pb(text: "abc"
                                       num_outputs: 2
                                       sampling { seed: 3 })pb"));
  // Whichever of the two has the prompt.
  VerifierCall first;
  StubVerifier* holder = &verifier_;
  for (int tries = 0; first == nullptr && tries < 3000; ++tries) {
    for (StubVerifier* each : {&verifier_, &other}) {
      if (first == nullptr && each->num_calls() > 0) {
        holder = each;
        first = each->NextCall();
      }
    }
    absl::SleepFor(absl::Milliseconds(10));
  }
  ASSERT_NE(first, nullptr);
  StubVerifier& next = holder == &verifier_ ? other : verifier_;
  next.SetScript([](StubVerifier::Call& call) {
    call.Send(StartedEvent(call.request()));
    Complete(call, static_cast<uint32_t>(call.request().emitted().ids_size()));
  });
  holder->SetScript([](StubVerifier::Call& call) {
    call.Send(StartedEvent(call.request()));
    call.Send(ChunkEvent(0, "se"));
    call.Finish(absl::UnavailableError("lost"));
  });
  first->Send(StartedEvent(first->request()));
  first->Send(ChunkEvent(0, "see"));
  first->Finish(absl::UnavailableError("lost"));
  std::map<uint32_t, std::string> texts;
  for (int finished = 0; finished < 2;) {
    const v1::GenerateResponse event = client.Read();
    ASSERT_NE(event.event_case(), v1::GenerateResponse::EVENT_NOT_SET);
    texts[event.output()] += event.chunk().text();
    finished += event.has_finished();
  }
  EXPECT_TRUE(client.Finish().ok());
  EXPECT_EQ(texts[0], "seed 3");
  EXPECT_EQ(texts[1], "seed 4");
}

}  // namespace
}  // namespace tandem::router
