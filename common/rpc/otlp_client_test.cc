#include "common/rpc/otlp_client.h"

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/rpc/server.h"
#include "common/rpc/trace_metadata.h"
#include "common/rpc/tracing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

namespace collector = opentelemetry::proto::collector::trace::v1;
using ::testing::HasSubstr;

constexpr char kTraceparent[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

// Takes spans, rejects as many as it is told, or does not answer before the caller gives up.
class Receiver final : public collector::TraceService::CallbackService {
 public:
  Receiver() {
    server_ = ServerRunner::Start({.listen_address = "127.0.0.1:0"},
                                  {{collector::TraceService::service_full_name(), this}}, {})
                  .value();
  }
  const std::string& address() const { return server_->address(); }

  grpc::ServerUnaryReactor* Export(grpc::CallbackServerContext*,
                                   const collector::ExportTraceServiceRequest* request,
                                   collector::ExportTraceServiceResponse* response) override {
    class Call final : public grpc::ServerUnaryReactor {
     public:
      void OnCancel() override { Finish(grpc::Status::CANCELLED); }
      void OnDone() override { delete this; }
    };
    auto* const call = new Call();
    if (hangs) {
      if (!called.HasBeenNotified()) called.Notify();
      return call;
    }
    {
      absl::MutexLock lock(&mutex_);
      last_ = *request;
      if (rejects_ > 0) response->mutable_partial_success()->set_rejected_spans(rejects_);
    }
    call->Finish(grpc::Status::OK);
    return call;
  }

  collector::ExportTraceServiceRequest last() const {
    absl::MutexLock lock(&mutex_);
    return last_;
  }
  void set_rejects(int rejects) {
    absl::MutexLock lock(&mutex_);
    rejects_ = rejects;
  }

  std::atomic<bool> hangs = false;
  absl::Notification called;

 private:
  mutable absl::Mutex mutex_;
  int rejects_ ABSL_GUARDED_BY(mutex_) = 0;
  collector::ExportTraceServiceRequest last_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<ServerRunner> server_;
};

SpanRecord Record() {
  SpanRecord span{.context = ParseTraceContext(kTraceparent, "v=1"),
                  .parent_id = 0x0102030405060708,
                  .name = "call",
                  .kind = SpanKind::kClient,
                  .start = absl::FromUnixNanos(1'000'000'001),
                  .end = absl::FromUnixNanos(2'000'000'002),
                  .failed = true,
                  .attributes = {}};
  span.attributes = {{"flag", true},
                     {"number", int64_t{-7}},
                     {"share", 0.5},
                     {"text", std::string("words")},
                     {"list", std::vector<std::string>{"a", "b"}}};
  return span;
}

TEST(OtlpClientTest, SendsEveryField) {
  Receiver receiver;
  OtlpClient client(receiver.address(), {"tandem-test", "1.2", "i-1"}, nullptr);
  SpanRecord root = Record();
  root.parent_id = 0;
  root.failed = false;
  const absl::StatusOr<size_t> rejected = client.Send({Record(), root}, absl::Now() + absl::Seconds(60));
  ASSERT_TRUE(rejected.ok()) << rejected.status();
  EXPECT_EQ(*rejected, 0u);
  const collector::ExportTraceServiceRequest received = receiver.last();
  ASSERT_EQ(received.resource_spans_size(), 1);
  const auto& resource = received.resource_spans(0);
  std::map<std::string, std::string> process;
  for (const auto& attribute : resource.resource().attributes()) {
    process[attribute.key()] = attribute.value().string_value();
  }
  EXPECT_EQ(process["service.name"], "tandem-test");
  EXPECT_EQ(process["service.version"], "1.2");
  EXPECT_EQ(process["service.instance.id"], "i-1");
  ASSERT_EQ(resource.scope_spans(0).spans_size(), 2);
  const auto& span = resource.scope_spans(0).spans(0);
  EXPECT_EQ(span.trace_id(), "\x4b\xf9\x2f\x35\x77\xb3\x4d\xa6\xa3\xce\x92\x9d\x0e\x0e\x47\x36");
  EXPECT_EQ(span.span_id(), std::string("\x00\xf0\x67\xaa\x0b\xa9\x02\xb7", 8));
  EXPECT_EQ(span.parent_span_id(), "\x01\x02\x03\x04\x05\x06\x07\x08");
  EXPECT_EQ(span.trace_state(), "v=1");
  EXPECT_EQ(span.name(), "call");
  EXPECT_EQ(span.kind(), 3);
  EXPECT_EQ(span.start_time_unix_nano(), 1'000'000'001u);
  EXPECT_EQ(span.end_time_unix_nano(), 2'000'000'002u);
  EXPECT_EQ(span.status().code(), 2);
  EXPECT_TRUE(span.attributes(0).value().bool_value());
  EXPECT_EQ(span.attributes(1).value().int_value(), -7);
  EXPECT_EQ(span.attributes(2).value().double_value(), 0.5);
  EXPECT_EQ(span.attributes(3).value().string_value(), "words");
  EXPECT_EQ(span.attributes(4).value().array_value().values(1).string_value(), "b");
  EXPECT_EQ(resource.scope_spans(0).spans(1).parent_span_id(), "") << "a root has none, not one of zeros";
  EXPECT_FALSE(resource.scope_spans(0).spans(1).has_status());

  receiver.set_rejects(1);
  EXPECT_EQ(client.Send({Record()}, absl::Now() + absl::Seconds(60)).value(), 1u);
}

TEST(OtlpClientTest, ADeadlineEndsWhatNobodyAnswers) {
  OtlpClient nobody("unix:/nonexistent/receiver", {"tandem-test", "1.2", "i-1"}, nullptr);
  EXPECT_EQ(nobody.Send({Record()}, absl::Now() + absl::Milliseconds(20)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST(OtlpClientTest, CancelEndsWhatIsUnderWayAndAllThatFollows) {
  Receiver receiver;
  receiver.hangs = true;
  OtlpClient client(receiver.address(), {"tandem-test", "1.2", "i-1"}, nullptr);
  std::thread canceller([&] {
    receiver.called.WaitForNotification();
    client.Cancel();
  });
  const absl::Time far = absl::Now() + absl::Hours(1);
  EXPECT_EQ(client.Send({Record()}, far).status().code(), absl::StatusCode::kCancelled);
  canceller.join();
  EXPECT_EQ(client.Send({Record()}, far).status().code(), absl::StatusCode::kCancelled);
}

TEST(TraceMetadataTest, TakesOneParentAndAllStates) {
  EXPECT_FALSE(TraceContextOf({}).valid());
  EXPECT_FALSE(TraceContextOf({{"tracestate", "a=1"}}).valid());
  const TraceContext one =
      TraceContextOf({{"traceparent", kTraceparent}, {"tracestate", "a=1"}, {"tracestate", "b=2"}});
  EXPECT_EQ(FormatTraceparent(one), kTraceparent);
  EXPECT_EQ(one.state, "a=1,b=2");
  EXPECT_FALSE(TraceContextOf({{"traceparent", kTraceparent}, {"traceparent", kTraceparent}}).valid())
      << "there is no telling which was meant";
  const TraceContext broken = TraceContextOf({{"traceparent", "00-broken"}, {"tracestate", "a=1"}});
  EXPECT_FALSE(broken.valid());
  EXPECT_EQ(broken.state, "");
}

TEST(TracingTest, FlagsAreChecked) {
  EXPECT_TRUE(CheckTracingFlags({}).ok());
  for (const char* good : {"collector:4317", "127.0.0.1:1", "[::1]:65535"}) {
    EXPECT_TRUE(CheckTracingFlags({.endpoint = good}).ok()) << good;
  }
  for (const char* bad : {"collector", ":4317", "collector:", "collector:0", "collector:65536", "collector:x",
                          "http://collector:4317", "collector:4317/v1/traces"}) {
    const absl::Status status = CheckTracingFlags({.endpoint = bad});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--otlp-endpoint"));
  }
  const absl::Status alone = CheckTracingFlags({.tls = {.ca = "ca.pem"}});
  EXPECT_THAT(std::string(alone.message()), HasSubstr("expected with --otlp-endpoint"));
  const absl::Status missing = CheckTracingFlags({.endpoint = "c:1", .tls = {.ca = "/nonexistent/ca.pem"}});
  EXPECT_THAT(std::string(missing.message()), HasSubstr("otlp-tls-ca"));
}

TEST(TracingTest, CountsWhatTheReceiverTakes) {
  Receiver receiver;
  MetricsRegistry registry;
  {
    const auto tracing =
        Tracing::Start({.endpoint = receiver.address()}, "tandem-test", "1.2", &registry).value();
    tracing->tracer().StartServer("call", {}, absl::Now()).End(absl::Now());
  }
  EXPECT_EQ(receiver.last().resource_spans_size(), 1) << "what is left goes out at the end";
  EXPECT_THAT(registry.Expose(), HasSubstr("tandem_trace_spans_exported_total 1\n"));
  EXPECT_THAT(registry.Expose(), HasSubstr("tandem_trace_spans_dropped_total{reason=\"queue_full\"} 0"));

  MetricsRegistry other;
  const auto off = Tracing::Start({}, "tandem-test", "1.2", &other).value();
  EXPECT_FALSE(off->tracer().StartServer("call", {}, absl::Now()).recording());
  EXPECT_THAT(other.Expose(), HasSubstr("tandem_trace_spans_exported_total 0\n"));
}

}  // namespace
}  // namespace tandem
