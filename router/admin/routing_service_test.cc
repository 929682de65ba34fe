#include "router/admin/routing_service.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "common/config/sealed_bytes.h"
#include "common/rpc/channel.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "router/drafters/learned_state.h"
#include "router/state/memory_store.h"
#include "router/state/open_store.h"
#include "router/testing/letter_encoder.h"
#include "router/testing/stub_verifier.h"
#include "router/testing/test_router.h"

namespace tandem::router {
namespace {

using testing::ChunkEvent;
using ::testing::ElementsAre;
using testing::FinishedEvent;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::LettersConfig;
using testing::StartedEvent;
using testing::StubVerifier;
using testing::TestRouter;

// Tenant "zeta" chooses by itself between "code" and "math".
v1::RouterConfig AutoConfig(const std::string& verifier) {
  v1::RouterConfig config = LettersConfig({verifier});
  v1::TenantConfig& zeta = *config.mutable_tenants(1);
  zeta.clear_allowed_drafters();
  zeta.set_admin(true);
  zeta.set_drafter_policy(v1::DRAFTER_POLICY_AUTO);
  return config;
}

// "code" is good at texts of braces, "math" at all others.
void Answer(StubVerifier::Call& call) {
  const v1::VerifierGenerateRequest& request = call.request();
  const bool braces = request.prompt().ids_size() > 1 && request.prompt().ids(1) == '{';
  const std::string& drafter = request.drafter().name();
  call.Send(StartedEvent(request));
  call.Send(ChunkEvent(0, "0123456789"));
  v1::GenerateResponse finished = FinishedEvent(request, 10);
  v1::SpeculationStats& stats = *finished.mutable_finished()->mutable_speculation();
  stats.set_drafter(drafter);
  stats.set_drafter_accepted_tokens((drafter == "code") == braces ? 9 : 3);
  stats.set_drafter_rejections(3);
  stats.mutable_costs()->set_exposed_level_seconds(0.001f);
  stats.mutable_costs()->set_hidden_level_seconds(0.0f);
  for (int window = 0; window < 5; ++window) stats.mutable_costs()->add_verify_seconds(0.01f);
  call.Send(finished);
  call.Finish(absl::OkStatus());
}

class RoutingServiceTest : public ::testing::Test {
 protected:
  RoutingServiceTest() { verifier_.SetScript(Answer); }

  // Runs one request to its end and returns the drafter it got.
  std::string Generate(const std::string& text, const std::string& drafter = "") {
    const auto stub = v1::Generation::NewStub(CreateChannel(router_.endpoint()));
    grpc::ClientContext context;
    Prepare(context);
    v1::GenerateRequest request;
    request.set_text(text);
    request.mutable_speculation()->set_drafter(drafter);
    const auto reader = stub->Generate(&context, request);
    v1::GenerateResponse event;
    std::string got;
    while (reader->Read(&event)) {
      if (event.has_started()) got = event.started().drafter();
    }
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return got;
  }

  grpc::Status Explain(const std::string& text, v1::ChoiceExplanation* explanation,
                       const std::string& token = "secret-z") {
    grpc::ClientContext context;
    Prepare(context, token);
    v1::ExplainChoiceRequest request;
    request.mutable_request()->set_text(text);
    return Stub()->ExplainChoice(&context, request, explanation);
  }

  grpc::Status Calibrate(const v1::CalibrateRequest& request, v1::CalibrateResponse* response,
                         const std::string& token = "secret-z") {
    grpc::ClientContext context;
    Prepare(context, token);
    return Stub()->Calibrate(&context, request, response);
  }

  // Braces and letters in turns, with what Answer would make of them.
  static v1::CalibrateRequest Samples(int count) {
    v1::CalibrateRequest request;
    for (int i = 0; i < count; ++i) {
      const bool braces = i % 2 == 0;
      v1::CalibrationSample& sample = *request.add_samples();
      sample.set_text(std::string(5 + i % 7, braces ? '{' : 'x') + (braces ? "}[" : "yz"));
      for (const char* drafter : {"code", "math"}) {
        v1::CalibrationOutcome& outcome = *sample.add_outcomes();
        outcome.set_drafter(drafter);
        outcome.set_acceptance((drafter == std::string("code")) == braces ? 0.75 : 0.5);
        outcome.set_trials(100);
      }
    }
    return request;
  }

  static void Prepare(grpc::ClientContext& context, const std::string& token = "secret-z") {
    context.AddMetadata("authorization", "Bearer " + token);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  }

  std::unique_ptr<v1::Routing::Stub> Stub() {
    return v1::Routing::NewStub(CreateChannel(router_.endpoint()));
  }

  StubVerifier verifier_;
  TestRouter router_{AutoConfig(verifier_.endpoint())};
};

TEST_F(RoutingServiceTest, ExploresFromColdAndThenChooses) {
  for (int i = 0; i < 80; ++i) Generate(i % 4 < 2 ? "{{}" : "letters");
  const std::string selected = "tandem_router_drafter_selected_total{drafter=";
  EXPECT_EQ(router_.MetricValue(selected + "\"code\",reason=\"explore\",tenant=\"zeta\"}"), 25);
  EXPECT_EQ(router_.MetricValue(selected + "\"math\",reason=\"explore\",tenant=\"zeta\"}"), 25);
  EXPECT_EQ(Generate("{{}"), "code");
  EXPECT_EQ(Generate("letters"), "math");
  EXPECT_GT(router_.MetricValue(selected + "\"code\",reason=\"auto\",tenant=\"zeta\"}"), 0);
  EXPECT_GT(router_.MetricSum("tandem_router_choice_predicted_acceptance_count"), 50);
  EXPECT_EQ(router_.MetricSum("tandem_router_choice_predicted_acceptance_count"),
            router_.MetricSum("tandem_router_choice_acceptance_error_count"));
}

TEST_F(RoutingServiceTest, CalibratedItChoosesAtOnce) {
  v1::CalibrateResponse response;
  const grpc::Status status = Calibrate(Samples(40), &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.held_out_error_size(), 2);
  EXPECT_EQ(response.state().models_size(), 1);
  EXPECT_EQ(Generate("{{{{{}["), "code");
  EXPECT_EQ(Generate("xxxxxxyz"), "math");
  EXPECT_EQ(Generate("xxxxxxyz", "code"), "code") << "a request's own choice stands";
}

TEST_F(RoutingServiceTest, WhatWasLearnedOutlivesTheRouter) {
  MemoryStore store;
  DrafterChooser& chooser = router_.router().chooser();
  ASSERT_TRUE(WriteLearned(chooser, store).ok());
  EXPECT_FALSE(GetBlob(store, "learned").value().has_value()) << "it knows nothing yet";
  v1::CalibrateResponse response;
  ASSERT_TRUE(Calibrate(Samples(40), &response).ok());
  ASSERT_TRUE(WriteLearned(chooser, store).ok());
  const uint64_t version = store.List("").value().version;
  ASSERT_TRUE(WriteLearned(chooser, store).ok());
  EXPECT_EQ(store.List("").value().version, version) << "nothing new";

  const auto read = [&](TestRouter& router, const std::optional<CalibrationFile>& file = std::nullopt) {
    return ReadLearned(file, store, router.router().chooser());
  };
  const auto state = [](TestRouter& router) { return router.router().chooser().Save().SerializeAsString(); };
  TestRouter next(AutoConfig(verifier_.endpoint()));
  ASSERT_TRUE(read(next).ok());
  EXPECT_EQ(state(next), state(router_));

  // A calibration rules once, until it is another one.
  CalibrationFile file{.path = "file", .bytes = state(router_)};
  ASSERT_TRUE(read(next, file).ok());
  for (int i = 0; i < 10; ++i) Generate("{{}");
  EXPECT_NE(state(router_), file.bytes);
  ASSERT_TRUE(WriteLearned(chooser, store).ok());
  ASSERT_TRUE(read(next, file).ok());
  EXPECT_EQ(state(next), state(router_)) << "and not the file's";
  ASSERT_TRUE(Calibrate(Samples(30), &response).ok());
  file.bytes = response.state().SerializeAsString();
  ASSERT_TRUE(read(next, file).ok());
  EXPECT_EQ(state(next), file.bytes);
  EXPECT_THAT(read(next, CalibrationFile{"bad", "nonsense"}).message(), HasSubstr("bad: not a calibration"));
  v1::LearnedRouting foreign = response.state();
  foreign.mutable_models(0)->set_model("another");
  const absl::Status refused = read(next, CalibrationFile{"foreign", foreign.SerializeAsString()});
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(refused.message(), "foreign: is for model \"another\", but this router serves letters");
  EXPECT_EQ(state(next), file.bytes) << "as it was";
}

TEST_F(RoutingServiceTest, WhatDoesNotFitIsNotLearnedFromAndNotLost) {
  MemoryStore store;
  v1::CalibrateResponse response;
  ASSERT_TRUE(Calibrate(Samples(40), &response).ok());
  const DrafterChooser& chooser = router_.router().chooser();
  ASSERT_TRUE(WriteLearned(chooser, store).ok());
  const std::string stored = GetBlob(store, "learned").value().value();
  DrafterChooser wider({.dimension = 20}, {{.name = "letters"}});
  ASSERT_TRUE(ReadLearned(std::nullopt, store, wider).ok());
  EXPECT_EQ(wider.Save().models_size(), 0);
  const PolicyMemory policies;
  { const LearnedStateSaver saver(&wider, &policies, &store, absl::InfiniteDuration()); }
  EXPECT_EQ(GetBlob(store, "learned").value(), stored);
  { const LearnedStateSaver saver(&chooser, &policies, &store, absl::InfiniteDuration()); }
  EXPECT_EQ(GetBlob(store, "learned").value(), stored);
}

TEST_F(RoutingServiceTest, OfADamagedRecordTheOneBeforeIsUsed) {
  MemoryStore store;
  v1::CalibrateResponse response;
  ASSERT_TRUE(Calibrate(Samples(40), &response).ok());
  DrafterChooser& chooser = router_.router().chooser();
  ASSERT_TRUE(WriteLearned(chooser, store).ok());
  const v1::LearnedRouting before = chooser.Save();
  ASSERT_TRUE(Calibrate(Samples(60), &response).ok());
  ASSERT_TRUE(WriteLearned(chooser, store).ok());
  const std::string stored = GetBlob(store, "learned").value().value();
  // What a router that starts now knows.
  const auto read = [this, &store] {
    TestRouter next(AutoConfig(verifier_.endpoint()));
    EXPECT_TRUE(ReadLearned(std::nullopt, store, next.router().chooser()).ok());
    return next.router().chooser().Save().SerializeAsString();
  };
  ASSERT_TRUE(read() == chooser.Save().SerializeAsString());
  std::string flipped = stored;
  flipped[flipped.size() / 2] ^= 1;
  for (const std::string& damaged : {flipped, stored.substr(0, stored.size() - 1), std::string("nonsense")}) {
    ASSERT_TRUE(PutBlob(store, "learned", damaged).ok());
    EXPECT_TRUE(read() == before.SerializeAsString());
  }
  // It is not kept as a good one, and what is learned from now on is stored.
  ASSERT_TRUE(WriteLearned(chooser, store).ok());
  EXPECT_TRUE(GetBlob(store, "learned").value() == stored);
  ASSERT_TRUE(PutBlob(store, "learned", "nonsense").ok());
  EXPECT_TRUE(read() == before.SerializeAsString());
  // Both are damaged.
  ASSERT_TRUE(PutBlob(store, "learned-before", "nonsense").ok());
  const std::string nothing =
      TestRouter(AutoConfig(verifier_.endpoint())).router().chooser().Save().SerializeAsString();
  EXPECT_TRUE(read() == nothing);
}

TEST_F(RoutingServiceTest, ADamagedCalibrationIsNamedAndTheOneBeforeUsed) {
  MemoryStore store;
  v1::CalibrateResponse response;
  ASSERT_TRUE(Calibrate(Samples(40), &response).ok());
  const CalibrationFile good{"good.bin", Seal(response.state().SerializeAsString())};
  const auto read = [this, &store](const CalibrationFile& file, std::string* state) {
    TestRouter next(AutoConfig(verifier_.endpoint()));
    const absl::Status status = ReadLearned(file, store, next.router().chooser());
    if (state != nullptr) *state = next.router().chooser().Save().SerializeAsString();
    return status;
  };
  CalibrationFile damaged{"damaged.bin", good.bytes};
  damaged.bytes.back() ^= 1;
  const absl::Status refused = read(damaged, nullptr);
  EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss) << "there is none before";
  EXPECT_THAT(std::string(refused.message()), HasSubstr("damaged.bin: a damaged calibration: "));
  std::string taken, kept;
  ASSERT_TRUE(read(good, &taken).ok());
  EXPECT_TRUE(taken == response.state().SerializeAsString());
  EXPECT_TRUE(read(damaged, &kept).ok());
  EXPECT_TRUE(kept == taken);
  // As versions without seals wrote it, who read sealed ones as well.
  const CalibrationFile bare{"bare.bin", response.state().SerializeAsString()};
  EXPECT_TRUE(read(bare, &kept).ok());
  EXPECT_TRUE(kept == taken);
  v1::LearnedRouting by_an_older_version;
  ASSERT_TRUE(by_an_older_version.ParseFromString(good.bytes));
  EXPECT_EQ(by_an_older_version.models_size(), response.state().models_size());
}

TEST_F(RoutingServiceTest, ExplainsTheChoice) {
  v1::CalibrateResponse response;
  ASSERT_TRUE(Calibrate(Samples(40), &response).ok());
  // Once with each drafter, since nothing has timed them.
  for (int i = 0; i < 2; ++i) Generate("{{{{{}[");
  v1::ChoiceExplanation explanation;
  const grpc::Status status = Explain("{{{{{}[", &explanation);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(explanation.model(), "letters");
  EXPECT_EQ(explanation.prompt_tokens(), 8u);
  EXPECT_EQ(explanation.drafter(), "code");
  EXPECT_EQ(explanation.reason(), "auto");
  ASSERT_EQ(explanation.candidates_size(), 3);
  EXPECT_GT(explanation.candidates(1).acceptance().mean(), explanation.candidates(2).acceptance().mean());
}

// Drafters of another vocabulary are candidates where they can draft by text and the tenant allows that.
TEST_F(RoutingServiceTest, LeavesOutDraftersOfAnotherVocabulary) {
  const uint64_t vocabulary = testing::LetterModel().vocabulary_fingerprint;
  DrafterChooser& chooser = router_.router().chooser();
  const auto names = [](const auto& list) {
    std::vector<std::string> found;
    for (const auto& each : list) found.push_back(each.drafter());
    return found;
  };
  EXPECT_TRUE(chooser.TellVocabularies("code", {.own = 0x77, .bridged = {}, .by_text = {0x78, vocabulary}}));
  v1::ChoiceExplanation explanation;
  ASSERT_TRUE(Explain("{{{{{}[", &explanation).ok());
  EXPECT_THAT(names(explanation.candidates()), ElementsAre("", "math"));
  EXPECT_THAT(explanation.unfit_drafters(), ElementsAre("code"));
  // Nothing is known of either, so that whoever is a candidate is tried.
  for (int i = 0; i < 8; ++i) EXPECT_NE(Generate("{{{{{}["), "code");
  // One of neither kind drafts for nobody.
  EXPECT_TRUE(chooser.TellVocabularies("math", {.own = 0x77, .bridged = {}, .by_text = {0x78}}));
  EXPECT_EQ(Generate("{{{{{}["), "");

  v1::RouterConfig config = AutoConfig(verifier_.endpoint());
  config.mutable_tenants(1)->set_text_drafting(true);
  TestRouter allowing(config);
  EXPECT_TRUE(allowing.router().chooser().TellVocabularies(
      "code", {.own = 0x77, .bridged = {}, .by_text = {vocabulary}}));
  const auto stub = v1::Routing::NewStub(CreateChannel(allowing.endpoint()));
  grpc::ClientContext context;
  Prepare(context);
  v1::ExplainChoiceRequest request;
  request.mutable_request()->set_text("{{{{{}[");
  ASSERT_TRUE(stub->ExplainChoice(&context, request, &explanation).ok());
  EXPECT_THAT(names(explanation.candidates()), ElementsAre("", "code", "math"));
  EXPECT_THAT(explanation.unfit_drafters(), IsEmpty());
}

TEST_F(RoutingServiceTest, ExplainsWhereNothingIsChosen) {
  v1::ChoiceExplanation explanation;
  ASSERT_TRUE(Explain("letters", &explanation, "secret-a").ok());
  EXPECT_EQ(explanation.drafter(), "code");
  EXPECT_EQ(explanation.reason(), "tenant");
  EXPECT_EQ(explanation.candidates_size(), 3);
}

TEST_F(RoutingServiceTest, Errors) {
  v1::ChoiceExplanation explanation;
  EXPECT_EQ(Explain("letters", &explanation, "wrong").error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Explain("", &explanation).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Explain(std::string(40, 'x'), &explanation).error_code(), grpc::StatusCode::INVALID_ARGUMENT);

  v1::CalibrateResponse response;
  EXPECT_EQ(Calibrate(Samples(12), &response, "secret-a").error_code(), grpc::StatusCode::PERMISSION_DENIED);
  const auto error = [&](const v1::CalibrateRequest& request) {
    const grpc::Status status = Calibrate(request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  };
  EXPECT_THAT(error(Samples(3)), HasSubstr("samples: 3, expected at least 10"));
  v1::CalibrateRequest request = Samples(12);
  request.mutable_samples(5)->mutable_outcomes(0)->set_drafter("nonsense");
  EXPECT_THAT(error(request), HasSubstr("samples[5]: speculation.drafter: \"nonsense\""));
  request = Samples(12);
  request.mutable_samples(7)->mutable_outcomes(0)->set_acceptance(1.5);
  EXPECT_THAT(error(request), HasSubstr("samples[7]: outcomes: acceptance 1.5"));
  request = Samples(12);
  request.mutable_samples(2)->set_text("");
  EXPECT_THAT(error(request), HasSubstr("samples[2]: text: empty"));
}

}  // namespace
}  // namespace tandem::router
