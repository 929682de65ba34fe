#include "common/metrics/metrics.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <limits>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/metrics/calibration_metrics.h"
#include "common/metrics/spec_decode_metrics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A connection to a port of this machine; below 0 when there is none.
int ConnectTo(int port) {
  const int connection = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0)
    return connection;
  close(connection);
  return -1;
}

// The response to a plain HTTP GET from this machine.
std::string HttpGet(int port, const std::string& path) {
  const int connection = ConnectTo(port);
  std::string response;
  if (connection >= 0) {
    const std::string request = absl::StrCat("GET ", path, " HTTP/1.0\r\n\r\n");
    EXPECT_EQ(write(connection, request.data(), request.size()), static_cast<ssize_t>(request.size()));
    char buffer[4096];
    for (ssize_t size; (size = read(connection, buffer, sizeof(buffer))) > 0;) response.append(buffer, size);
  }
  close(connection);
  return response;
}

TEST(MetricsTest, PartsOfARegistryHaveALabelMore) {
  MetricsRegistry whole;
  whole.AddGauge({.name = "tandem_test_whole", .help = "Of all."}).With({}).Set(1.0);
  for (const char* model : {"a", "b"}) {
    MetricsRegistry part(&whole, "model", model, {"target"});
    part.AddCounter({.name = "tandem_test_rounds_total", .help = "Rounds.", .labels = {"tenant"}})
        .With({"acme"})
        .Increment(2.0);
    part.AddCounter({.name = "tandem_test_drafts_total", .help = "Drafts.", .labels = {"target"}})
        .With({model})
        .Increment(3.0);
    part.AddHistogram({.name = "tandem_test_step_seconds", .help = "Steps."}, {1.0}).With({}).Observe(0.5);
    EXPECT_EQ(part.Expose(), whole.Expose());
  }
  // What a part counted stays, and goes on in the next of its kind.
  MetricsRegistry again(&whole, "model", "a", {"target"});
  again.AddCounter({.name = "tandem_test_rounds_total", .help = "Rounds.", .labels = {"tenant"}})
      .With({"acme"})
      .Increment();
  const std::string text = whole.Expose();
  for (const char* line :
       {"tandem_test_whole 1\n", "tandem_test_rounds_total{model=\"a\",tenant=\"acme\"} 3\n",
        "tandem_test_rounds_total{model=\"b\",tenant=\"acme\"} 2\n",
        "tandem_test_drafts_total{target=\"a\"} 3\n", "tandem_test_drafts_total{target=\"b\"} 3\n",
        "tandem_test_step_seconds_count{model=\"a\"} 1\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  // One family each.
  const std::string type = "# TYPE tandem_test_rounds_total counter";
  EXPECT_EQ(text.find(type), text.rfind(type));
}

TEST(MetricsTest, ExposesEveryKindWithHelpAndLabels) {
  MetricsRegistry registry;
  CounterFamily& requests = registry.AddCounter(
      {.name = "tandem_test_requests_total", .help = "Requests taken.", .labels = {"tenant", "code"}});
  requests.With({"a\"b", "OK"}).Increment();
  requests.With({"a\"b", "OK"}).Increment(2.0);
  registry.AddGauge({.name = "tandem_test_waiting", .help = "Requests waiting."}).With({}).Set(4.5);
  registry.AddHistogram({.name = "tandem_test_seconds", .help = "Time taken."}, LatencyBuckets())
      .With({})
      .Observe(0.03);
  registry.AddGaugeCallback({.name = "tandem_test_now", .help = "Read at the scrape."}, [] { return 42.0; });
  const std::string text = registry.Expose();
  EXPECT_THAT(text, HasSubstr("# HELP tandem_test_requests_total Requests taken."));
  EXPECT_THAT(text, HasSubstr("# TYPE tandem_test_requests_total counter"));
  EXPECT_THAT(text, HasSubstr("tandem_test_requests_total{code=\"OK\",tenant=\"a\\\"b\"} 3"));
  EXPECT_THAT(text, HasSubstr("tandem_test_waiting 4.5"));
  EXPECT_THAT(text, HasSubstr("tandem_test_seconds_bucket{le=\"0.02\"} 0"));
  EXPECT_THAT(text, HasSubstr("tandem_test_seconds_bucket{le=\"0.05\"} 1"));
  EXPECT_THAT(text, HasSubstr("tandem_test_seconds_count 1"));
  EXPECT_THAT(text, HasSubstr("tandem_test_now 42"));
}

TEST(MetricsTest, LabelValuesAreBoundedPerKey) {
  MetricsRegistry registry;
  CounterFamily& family =
      registry.AddCounter({.name = "tandem_test_total", .help = "Test.", .labels = {"tenant", "kind"}});
  for (size_t i = 0; i < kMaxLabelValues; ++i) family.With({absl::StrCat("t", i), "x"}).Increment();
  for (int i = 0; i < 5; ++i) family.With({absl::StrCat("late", i), "x"}).Increment();
  // Known values stay themselves, and the other key has its own bound.
  family.With({"t998", "y"}).Increment();
  EXPECT_EQ(family.With({"other", "x"}).value(), 5.0);
  EXPECT_EQ(family.With({"t998", "x"}).value(), 1.0);
  EXPECT_EQ(family.With({"t998", "y"}).value(), 1.0);
  EXPECT_EQ(family.With({"other", "y"}).value(), 0.0);
  EXPECT_THAT(registry.Expose(), Not(HasSubstr("late0")));
}

TEST(MetricsTest, SeriesAreBoundedPerFamily) {
  MetricsRegistry registry;
  CounterFamily& family =
      registry.AddCounter({.name = "tandem_test_total", .help = "Test.", .labels = {"a", "b"}});
  for (int a = 0; a < 200; ++a) {
    for (int b = 0; b < 200; ++b) family.With({absl::StrCat(a), absl::StrCat(b)}).Increment();
  }
  EXPECT_EQ(family.With({"other", "other"}).value(), 200.0 * 200.0 - kMaxSeries);
  EXPECT_EQ(family.With({"0", "0"}).value(), 1.0);
}

TEST(MetricsTest, ValuesThatAreNoGoodLabelsCountAsOther) {
  MetricsRegistry registry;
  CounterFamily& family =
      registry.AddCounter({.name = "tandem_test_total", .help = "Test.", .labels = {"tenant"}});
  family.With({"\xff"}).Increment();
  family.With({"\xe2\x82"}).Increment();
  family.With({"\xed\xa0\x80"}).Increment();
  family.With({"\xc0\xaf"}).Increment();
  family.With({std::string(129, 'x')}).Increment();
  EXPECT_EQ(family.With({"other"}).value(), 5.0);
  family.With({"\xe2\x82\xac \xf0\x9f\x98\x80"}).Increment();
  EXPECT_EQ(family.With({"other"}).value(), 5.0);
}

TEST(MetricsTest, ResolvesAndCountsFromManyThreads) {
  constexpr size_t kNames = 1500;
  MetricsRegistry registry;
  CounterFamily& family =
      registry.AddCounter({.name = "tandem_test_total", .help = "Test.", .labels = {"k"}});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (size_t i = 0; i < 2 * kNames; ++i) family.With({absl::StrCat(i % kNames)}).Increment();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(family.With({"other"}).value(), 4.0 * 2.0 * (kNames - kMaxLabelValues));
  const std::string text = registry.Expose();
  size_t series = 0;
  for (size_t at = 0; (at = text.find("tandem_test_total{", at)) != std::string::npos; ++at) ++series;
  EXPECT_EQ(series, kMaxLabelValues + 1);
}

TEST(MetricsTest, EmptyHandlesDropEverything) {
  Counter().Increment();
  Gauge().Set(1.0);
  Histogram().Observe(1.0);
  EXPECT_EQ(Counter().value(), 0.0);
}

TEST(MetricsTest, BucketsIncrease) {
  const std::vector<double> buckets = ExponentialBuckets(1.0, 2.0, 4);
  EXPECT_EQ(buckets, (std::vector<double>{1.0, 2.0, 4.0, 8.0}));
  const std::vector<double> latency = LatencyBuckets();
  EXPECT_TRUE(std::is_sorted(latency.begin(), latency.end()));
}

TEST(MetricsTest, ServesOverHttp) {
  MetricsRegistry registry;
  registry.AddProcessMetrics("1.2.3");
  auto server = MetricsServer::Start("127.0.0.1:0", &registry);
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string response = HttpGet((*server)->port(), "/metrics");
  EXPECT_THAT(response, HasSubstr("200 OK"));
  EXPECT_THAT(response, HasSubstr("tandem_build_info{version=\"1.2.3\"} 1"));
  EXPECT_THAT(response, HasSubstr("process_start_time_seconds"));
  const size_t resident = response.find("\nprocess_resident_memory_bytes ");
  ASSERT_NE(resident, std::string::npos);
  EXPECT_GT(std::stod(response.substr(resident + 31)), 1e5);
  const size_t open = response.find("\nprocess_open_fds ");
  const size_t most = response.find("\nprocess_max_fds ");
  ASSERT_NE(open, std::string::npos);
  ASSERT_NE(most, std::string::npos);
  EXPECT_GE(std::stod(response.substr(open + 18)), 4);
  EXPECT_GT(std::stod(response.substr(most + 17)), std::stod(response.substr(open + 18)));
}

TEST(MetricsTest, ConnectionsThatAskForNothingKeepNobodyOut) {
  MetricsRegistry registry;
  registry.AddProcessMetrics("1.2.3");
  const auto server = MetricsServer::Start("127.0.0.1:0", &registry);
  ASSERT_TRUE(server.ok()) << server.status();
  std::vector<int> idle;
  for (int i = 0; i < 6; ++i) idle.push_back(ConnectTo((*server)->port()));
  const auto began = std::chrono::steady_clock::now();
  EXPECT_THAT(HttpGet((*server)->port(), "/metrics"), HasSubstr("tandem_build_info"));
  // All are ahead of the scrape. With CivetWeb's defaults it would be the turn of the scrape after minutes.
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(60));
  for (const int connection : idle) close(connection);
}

TEST(MetricsTest, ABadAddressIsAnErrorThatNamesIt) {
  MetricsRegistry registry;
  for (const std::string address : {"127.0.0.1:99999", "nonsense:port", "192.0.2.1:9000"}) {
    const auto server = MetricsServer::Start(address, &registry);
    EXPECT_EQ(server.status().code(), absl::StatusCode::kUnavailable) << address;
    EXPECT_THAT(std::string(server.status().message()), HasSubstr(address));
  }
}

TEST(SpecDecodeMetricsTest, CountsRoundsByPosition) {
  MetricsRegistry registry;
  SpecDecodeMetrics metrics(&registry);
  const SpecDecodeMetrics::Series series = metrics.With("acme", "target", "code", SourceKind::kDrafter);
  series.Record(1, 5, {1, 1, 1});
  series.Record(1, 4, {});
  const std::vector<uint32_t> deep(18, 1);
  series.Record(1, 20, deep);
  // What the verifier guessed beside the same drafter; its token came after one of somebody else.
  metrics.With("acme", "target", "code", SourceKind::kLocal).Record(2, 6, {0, 1});
  const std::string text = registry.Expose();
  const auto labels = [](const std::string& source) {
    return absl::StrCat("{drafter=\"code\",source=\"", source, "\",target=\"target\",tenant=\"acme\"} ");
  };
  const auto at = [](const std::string& position, const std::string& source) {
    return absl::StrCat("tandem_spec_decode_num_accepted_tokens_per_pos_total{drafter=\"code\",position=\"",
                        position, "\",source=\"", source, "\",target=\"target\",tenant=\"acme\"} ");
  };
  for (const std::string& line : {
           absl::StrCat("tandem_spec_decode_num_drafts_total", labels("drafter"), "3\n"),
           absl::StrCat("tandem_spec_decode_num_draft_tokens_total", labels("drafter"), "29\n"),
           absl::StrCat("tandem_spec_decode_num_accepted_tokens_total", labels("drafter"), "21\n"),
           absl::StrCat(at("0", "drafter"), "2\n"),
           absl::StrCat(at("2", "drafter"), "2\n"),
           absl::StrCat(at("3", "drafter"), "1\n"),
           absl::StrCat(at("15", "drafter"), "1\n"),
           absl::StrCat(at("other", "drafter"), "2\n"),
           absl::StrCat("tandem_spec_decode_num_drafts_total", labels("local"), "2\n"),
           absl::StrCat("tandem_spec_decode_num_draft_tokens_total", labels("local"), "6\n"),
           absl::StrCat("tandem_spec_decode_num_accepted_tokens_total", labels("local"), "1\n"),
           absl::StrCat(at("1", "local"), "1\n"),
       }) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text, Not(HasSubstr(at("0", "local"))));
  EXPECT_THAT(text, Not(HasSubstr("position=\"16\"")));
}

TEST(CalibrationMetricsTest, CountsByTheRangeOfTheScore) {
  MetricsRegistry registry;
  CalibrationMetrics metrics(&registry);
  const CalibrationMetrics::Series series = metrics.With("target", "code");
  series.Record(0.3f, 0.5, true);  // Ranges hold their upper ends.
  series.Record(0.25f, 0.25, false);
  series.Record(1.0f, 0.75, true);
  series.Record(std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<double>::quiet_NaN(), false);
  series.Record(-1.0f, -1.0, false);
  series.Record(7.0f, 7.0, false);
  const std::string text = registry.Expose();
  const auto expect = [&](const std::string& what, const std::string& score, const std::string& value) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat("tandem_spec_decode_calibration_", what,
                                             "_total{drafter=\"code\",score=\"", score,
                                             "\",target=\"target\"} ", value, "\n")));
  };
  expect("nodes", "0.3", "2");
  expect("accepted_nodes", "0.3", "1");
  expect("expected_nodes", "0.3", "0.75");
  expect("nodes", "1.0", "2");
  expect("score_sum", "1.0", "2");
  expect("expected_nodes", "1.0", "1.75");
  expect("nodes", "0.1", "2");
  expect("score_sum", "0.1", "0");
  expect("nodes", "0.4", "0");
}

}  // namespace
}  // namespace tandem
