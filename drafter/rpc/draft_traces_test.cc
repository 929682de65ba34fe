#include "drafter/rpc/draft_traces.h"

#include <optional>
#include <string>
#include <vector>

#include "common/tracing/testing/span_collector.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::SizeIs;

constexpr LinkId kVerifier = 1;
constexpr char kTraceparent[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

class DraftTracesTest : public ::testing::Test {
 protected:
  DraftTracesTest() { traces_.emplace(tracer_, &clock_); }

  static DraftRequest Open(SessionId session, const std::string& traceparent = kTraceparent) {
    return {.session = session,
            .event = OpenSession{.epoch = 1,
                                 .draft_model = "small",
                                 .prompt_length = 5,
                                 .traceparent = traceparent,
                                 .tracestate = "v=1",
                                 .request_id = "req-1"}};
  }
  void Answer(SessionId session) {
    traces_->OnResponse(kVerifier, {.session = session, .event = SessionOpened{.epoch = 1}});
    traces_->DropUnanswered();
  }
  void Start(SessionId session) {
    traces_->OnRequest(kVerifier, Open(session));
    Answer(session);
  }

  SpanCollector collector_;
  uint64_t next_ = 1;
  Tracer tracer_{{.sink = &collector_, .draw = [this] { return next_++; }}};
  ManualClock clock_;
  std::optional<DraftTraces> traces_;
};

TEST_F(DraftTracesTest, ASessionIsOneSpanThatSumsUpWhatWasGrown) {
  Start(7);
  clock_.Advance(absl::Seconds(2));
  traces_->OnResponse(kVerifier, {.session = 7, .event = Grow{.exhausted = true}});
  EXPECT_THAT(collector_.spans("prefill"), SizeIs(0)) << "no candidates yet";
  clock_.Advance(absl::Seconds(1));
  for (int i = 0; i < 1000; ++i) {
    traces_->OnResponse(kVerifier, {.session = 7, .event = Grow{.tokens = {1, 2, 3}}});
    traces_->OnRequest(kVerifier, {.session = 7, .event = Commit{.tokens = {1, 2}}});
  }
  traces_->OnRequest(kVerifier, Open(7));
  clock_.Advance(absl::Seconds(1));
  traces_->OnRequest(kVerifier, {.session = 7, .event = CloseSession{}});
  ASSERT_THAT(collector_.spans(), SizeIs(2));
  const SpanRecord prefill = collector_.spans("prefill").at(0);
  const SpanRecord session = collector_.spans("draft session").at(0);
  EXPECT_EQ(session.parent_id, 0x00f067aa0ba902b7u);
  EXPECT_EQ(session.kind, SpanKind::kServer);
  EXPECT_EQ(session.context.state, "v=1");
  EXPECT_EQ(session.end - session.start, absl::Seconds(4));
  EXPECT_EQ(prefill.parent_id, session.context.span_id);
  EXPECT_EQ(prefill.end - prefill.start, absl::Seconds(3));
  EXPECT_EQ(*AttributeOf<int64_t>(session, "tandem.draft.opens"), 2);
  EXPECT_EQ(*AttributeOf<int64_t>(session, "tandem.draft.commits"), 1000);
  EXPECT_EQ(*AttributeOf<int64_t>(session, "tandem.draft.committed_tokens"), 2000);
  EXPECT_EQ(*AttributeOf<int64_t>(session, "tandem.draft.sent_nodes"), 3000);
  EXPECT_EQ(*AttributeOf<std::string>(session, "tandem.request_id"), "req-1");
}

TEST_F(DraftTracesTest, RefusedAndLostSessionsSaySo) {
  traces_->OnRequest(kVerifier, Open(1));
  traces_->OnResponse(
      kVerifier,
      {.session = 1, .event = SessionRefused{.epoch = 1, .status = absl::NotFoundError("no such model")}});
  EXPECT_EQ(*AttributeOf<std::string>(collector_.spans("draft session").at(0), "error.type"), "NOT_FOUND");
  Start(2);
  Start(3);
  traces_->OnRequest(kVerifier + 1, Open(2));
  traces_->OnLinkClosed(kVerifier);
  EXPECT_THAT(collector_.spans("draft session"), SizeIs(3));
  traces_->OnRequest(kVerifier + 1, {.session = 2, .event = CloseSession{}});
  EXPECT_THAT(collector_.spans("draft session"), SizeIs(4));
  Start(4);
  traces_.reset();
  EXPECT_THAT(collector_.spans("draft session"), SizeIs(5)) << "the process ends";
}

TEST_F(DraftTracesTest, AnOpenThatIsPassedOverLeavesNothing) {
  for (SessionId i = 0; i < 100; ++i) traces_->OnRequest(kVerifier, Open(i));
  EXPECT_EQ(traces_->IdsOf(kVerifier, 5).request_id, "req-1");
  Answer(5);
  EXPECT_EQ(traces_->IdsOf(kVerifier, 5).request_id, "req-1");
  EXPECT_EQ(traces_->IdsOf(kVerifier, 6).request_id, "");
  traces_.reset();
  EXPECT_THAT(collector_.spans("draft session"), SizeIs(1));
}

TEST_F(DraftTracesTest, HostileOrUnsampledContextsAreNotRecorded) {
  const std::string unsampled = std::string(kTraceparent).substr(0, 53) + "00";
  SessionId session = 0;
  for (const std::string& parent :
       {std::string(), std::string("nonsense"), std::string(300, '0'), unsampled}) {
    traces_->OnRequest(kVerifier, Open(++session, parent));
    Answer(session);
    EXPECT_EQ(traces_->IdsOf(kVerifier, session).request_id, "req-1");
    EXPECT_EQ(traces_->IdsOf(kVerifier, session).trace_id,
              parent == unsampled ? "4bf92f3577b34da6a3ce929d0e0e4736" : "");
    traces_->OnRequest(kVerifier, {.session = session, .event = CloseSession{}});
  }
  EXPECT_THAT(collector_.spans(), SizeIs(0));
}

}  // namespace
}  // namespace tandem
