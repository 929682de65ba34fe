#include "router/vllm/vllm_service.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "router/serving/service.h"
#include "router/testing/client_call.h"
#include "router/testing/stub_verifier.h"
#include "router/testing/test_router.h"

namespace tandem::router {
namespace {

using testing::ChunkEvent;
using ::testing::Contains;
using ::testing::HasSubstr;
using testing::LettersConfig;
using testing::Parse;
using testing::Saying;
using testing::StartedEvent;
using testing::StubVerifier;
using testing::TestRouter;

class VllmServiceTest : public ::testing::Test {
 protected:
  VllmServiceTest() { verifier_.SetScript(Saying("hello, world", 5)); }

  std::unique_ptr<grpc::ClientContext> Calling(const std::string& token = "secret-z") {
    auto context = std::make_unique<grpc::ClientContext>();
    if (!token.empty()) context->AddMetadata("authorization", "Bearer " + token);
    context->set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
    return context;
  }

  struct Answer {
    std::vector<engine::GenerateResponse> responses;
    grpc::Status status;
  };
  Answer Generate(const engine::GenerateRequest& request, const std::string& token = "secret-z") {
    const auto context = Calling(token);
    const auto reader = stub_->Generate(context.get(), request);
    Answer answer;
    for (engine::GenerateResponse response; reader->Read(&response);) answer.responses.push_back(response);
    answer.status = reader->Finish();
    return answer;
  }

  static std::string TextOf(const google::protobuf::RepeatedField<uint32_t>& tokens) {
    return std::string(tokens.begin(), tokens.end());
  }

  StubVerifier verifier_;
  TestRouter router_{LettersConfig({verifier_.endpoint()})};
  VllmService service_{router_.router(), absl::Now()};
  const std::unique_ptr<ServerRunner> server_ =
      ServerRunner::Start({.listen_address = "127.0.0.1:0"},
                          {{std::string(engine::VllmEngine::service_full_name()), &service_}},
                          MakeAdminCallbacks(router_.router(), absl::Now()))
          .value();
  const std::unique_ptr<engine::VllmEngine::Stub> stub_ =
      engine::VllmEngine::NewStub(CreateChannel(server_->address()));
};

TEST_F(VllmServiceTest, AStreamAndAWholeAnswer) {
  auto request = Parse<engine::GenerateRequest>(R"pb(text: "abc"
                                                     stream: true
                                                     sampling_params { seed: 5 max_tokens: 20 })pb");
  const Answer streamed = Generate(request);
  ASSERT_TRUE(streamed.status.ok()) << streamed.status.error_message();
  ASSERT_EQ(streamed.responses.size(), 4u);
  std::string text;
  for (const engine::GenerateResponse& response : streamed.responses) {
    text += TextOf(response.chunk().token_ids());
    if (response.has_chunk()) {
      EXPECT_EQ(response.chunk().prompt_tokens(), 4u);
    }
  }
  EXPECT_EQ(text, "hello, world");
  request.set_stream(false);
  const Answer whole = Generate(request);
  ASSERT_EQ(whole.responses.size(), 1u);
  EXPECT_EQ(TextOf(whole.responses[0].complete().output_ids()), text);
  EXPECT_EQ(whole.responses[0].complete().completion_tokens(), 12u);
  EXPECT_EQ(whole.responses[0].SerializeAsString(), streamed.responses.back().SerializeAsString());
  EXPECT_EQ(router_.MetricValue(R"(tandem_router_requests_total{code="OK",model="letters",tenant="zeta"})"),
            2);
}

TEST_F(VllmServiceTest, ErrorsNameTheField) {
  for (const auto& [request, part] :
       {std::pair{"text: 'abc' sampling_params { temperature: -1 }", "sampling_params.temperature"},
        {"text: 'abc' sampling_params { max_tokens: 0 }", "sampling_params.max_tokens"},
        {"text: 'abc' sampling_params { logprobs: 21 }", "sampling_params.logprobs"},
        {"text: 'abc' mm_inputs: ''", "mm_inputs"},
        {"tokenized { input_ids: 300 }", "tokenized.input_ids[0]"}}) {
    const Answer answer = Generate(Parse<engine::GenerateRequest>(request));
    EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(answer.status.error_message(), HasSubstr(part));
  }
  EXPECT_EQ(Generate({}, "nobody's").status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(Generate({}).status.error_message(), HasSubstr("input"));
  EXPECT_EQ(verifier_.num_calls(), 0);
}

TEST_F(VllmServiceTest, TextThatIsNotUtf8IsNamed) {
  grpc::GenericStub stub(CreateChannel(server_->address()));
  const std::string bytes = "\x1a\x01\xff";  // Field 3, one byte.
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  const auto context = Calling();
  grpc::ByteBuffer response;
  grpc::Status status;
  absl::Notification done;
  stub.UnaryCall(context.get(), "/vllm.grpc.engine.VllmEngine/Generate", {}, &request, &response,
                 [&](const grpc::Status& of_call) {
                   status = of_call;
                   done.Notify();
                 });
  done.WaitForNotification();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("text: not UTF-8"));
}

TEST_F(VllmServiceTest, OnlyTheTenantAbortsItsRequest) {
  verifier_.SetScript(nullptr);
  const auto context = Calling();
  const auto reader = stub_->Generate(
      context.get(), Parse<engine::GenerateRequest>(R"pb(text: "abc" request_id: "one" stream: true)pb"));
  const auto call = verifier_.NextCall();
  ASSERT_NE(call, nullptr);
  const auto abort = [this](const std::string& id, const std::string& token) {
    engine::AbortRequest request;
    request.add_request_ids("none");
    request.add_request_ids(id);
    engine::AbortResponse response;
    return stub_->Abort(Calling(token).get(), request, &response).error_code();
  };
  EXPECT_EQ(abort("one", "nobody's"), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(abort("one", "secret-a"), grpc::StatusCode::OK);
  EXPECT_EQ(abort("two", "secret-z"), grpc::StatusCode::OK);
  // It goes on.
  call->Send(StartedEvent(call->request()));
  call->Send(ChunkEvent(0, "x"));
  engine::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(TextOf(response.chunk().token_ids()), "x");
  EXPECT_EQ(abort("one", "secret-z"), grpc::StatusCode::OK);
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(call->WaitForCancel());
  EXPECT_EQ(abort("one", "secret-z"), grpc::StatusCode::OK);
}

TEST_F(VllmServiceTest, AClientThatLeavesEndsItsRequest) {
  verifier_.SetScript(nullptr);
  const auto context = Calling();
  const auto reader = stub_->Generate(context.get(), Parse<engine::GenerateRequest>(R"pb(text: "abc")pb"));
  const auto call = verifier_.NextCall();
  ASSERT_NE(call, nullptr);
  call->Send(StartedEvent(call->request()));
  call->Send(ChunkEvent(0, "x"));
  context->TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(call->WaitForCancel());
}

TEST_F(VllmServiceTest, WhatTheRouterSaysOfItself) {
  engine::GetModelInfoResponse model;
  ASSERT_TRUE(stub_->GetModelInfo(Calling().get(), {}, &model).ok());
  EXPECT_EQ(model.served_model_name(), "letters");
  EXPECT_TRUE(model.is_generation());
  EXPECT_EQ(model.vocab_size(), 256u);
  EXPECT_EQ(model.max_context_length(), 32u);
  engine::GetServerInfoResponse server;
  ASSERT_TRUE(stub_->GetServerInfo(Calling().get(), {}, &server).ok());
  EXPECT_EQ(server.active_requests(), 0u);
  EXPECT_EQ(server.last_receive_timestamp(), 0.0);
  EXPECT_EQ(server.server_type(), "vllm-grpc");
  EXPECT_TRUE(Generate(Parse<engine::GenerateRequest>(R"pb(text: "abc")pb")).status.ok());
  ASSERT_TRUE(stub_->GetServerInfo(Calling().get(), {}, &server).ok());
  EXPECT_GT(server.last_receive_timestamp(), 0.0);
  for (const std::string token : {"", "nobody's"}) {
    EXPECT_EQ(stub_->GetModelInfo(Calling(token).get(), {}, &model).error_code(),
              grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(stub_->GetServerInfo(Calling(token).get(), {}, &server).error_code(),
              grpc::StatusCode::UNAUTHENTICATED);
  }
}

TEST_F(VllmServiceTest, HealthFollowsTheVerifiers) {
  engine::HealthCheckResponse health;
  // A verifier is asked now and then.
  const auto becomes = [&](bool healthy) {
    const absl::Time patience = absl::Now() + absl::Seconds(60);
    do {
      EXPECT_TRUE(stub_->HealthCheck(Calling("").get(), {}, &health).ok());
    } while (health.healthy() != healthy && absl::Now() < patience);
    return health.healthy() == healthy;
  };
  EXPECT_TRUE(becomes(true));
  verifier_.SetServing(false);
  EXPECT_TRUE(becomes(false));
  EXPECT_THAT(health.message(), HasSubstr("1 model"));
  EXPECT_THAT(NamesOfReadiness(), Contains(std::string(engine::VllmEngine::service_full_name())));
}

}  // namespace
}  // namespace tandem::router
