// What the router tells of a request, and the trace that it passes on.
#include "router/serving/request_trace.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "common/rpc/channel.h"
#include "common/tracing/testing/span_collector.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "router/testing/stub_verifier.h"
#include "router/testing/test_router.h"

namespace tandem::router {
namespace {

using testing::ChunkEvent;
using ::testing::ElementsAre;
using testing::FinishedEvent;
using testing::LettersConfig;
using ::testing::SizeIs;
using testing::StartedEvent;
using testing::StubVerifier;
using testing::TestRouter;

constexpr char kTraceparent[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
constexpr char kCall[] = "tandem.v1.Generation/Generate";
constexpr char kAttempt[] = "tandem.v1.Verifier/Generate";
constexpr char kPrompt[] = "a secret prompt";

// The metadata that the verifiers got, call by call.
class Verifiers {
 public:
  // `lost`: how many calls are lost after their first token.
  explicit Verifiers(int lost = 0) {
    for (StubVerifier& stub : stubs_) {
      stub.SetScript([this, lost](StubVerifier::Call& call) {
        int number = 0;
        {
          absl::MutexLock lock(&mutex_);
          number = static_cast<int>(parents_.size());
          parents_.push_back(call.Metadata(kTraceparentKey));
          states_.push_back(call.Metadata(kTracestateKey));
        }
        const std::string output = "an output";
        const auto offset = static_cast<uint32_t>(call.request().emitted().ids_size());
        call.Send(StartedEvent(call.request()));
        if (number < lost) {
          call.Send(ChunkEvent(offset, output.substr(offset, 1)));
          return call.Finish(absl::UnavailableError("killed"));
        }
        call.Send(ChunkEvent(offset, output.substr(offset)));
        call.Send(FinishedEvent(call.request(), static_cast<uint32_t>(output.size())));
        call.Finish(absl::OkStatus());
      });
    }
  }
  v1::RouterConfig Config() const { return LettersConfig({stubs_[0].endpoint(), stubs_[1].endpoint()}); }
  std::vector<std::string> parents() const {
    absl::MutexLock lock(&mutex_);
    return parents_;
  }
  std::vector<std::string> states() const {
    absl::MutexLock lock(&mutex_);
    return states_;
  }

 private:
  mutable absl::Mutex mutex_;
  std::vector<std::string> parents_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> states_ ABSL_GUARDED_BY(mutex_);
  StubVerifier stubs_[2];  // Destroyed first: nothing is called back after that.
};

grpc::Status Generate(TestRouter& router, const std::vector<std::pair<std::string, std::string>>& metadata,
                      const std::string& token = "secret-z") {
  const auto stub = v1::Generation::NewStub(CreateChannel(router.endpoint()));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
  context.AddMetadata("authorization", "Bearer " + token);
  for (const auto& [key, value] : metadata) context.AddMetadata(key, value);
  v1::GenerateRequest request;
  request.set_request_id("req-1");
  request.set_text(kPrompt);
  request.mutable_sampling()->set_seed(5);
  const auto reader = stub->Generate(&context, request);
  v1::GenerateResponse event;
  while (reader->Read(&event)) {
  }
  return reader->Finish();
}

class RequestTraceTest : public ::testing::Test {
 protected:
  SpanCollector collector_;
  std::atomic<uint64_t> next_{1};
  Tracer tracer_{{.sink = &collector_, .draw = [this] { return next_++; }}};
};

TEST_F(RequestTraceTest, ACallIsOneTraceFromTheClientsSpanDown) {
  Verifiers verifiers;
  TestRouter router(verifiers.Config(), nullptr, nullptr, {}, tracer_);
  ASSERT_TRUE(Generate(router, {{"traceparent", kTraceparent}, {"tracestate", "v=1"}}).ok());
  ASSERT_TRUE(collector_.WaitFor(kCall, 1));
  const std::vector<SpanRecord> spans = collector_.spans();
  const SpanRecord call = collector_.spans(kCall).at(0);
  EXPECT_EQ(call.parent_id, 0x00f067aa0ba902b7u);
  EXPECT_EQ(call.kind, SpanKind::kServer);
  std::vector<std::string> names;
  for (const SpanRecord& span : spans) {
    names.emplace_back(span.name);
    EXPECT_EQ(TraceIdText(span.context), "4bf92f3577b34da6a3ce929d0e0e4736");
    if (span.name == kCall) continue;
    EXPECT_EQ(span.parent_id, call.context.span_id) << span.name;
    EXPECT_GE(span.start, call.start) << span.name;
    EXPECT_LE(span.end, call.end) << span.name;
  }
  EXPECT_THAT(names, ElementsAre("queue", "tokenize", "choose drafter", kAttempt, kCall));
  EXPECT_THAT(verifiers.parents(), ElementsAre(FormatTraceparent(collector_.spans(kAttempt).at(0).context)));
  EXPECT_THAT(verifiers.states(), ElementsAre("v=1"));
  EXPECT_EQ(*AttributeOf<std::string>(call, "tandem.request_id"), "req-1");
  EXPECT_EQ(*AttributeOf<std::string>(call, "gen_ai.response.model"), "letters");
  EXPECT_EQ(*AttributeOf<int64_t>(call, "gen_ai.usage.output_tokens"), 9);
  EXPECT_NE(AttributeOf<double>(call, "tandem.time_to_first_token_seconds"), nullptr);
}

TEST_F(RequestTraceTest, EveryAttemptIsASpanOfItsOwn) {
  Verifiers verifiers(/*lost=*/2);
  TestRouter router(verifiers.Config(), nullptr, nullptr, {}, tracer_);
  ASSERT_TRUE(Generate(router, {{"traceparent", kTraceparent}}).ok());
  ASSERT_TRUE(collector_.WaitFor(kCall, 1));
  const std::vector<SpanRecord> attempts = collector_.spans(kAttempt);
  ASSERT_THAT(attempts, SizeIs(3));
  std::vector<std::string> told;
  for (size_t i = 0; i < attempts.size(); ++i) {
    told.push_back(FormatTraceparent(attempts[i].context));
    EXPECT_EQ(attempts[i].failed, i < 2);
    EXPECT_EQ(*AttributeOf<int64_t>(attempts[i], "tandem.attempt"), static_cast<int64_t>(i) + 1);
    EXPECT_EQ(*AttributeOf<int64_t>(attempts[i], "tandem.emitted_tokens"), static_cast<int64_t>(i));
    if (i > 0) {
      EXPECT_GE(attempts[i].start, attempts[i - 1].end);
    }
  }
  EXPECT_EQ(verifiers.parents(), told);
  EXPECT_FALSE(collector_.spans(kCall).at(0).failed);
}

TEST_F(RequestTraceTest, HostileHeadersBeginANewTraceAndFailNothing) {
  Verifiers verifiers;
  TestRouter router(verifiers.Config(), nullptr, nullptr, {}, tracer_);
  const std::vector<std::vector<std::pair<std::string, std::string>>> cases = {
      {},
      {{"traceparent", ""}},
      {{"traceparent", "00-00000000000000000000000000000000-00f067aa0ba902b7-01"}},
      {{"traceparent", "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"}},
      {{"traceparent", std::string(4000, 'f')}, {"tracestate", std::string(4000, ',')}},
      {{"tracestate", "v=1"}},
  };
  for (const auto& metadata : cases) EXPECT_TRUE(Generate(router, metadata).ok());
  ASSERT_TRUE(collector_.WaitFor(kCall, cases.size()));
  for (const SpanRecord& call : collector_.spans(kCall)) {
    EXPECT_EQ(call.parent_id, 0u);
    EXPECT_NE(TraceIdText(call.context), "4bf92f3577b34da6a3ce929d0e0e4736");
    EXPECT_EQ(call.context.state, "");
  }
}

TEST_F(RequestTraceTest, WithoutRecordingTheContextGoesThrough) {
  Verifiers verifiers;
  {
    TestRouter router(verifiers.Config(), nullptr, nullptr, {}, tracer_);
    const std::string unsampled = std::string(kTraceparent).substr(0, 53) + "00";
    ASSERT_TRUE(Generate(router, {{"traceparent", unsampled}, {"tracestate", "v=1"}}).ok());
    EXPECT_THAT(verifiers.parents(), ElementsAre(unsampled));
  }
  TestRouter router(verifiers.Config());
  ASSERT_TRUE(Generate(router, {{"traceparent", kTraceparent}}).ok());
  EXPECT_EQ(verifiers.parents().back(), kTraceparent);
  ASSERT_TRUE(Generate(router, {}).ok());
  const auto fresh = ParseTraceparent(verifiers.parents().back());
  ASSERT_TRUE(fresh.has_value()) << "for the logs";
  EXPECT_FALSE(fresh->sampled);
  EXPECT_THAT(collector_.spans(), SizeIs(0));
}

TEST_F(RequestTraceTest, StrangersLeaveNoSpansAndPromptsAreInNone) {
  Verifiers verifiers;
  TestRouter router(verifiers.Config(), nullptr, nullptr, {}, tracer_);
  EXPECT_FALSE(Generate(router, {{"traceparent", kTraceparent}}, "wrong").ok());
  ASSERT_TRUE(Generate(router, {}).ok());
  ASSERT_TRUE(collector_.WaitFor(kCall, 1));
  EXPECT_THAT(collector_.spans(kCall), SizeIs(1));
  for (const SpanRecord& span : collector_.spans()) {
    for (const SpanAttribute& attribute : span.attributes) {
      const auto* text = std::get_if<std::string>(&attribute.value);
      if (text == nullptr) continue;
      EXPECT_EQ(text->find("secret"), std::string::npos) << attribute.key;
      EXPECT_EQ(text->find("output"), std::string::npos) << attribute.key;
    }
  }
}

}  // namespace
}  // namespace tandem::router
