#include "verifier/rpc/session_trace.h"

#include <string>
#include <vector>

#include "common/tracing/testing/span_collector.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::SizeIs;

constexpr char kCall[] = "tandem.v1.Verifier/Generate";

class SessionTraceTest : public ::testing::Test {
 protected:
  SessionTrace Begin(bool sampled = true) {
    const TraceContext parent{
        .trace_high = 1, .trace_low = 2, .span_id = 3, .sampled = sampled, .state = "v=1"};
    Span call = tracer_.StartServer(kCall, parent, At(0));
    return SessionTrace(std::move(call), At(0));
  }
  static absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }
  static RoundReport Round(double start, double wait, bool with_prefill = false) {
    RoundReport report;
    report.kind = RoundKind::kMiss;
    report.wait_seconds = wait;
    report.forward_start = At(start);
    report.forward_time = absl::Milliseconds(100);
    report.with_prefill = with_prefill;
    return report;
  }
  static DraftRequest Open(SessionId session) {
    return {.session = session, .event = OpenSession{.epoch = 1, .draft_model = "small"}};
  }
  static std::string Traceparent(const DraftRequest& request) {
    return std::get<OpenSession>(request.event).traceparent;
  }
  static std::string Endpoint() { return "drafter:7003"; }

  SpanCollector collector_;
  uint64_t next_ = 100;
  Tracer tracer_{{.sink = &collector_, .draw = [this] { return next_++; }}};
};

TEST_F(SessionTraceTest, TellsWhereTheTimeWent) {
  SessionTrace trace = Begin();
  trace.OnStarted(At(1));
  trace.OnRound(Round(2.0, 0.0), At(2.2));
  trace.OnRound(Round(3.0, 0.5), At(3.2));
  SessionSummary summary;
  summary.prompt_tokens = 7;
  summary.output_tokens = 9;
  summary.rounds = 2;
  trace.OnFinished(absl::OkStatus(), summary, At(4));
  const SpanRecord queue = collector_.spans("queue").at(0);
  EXPECT_EQ(queue.start, At(0));
  EXPECT_EQ(queue.end, At(1));
  const SpanRecord prefill = collector_.spans("prefill").at(0);
  EXPECT_EQ(prefill.start, At(1));
  EXPECT_EQ(prefill.end, At(2)) << "the first round begins";
  const std::vector<SpanRecord> rounds = collector_.spans("round");
  ASSERT_THAT(rounds, SizeIs(2));
  EXPECT_EQ(rounds[0].start, At(2.0));
  EXPECT_EQ(rounds[1].start, At(2.5)) << "waiting included";
  EXPECT_EQ(rounds[1].end, At(3.2));
  ASSERT_THAT(collector_.spans("draft wait"), SizeIs(1));
  const SpanRecord wait = collector_.spans("draft wait").at(0);
  EXPECT_EQ(wait.parent_id, rounds[1].context.span_id);
  EXPECT_EQ(wait.start, At(2.5));
  EXPECT_EQ(wait.end, At(3.0));
  const SpanRecord call = collector_.spans(kCall).at(0);
  EXPECT_EQ(call.parent_id, 3u);
  for (const SpanRecord& span : {queue, prefill, rounds[0], rounds[1]}) {
    EXPECT_EQ(span.parent_id, call.context.span_id);
  }
  EXPECT_EQ(*AttributeOf<int64_t>(call, "gen_ai.usage.output_tokens"), 9);
  EXPECT_EQ(*AttributeOf<int64_t>(call, "tandem.rounds.without_span"), 0);
}

TEST_F(SessionTraceTest, TellsOfConstraintsAndMasks) {
  SessionTrace trace = Begin();
  trace.OnConstraint(At(0.1));
  trace.OnCompiled(absl::StatusCode::kOk, At(0.9));
  trace.OnStarted(At(1));
  RoundReport masked = Round(2.0, 0.0);
  masked.masks = 3;
  masked.mask_seconds = 0.02;
  masked.masks_start = At(2.01);
  masked.masks_end = At(2.05);
  trace.OnRound(masked, At(2.2));
  trace.OnRound(Round(3.0, 0.0), At(3.2));
  trace.OnFinished(absl::OkStatus(), {}, At(4));
  const SpanRecord call = collector_.spans(kCall).at(0);
  const SpanRecord compile = collector_.spans("constraint compile").at(0);
  EXPECT_EQ(compile.parent_id, call.context.span_id);
  EXPECT_EQ(compile.start, At(0.1));
  EXPECT_EQ(compile.end, At(0.9));
  const std::vector<SpanRecord> rounds = collector_.spans("round");
  ASSERT_THAT(rounds, SizeIs(2));
  const std::vector<SpanRecord> masks = collector_.spans("masks");
  ASSERT_THAT(masks, SizeIs(1)) << "a round without masks has none";
  EXPECT_EQ(masks[0].parent_id, rounds[0].context.span_id);
  EXPECT_EQ(masks[0].start, At(2.01));
  EXPECT_EQ(masks[0].end, At(2.05));
  EXPECT_EQ(*AttributeOf<int64_t>(masks[0], "tandem.masks"), 3);
  EXPECT_EQ(*AttributeOf<double>(rounds[0], "tandem.round.mask_seconds"), 0.02);
}

TEST_F(SessionTraceTest, APrefillThatSharesAForwardPassWithTheFirstRoundEndsWithIt) {
  SessionTrace trace = Begin();
  trace.OnStarted(At(1));
  trace.OnRound(Round(2.0, 0.0, /*with_prefill=*/true), At(2.2));
  EXPECT_EQ(collector_.spans("prefill").at(0).end, At(2.1));
}

TEST_F(SessionTraceTest, ThousandsOfRoundsAreCountedAndNotTold) {
  SessionTrace trace = Begin();
  trace.OnStarted(At(1));
  for (int i = 0; i < 5000; ++i) trace.OnRound(Round(2.0 + i, 0.25), At(2.5 + i));
  trace.OnFinished(absl::OkStatus(), {}, At(6000));
  EXPECT_THAT(collector_.spans("round"), SizeIs(kMaxRoundSpans));
  EXPECT_THAT(collector_.spans("draft wait"), SizeIs(kMaxRoundSpans));
  EXPECT_EQ(*AttributeOf<int64_t>(collector_.spans(kCall).at(0), "tandem.rounds.without_span"),
            5000 - int64_t{kMaxRoundSpans});
}

TEST_F(SessionTraceTest, EverySessionAtADrafterIsASpanThatTheDrafterIsTold) {
  SessionTrace trace = Begin();
  DraftRequest first = Open(1);
  trace.OnDraftRequest(Endpoint, first, At(1));
  DraftRequest again = Open(1);  // After a resync.
  trace.OnDraftRequest(Endpoint, again, At(2));
  EXPECT_EQ(Traceparent(again), Traceparent(first));
  EXPECT_EQ(std::get<OpenSession>(first.event).tracestate, "v=1");
  DraftRequest second = Open(uint64_t{1} << 56 | 1);  // It goes over to another drafter,
  trace.OnDraftRequest(Endpoint, second, At(3));
  EXPECT_NE(Traceparent(second), Traceparent(first));
  trace.OnDraftResponse({.session = 1, .event = Grow{.tokens = {4, 5}}}, At(3));
  DraftRequest close{.session = 1, .event = CloseSession{}};
  trace.OnDraftRequest(Endpoint, close, At(4));
  trace.OnDraftResponse({.session = second.session,  // which refuses.
                         .event = SessionRefused{.status = absl::NotFoundError("no such model")}},
                        At(5));
  DraftRequest third = Open(uint64_t{2} << 56 | 1);
  trace.OnDraftRequest(Endpoint, third, At(6));
  trace.OnFinished(absl::OkStatus(), {}, At(7));
  const std::vector<SpanRecord> drafts = collector_.spans("draft session");
  ASSERT_THAT(drafts, SizeIs(3));
  EXPECT_EQ(FormatTraceparent(drafts[0].context), Traceparent(first));
  EXPECT_EQ(drafts[0].kind, SpanKind::kClient);
  EXPECT_EQ(drafts[0].start, At(1));
  EXPECT_EQ(drafts[0].end, At(4));
  EXPECT_EQ(*AttributeOf<std::string>(drafts[0], "server.address"), "drafter");
  EXPECT_EQ(*AttributeOf<int64_t>(drafts[0], "tandem.draft.opens"), 2);
  EXPECT_EQ(*AttributeOf<int64_t>(drafts[0], "tandem.draft.received_nodes"), 2);
  EXPECT_TRUE(drafts[1].failed);
  EXPECT_EQ(*AttributeOf<std::string>(drafts[1], "error.type"), "NOT_FOUND");
  EXPECT_EQ(drafts[2].end, At(7)) << "ends with the call at the latest";
}

TEST_F(SessionTraceTest, ARequestThatGoesFromDrafterToDrafterHasBoundedSpans) {
  SessionTrace trace = Begin();
  for (SessionId i = 0; i < 1000; ++i) {
    DraftRequest open = Open(i);
    trace.OnDraftRequest(Endpoint, open, At(1));
    EXPECT_TRUE(ParseTraceparent(Traceparent(open)).has_value());
    DraftRequest close{.session = i, .event = CloseSession{}};
    trace.OnDraftRequest(Endpoint, close, At(2));
  }
  EXPECT_THAT(collector_.spans("draft session"), SizeIs(kMaxDraftSpans));
}

TEST_F(SessionTraceTest, WhatFailsBeforeItStartsEndsItsQueueing) {
  SessionTrace trace = Begin();
  trace.OnFinished(absl::ResourceExhaustedError("full"), {}, At(2));
  EXPECT_EQ(collector_.spans("queue").at(0).end, At(2));
  const SpanRecord call = collector_.spans(kCall).at(0);
  EXPECT_EQ(*AttributeOf<std::string>(call, "error.type"), "RESOURCE_EXHAUSTED");
  EXPECT_EQ(AttributeOf<std::vector<std::string>>(call, "gen_ai.response.finish_reasons"), nullptr);
}

TEST_F(SessionTraceTest, WithoutRecordingDraftersAreToldTheContext) {
  SessionTrace trace = Begin(/*sampled=*/false);
  trace.OnStarted(At(1));
  trace.OnRound(Round(2.0, 0.5), At(3));
  DraftRequest open = Open(1);
  trace.OnDraftRequest(
      []() -> std::string {
        ADD_FAILURE() << "nobody needs it";
        return "";
      },
      open, At(1));
  EXPECT_EQ(Traceparent(open), "00-00000000000000010000000000000002-0000000000000003-00");
  trace.OnFinished(absl::OkStatus(), {}, At(4));
  EXPECT_THAT(collector_.spans(), SizeIs(0));
  SessionTrace none;
  DraftRequest untraced = Open(1);
  none.OnDraftRequest(Endpoint, untraced, At(1));
  EXPECT_EQ(Traceparent(untraced), "");
}

}  // namespace
}  // namespace tandem
