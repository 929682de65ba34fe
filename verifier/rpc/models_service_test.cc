#include "verifier/rpc/models_service.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "common/testing/fake_engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tandem/v1/verifier.grpc.pb.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

// One model of the process, on a fake engine.
struct DirectoryModel {
  DirectoryModel(MetricsRegistry* registry, const std::string& name)
      : part(registry, "model", name, {"target"}), metrics(&part, name) {
    auto engine = std::make_unique<FakeEngine>(FakeEngine::Options{.num_blocks = 16});
    target = {
        .name = name,
        .config = engine->config(),
        .tokenizer =
            Tokenizer::Load(std::string(TANDEM_SOURCE_DIR) + "/deploy/demo-models/tandem-target-15m").value(),
        .max_window = 8,
        .max_length = 200};
    auto pool = std::make_unique<BlockPool>(BlockPool::Options{.num_blocks = engine->num_blocks()});
    loop = std::make_unique<EngineLoop>(Scheduler::Options{}, std::move(engine), std::move(pool),
                                        RoundTimeModel({{1, 0.002}, {64, 0.002}}), &clock, &metrics);
    service = std::make_unique<VerifierService>(&target, loop.get(), &metrics);
  }

  const SystemClock clock;
  MetricsRegistry part;
  VerifierMetrics metrics;
  ServedTarget target;
  std::unique_ptr<EngineLoop> loop;
  std::unique_ptr<VerifierService> service;
};

class ModelsServiceTest : public ::testing::Test {
 protected:
  void Start() {
    server_ = ServerRunner::Start({.listen_address = "127.0.0.1:0"},
                                  {{v1::Verifier::service_full_name(), &directory_}}, {})
                  .value();
    stub_ = v1::Verifier::NewStub(CreateChannel(server_->address(), nullptr));
  }

  // The model that served it, or what the error says.
  std::string GenerateOf(const std::string& model, absl::StatusCode* code = nullptr) {
    v1::VerifierGenerateRequest request;
    request.set_request_id("r");
    request.set_model(model);
    for (const uint32_t token : {1, 2, 3}) request.mutable_prompt()->add_ids(token);
    request.mutable_stopping()->set_max_tokens(4);
    request.mutable_stopping()->set_ignore_eos(true);
    grpc::ClientContext context;
    const auto stream = stub_->Generate(&context, request);
    v1::GenerateResponse response;
    std::string served;
    while (stream->Read(&response)) {
      if (response.has_started()) served = response.started().model();
    }
    const absl::Status status = FromGrpcStatus(stream->Finish());
    if (code != nullptr) *code = status.code();
    return status.ok() ? served : std::string(status.message());
  }

  MetricsRegistry registry_;
  DirectoryModel first_{&registry_, "first"};
  DirectoryModel second_{&registry_, "second"};
  ModelsService directory_;
  std::unique_ptr<ServerRunner> server_;
  std::unique_ptr<v1::Verifier::Stub> stub_;
};

TEST_F(ModelsServiceTest, CallsGoToTheModelThatTheyName) {
  directory_.Add("first", first_.service.get());
  directory_.Add("second", second_.service.get());
  Start();
  EXPECT_EQ(GenerateOf("first"), "first");
  EXPECT_EQ(GenerateOf("second"), "second");
  absl::StatusCode code = absl::StatusCode::kOk;
  EXPECT_EQ(GenerateOf("third\n", &code), "model: \"third\\n\", but this verifier holds first, second");
  EXPECT_EQ(code, absl::StatusCode::kFailedPrecondition);
  const std::string metrics = registry_.Expose();
  for (const char* model : {"first", "second"}) {
    EXPECT_THAT(metrics, HasSubstr(std::string("tandem_verifier_requests_total{code=\"OK\",model=\"") +
                                   model + "\"} 1"));
    EXPECT_THAT(metrics, HasSubstr(std::string("target=\"") + model));
  }
}

TEST_F(ModelsServiceTest, AnOutputGoesOnOnlyWhereItIsComputedAlike) {
  first_.target.arithmetic = 7;
  directory_.Add("first", first_.service.get());
  Start();
  v1::VerifierGenerateRequest request;
  request.set_request_id("r");
  request.set_model("first");
  for (const uint32_t token : {1, 2, 3}) request.mutable_prompt()->add_ids(token);
  request.mutable_emitted()->add_ids(4);
  request.mutable_stopping()->set_max_tokens(6);
  request.mutable_stopping()->set_ignore_eos(true);
  std::vector<uint64_t> told;
  const auto generate = [&](uint64_t arithmetic) {
    request.set_arithmetic(arithmetic);
    told.clear();
    grpc::ClientContext context;
    const auto stream = stub_->Generate(&context, request);
    v1::GenerateResponse response;
    while (stream->Read(&response)) {
      if (response.has_chunk()) told.push_back(response.chunk().arithmetic());
    }
    return FromGrpcStatus(stream->Finish());
  };
  EXPECT_TRUE(generate(7).ok());
  ASSERT_GT(told.size(), 1u);
  EXPECT_EQ(told[0], 7u) << "once, in the first chunk";
  EXPECT_EQ(told[1], 0u);
  EXPECT_TRUE(generate(0).ok()) << "a router that does not say where it began";
  const absl::Status other = generate(8);
  EXPECT_TRUE(absl::IsAborted(other)) << other;
  EXPECT_EQ(other.message(),
            "arithmetic: 8, but this verifier's is 7: it would continue the output differently");
  EXPECT_TRUE(told.empty());
}

TEST_F(ModelsServiceTest, OfOneModelTheAnswersAreItsOwn) {
  directory_.Add("first", first_.service.get());
  Start();
  EXPECT_EQ(GenerateOf("first"), "first");
  EXPECT_EQ(GenerateOf("second"), "model: \"second\", but this verifier holds \"first\"");
}

TEST_F(ModelsServiceTest, AWithdrawnModelSendsRequestsElsewhere) {
  directory_.Add("first", first_.service.get());
  directory_.Add("second", second_.service.get());
  Start();
  EXPECT_EQ(GenerateOf("second"), "second");
  directory_.Withdraw("second");
  second_.service->StopAdmission();
  absl::StatusCode code = absl::StatusCode::kOk;
  EXPECT_THAT(GenerateOf("second", &code), HasSubstr("\"second\" has been unloaded here"));
  EXPECT_EQ(code, absl::StatusCode::kUnavailable);
  EXPECT_EQ(GenerateOf("first"), "first");
  // Nothing of the calls is left: the model may go.
  EXPECT_TRUE(second_.service->AwaitNoCalls(absl::Seconds(60)));
  second_.service.reset();
  second_.loop.reset();
  EXPECT_THAT(GenerateOf("second"), HasSubstr("has been unloaded here"));
}

TEST_F(ModelsServiceTest, ACallThatIsHeldIsWaitedFor) {
  directory_.Add("first", first_.service.get());
  std::shared_ptr<void> held = first_.service->Hold();
  EXPECT_FALSE(first_.service->AwaitNoCalls(absl::Milliseconds(1)));
  held.reset();
  EXPECT_TRUE(first_.service->AwaitNoCalls(absl::ZeroDuration()));
}

TEST_F(ModelsServiceTest, SwapsAreSums) {
  directory_.Add("first", first_.service.get());
  directory_.Add("second", second_.service.get());
  Start();
  v1::SwapDrafterRequest request;
  request.set_tenant("acme");
  request.mutable_to()->set_name("code");
  request.mutable_to()->set_endpoint("127.0.0.1:1");
  request.mutable_to()->set_draft_model("code");
  const auto swap = [&] {
    grpc::ClientContext context;
    v1::SwapDrafterResponse response;
    const absl::Status status = FromGrpcStatus(stub_->SwapDrafter(&context, request, &response));
    EXPECT_EQ(response.swapped() + response.refused() + response.ended(), 0u);
    return status;
  };
  EXPECT_TRUE(swap().ok());
  request.set_model("second");
  EXPECT_TRUE(swap().ok());
  request.set_model("third");
  EXPECT_TRUE(absl::IsFailedPrecondition(swap()));
  request.clear_model();
  request.clear_to();
  EXPECT_TRUE(absl::IsInvalidArgument(swap()));
}

TEST_F(ModelsServiceTest, ModelsChangeWhereThatIsPossible) {
  directory_.Add("first", first_.service.get());
  {
    Start();
    grpc::ClientContext context;
    v1::LoadModelResponse response;
    const absl::Status status = FromGrpcStatus(stub_->LoadModel(&context, v1::LoadModelRequest(), &response));
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--models-folder"));
    server_.reset();
  }
  directory_.SetChanges({.load =
                             [this](const v1::LoadModelRequest& request, const auto& done) {
                               directory_.Add(request.name(), second_.service.get());
                               v1::LoadModelResponse response;
                               response.set_kv_tokens(request.kv_tokens());
                               done(response);
                             },
                         .unload = [](const v1::UnloadModelRequest& request,
                                      const auto& done) { done(absl::NotFoundError(request.name())); }});
  Start();
  {
    grpc::ClientContext context;
    v1::LoadModelRequest request;
    request.set_name("second");
    request.set_kv_tokens(512);
    v1::LoadModelResponse response;
    EXPECT_TRUE(stub_->LoadModel(&context, request, &response).ok());
    EXPECT_EQ(response.kv_tokens(), 512u);
  }
  EXPECT_EQ(GenerateOf("second"), "second");
  grpc::ClientContext context;
  v1::UnloadModelRequest request;
  request.set_name("third");
  v1::UnloadModelResponse response;
  EXPECT_TRUE(absl::IsNotFound(FromGrpcStatus(stub_->UnloadModel(&context, request, &response))));
}

}  // namespace
}  // namespace tandem
