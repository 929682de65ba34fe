#include <memory>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/rpc/channel.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "router/serving/single_call.h"
#include "router/testing/client_call.h"
#include "router/testing/stub_verifier.h"
#include "router/testing/test_router.h"
#include "tandem/v1/generation.grpc.pb.h"

namespace tandem::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::LettersConfig;
using testing::Parse;
using testing::Saying;
using testing::StubVerifier;
using testing::TestRouter;

class UnaryCallsTest : public ::testing::Test {
 protected:
  UnaryCallsTest() { verifier_.SetScript(Saying("hello, world", 3)); }

  // Sets up a context for the one call that it is for.
  grpc::ClientContext& Calling(const std::string& token = "secret-z") {
    context_ = std::make_unique<grpc::ClientContext>();
    if (!token.empty()) context_->AddMetadata("authorization", "Bearer " + token);
    context_->set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
    return *context_;
  }

  StubVerifier verifier_;
  TestRouter router_{LettersConfig({verifier_.endpoint()})};
  const std::unique_ptr<v1::Generation::Stub> stub_ =
      v1::Generation::NewStub(CreateChannel(router_.endpoint()));
  std::unique_ptr<grpc::ClientContext> context_;
};

TEST_F(UnaryCallsTest, OneAnswerIsAllOfTheStream) {
  const v1::GenerateRequest request = Parse(R"pb(text: "abc"
                                                 request_id: "one"
                                                 sampling { seed: 5 })pb");
  v1::GenerateResult streamed;
  const auto reader = stub_->Generate(&Calling(), request);
  for (v1::GenerateResponse event; reader->Read(&event);) AddEvent(event, streamed);
  ASSERT_TRUE(reader->Finish().ok());
  v1::GenerateResult answer;
  const grpc::Status status = stub_->GenerateOnce(&Calling(), request, &answer);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(answer.text(), "hello, world");
  EXPECT_EQ(answer.tokens_size(), 12);
  EXPECT_EQ(answer.details_size(), 12);
  EXPECT_EQ(answer.started().request_id(), "one");
  EXPECT_EQ(answer.started().seed(), 5u);
  EXPECT_EQ(answer.finished().usage().completion_tokens(), 12u);
  EXPECT_EQ(answer.SerializeAsString(), streamed.SerializeAsString());
  EXPECT_EQ(router_.MetricValue(R"(tandem_router_requests_total{code="OK",model="letters",tenant="zeta"})"),
            2);
}

TEST_F(UnaryCallsTest, ErrorsAreThoseOfTheStream) {
  v1::GenerateResult answer;
  EXPECT_EQ(stub_->GenerateOnce(&Calling("nobody's"), Parse(R"pb(text: "abc")pb"), &answer).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  const grpc::Status status = stub_->GenerateOnce(&Calling(), Parse(R"pb(text: "abc"
                                                                         sampling { temperature: -1 })pb"),
                                                  &answer);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("temperature"));
}

TEST_F(UnaryCallsTest, AClientThatGivesUpEndsItsGeneration) {
  verifier_.SetScript(nullptr);
  grpc::ClientContext& context = Calling();
  std::thread caller([&] {
    v1::GenerateResult answer;
    EXPECT_EQ(stub_->GenerateOnce(&context, Parse(R"pb(text: "abc")pb"), &answer).error_code(),
              grpc::StatusCode::CANCELLED);
  });
  const auto call = verifier_.NextCall();
  ASSERT_NE(call, nullptr);
  call->Send(testing::StartedEvent(call->request()));
  call->Send(testing::ChunkEvent(0, "x"));
  context.TryCancel();
  caller.join();
  EXPECT_TRUE(call->WaitForCancel());
}

TEST(SingleCallTest, DeltasAreJoined) {
  v1::GenerateResult answer;
  for (const char* text : {
           R"pb(chunk {
                  text: "ab"
                  deltas { reasoning: "so" }
                  deltas { content: "a" }
                  deltas { tool_call { index: 0 id: "c0" name: "f" arguments: "{" } }
                })pb",
           R"pb(chunk { deltas { tool_call { index: 0 arguments: "}" } } })pb",
           R"pb(finished {
                  text: "c"
                  deltas { tool_call { index: 1 id: "c1" name: "g" arguments: "{}" } }
                  deltas { content: "b" }
                })pb"}) {
    v1::GenerateResponse event;
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &event));
    AddEvent(event, answer);
  }
  EXPECT_EQ(answer.text(), "abc");
  EXPECT_EQ(answer.content(), "ab");
  EXPECT_EQ(answer.reasoning(), "so");
  ASSERT_EQ(answer.tool_calls_size(), 2);
  EXPECT_EQ(answer.tool_calls(0).arguments(), "{}");
  EXPECT_EQ(answer.tool_calls(1).name(), "g");
  EXPECT_EQ(answer.finished().text(), "");
}

TEST_F(UnaryCallsTest, TokensOfTextAndChat) {
  v1::TokenizeRequest request;
  v1::TokenizeResponse response;
  request.set_text("ab");
  ASSERT_TRUE(stub_->Tokenize(&Calling(), request, &response).ok());
  EXPECT_THAT(response.tokens().ids(), ElementsAre(1, 'a', 'b'));
  EXPECT_GT(response.context_length(), 0u);
  request.set_plain(true);
  ASSERT_TRUE(stub_->Tokenize(&Calling(), request, &response).ok());
  EXPECT_THAT(response.tokens().ids(), ElementsAre('a', 'b'));
  v1::ChatMessage& message = *request.mutable_chat()->add_messages();
  message.set_role("user");
  message.set_content("x");
  EXPECT_EQ(stub_->Tokenize(&Calling(), request, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.set_plain(false);
  ASSERT_TRUE(stub_->Tokenize(&Calling(), request, &response).ok());
  EXPECT_THAT(response.tokens().ids(), ElementsAre(1, 2, 'x', 3));
}

TEST_F(UnaryCallsTest, WhatCannotBeTokenizedNamesItsField) {
  v1::TokenizeRequest request;
  v1::TokenizeResponse response;
  EXPECT_EQ(stub_->Tokenize(&Calling(""), request, &response).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(stub_->Tokenize(&Calling(), request, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.set_text(std::string((1 << 20) + 1, 'a'));
  const grpc::Status status = stub_->Tokenize(&Calling(), request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("text"));
  request.set_model("numbers");
  EXPECT_EQ(stub_->Tokenize(&Calling(), request, &response).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(UnaryCallsTest, TextOfTokens) {
  v1::DetokenizeRequest request;
  v1::DetokenizeResponse response;
  for (const uint32_t id : {1u, uint32_t{'o'}, uint32_t{'k'}}) request.mutable_tokens()->add_ids(id);
  ASSERT_TRUE(stub_->Detokenize(&Calling(), request, &response).ok());
  EXPECT_EQ(response.text(), "<1>ok");
  request.set_skip_special_tokens(true);
  ASSERT_TRUE(stub_->Detokenize(&Calling(), request, &response).ok());
  EXPECT_EQ(response.text(), "ok");
  request.mutable_tokens()->add_ids(1'000'000);
  const grpc::Status status = stub_->Detokenize(&Calling(), request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("1000000"));
}

TEST_F(UnaryCallsTest, ModelsAreListed) {
  v1::ListModelsResponse response;
  ASSERT_TRUE(stub_->ListModels(&Calling(), {}, &response).ok());
  ASSERT_EQ(response.models_size(), 1);
  EXPECT_EQ(response.models(0).name(), "letters");
  EXPECT_EQ(stub_->ListModels(&Calling(""), {}, &response).error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

}  // namespace
}  // namespace tandem::router
