// What a scrape takes by the clock, of a verifier's and of a router's metrics after 100,000 tenants' names
// were tried on them: from the request over HTTP to the last byte of the answer, as text and compressed,
// which is what Prometheus asks for.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "benchmark/benchmark.h"
#include "common/metrics/metrics.h"
#include "router/serving/metrics.h"
#include "verifier/rpc/metrics.h"

namespace tandem {
namespace {

constexpr int kNames = 100'000;

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(1);
}

// A GET of /metrics on a connection of its own, head included.
std::string Scrape(int port, bool compressed) {
  const int connection = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    Fail("cannot connect to the metrics");
  }
  const std::string request =
      absl::StrCat("GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n",
                   compressed ? "Accept-Encoding: gzip\r\n" : "", "\r\n");
  if (send(connection, request.data(), request.size(), 0) != static_cast<ssize_t>(request.size())) {
    Fail("cannot ask for the metrics");
  }
  std::string answer;
  char part[1 << 16];
  ssize_t size = 0;
  while ((size = recv(connection, part, sizeof(part), 0)) > 0) answer.append(part, static_cast<size_t>(size));
  close(connection);
  if (size < 0 || !absl::StartsWith(answer, "HTTP/1.1 200")) Fail("no metrics: " + answer.substr(0, 80));
  return answer;
}

// Metrics that stay, and where they are served.
struct Served {
  MetricsRegistry registry;
  std::unique_ptr<VerifierMetrics> verifier;
  std::unique_ptr<router::RouterMetrics> router;
  std::unique_ptr<MetricsServer> server;
  int64_t lines = 0;

  void Serve() {
    auto started = MetricsServer::Start("127.0.0.1:0", &registry);
    if (!started.ok()) Fail(std::string(started.status().message()));
    server = *std::move(started);
    const std::string text = registry.Expose();
    lines = std::count(text.begin(), text.end(), '\n');
  }
};

const Served& VerifierServed() {
  static const Served* const served = [] {
    auto* made = new Served;
    made->verifier = std::make_unique<VerifierMetrics>(&made->registry, "target");
    for (int i = 0; i < kNames; ++i) {
      const std::string tenant = absl::StrCat("tenant-", i);
      RoundReport report{.kind = RoundKind::kHit,
                         .depth = 3,
                         .nodes = 5,
                         .accepted = 2,
                         .committed = 3,
                         .drafters = {.drafter = "drafter"}};
      report.shares[static_cast<size_t>(DraftOrigin::kDrafter)] = {.depth = 3, .nodes = 4, .accepted = 2};
      report.shares[static_cast<size_t>(DraftOrigin::kLocal)] = {.depth = 1, .nodes = 1};
      report.accepted_by = {DraftOrigin::kDrafter, DraftOrigin::kDrafter};
      made->verifier->SpeculationOf(tenant, report.drafters).RecordRound(report);
      made->verifier->DraftingOf(tenant, "drafter").RecordRound(report);
    }
    made->Serve();
    return made;
  }();
  return *served;
}

const Served& RouterServed() {
  static const Served* const served = [] {
    auto* made = new Served;
    made->router = std::make_unique<router::RouterMetrics>(&made->registry);
    for (int i = 0; i < kNames; ++i) {
      const absl::Time now = absl::Now();
      router::RouterMetrics::Request request(*made->router, now);
      request.SetTenant(absl::StrCat("tenant-", i));
      request.SetModel("target");
      request.OnAdmitted(/*queued=*/false);
      request.OnPlaced(now);
      request.OnPrepared("drafter", "pinned", /*prompt_tokens=*/100);
      request.OnStarted();
      request.OnTokens(1, now + absl::Milliseconds(20));
      request.OnTokens(4, now + absl::Milliseconds(40));
      v1::GenerationFinished finished;
      v1::SpeculationStats& rounds = *finished.mutable_speculation();
      rounds.set_drafter("drafter");
      rounds.set_rounds(3);
      rounds.set_drafted_rounds(1);
      rounds.set_draft_tokens(5);
      rounds.set_accepted_tokens(2);
      rounds.add_accepted_per_position(1);
      rounds.add_accepted_per_position(1);
      request.OnFinished(finished);
      request.OnEnd(absl::StatusCode::kOk, now + absl::Milliseconds(40));
    }
    made->Serve();
    return made;
  }();
  return *served;
}

void BM_Scrape(benchmark::State& state, const Served& (*served)()) {
  const Served& metrics = served();
  const bool compressed = state.range(0) != 0;
  size_t bytes = 0;
  double longest = 0.0;
  for ([[maybe_unused]] auto _ : state) {
    const absl::Time start = absl::Now();
    bytes = Scrape(metrics.server->port(), compressed).size();
    longest = std::max(longest, absl::ToDoubleMilliseconds(absl::Now() - start));
  }
  state.counters["bytes"] = static_cast<double>(bytes);
  state.counters["lines"] = static_cast<double>(metrics.lines);
  state.counters["longest_ms"] = longest;
}
BENCHMARK_CAPTURE(BM_Scrape, verifier, VerifierServed)
    ->ArgName("gzip")
    ->Arg(0)
    ->Arg(1)
    ->Iterations(50)
    ->UseRealTime()
    ->MeasureProcessCPUTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Scrape, router, RouterServed)
    ->ArgName("gzip")
    ->Arg(0)
    ->Arg(1)
    ->Iterations(50)
    ->UseRealTime()
    ->MeasureProcessCPUTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tandem

BENCHMARK_MAIN();
