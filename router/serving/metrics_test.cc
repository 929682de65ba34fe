#include "router/serving/metrics.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;

const absl::Time kArrival = absl::FromUnixSeconds(1000);

v1::GenerationFinished Finished() {
  v1::GenerationFinished finished;
  v1::SpeculationStats& stats = *finished.mutable_speculation();
  stats.set_rounds(6);
  stats.set_drafted_rounds(4);
  stats.set_draft_tokens(13);
  stats.set_accepted_tokens(6);
  // One round accepted 3, one 2, one 1, one none.
  for (uint32_t rounds : {3, 2, 1}) stats.add_accepted_per_position(rounds);
  v1::SourceStats& drafter = *stats.add_by_source();
  drafter.set_source(v1::DRAFT_SOURCE_DRAFTER);
  drafter.set_drafter("code");
  drafter.set_drafted_rounds(4);
  drafter.set_draft_tokens(10);
  drafter.set_accepted_tokens(5);
  for (uint32_t rounds : {3, 1, 1}) drafter.add_accepted_per_position(rounds);
  v1::SourceStats& local = *stats.add_by_source();
  local.set_source(v1::DRAFT_SOURCE_LOCAL);
  local.set_drafter("code");
  local.set_drafted_rounds(2);
  local.set_draft_tokens(3);
  local.set_accepted_tokens(1);
  for (uint32_t rounds : {0, 1}) local.add_accepted_per_position(rounds);
  return finished;
}

RouterMetrics::Request Begin(RouterMetrics& metrics) {
  RouterMetrics::Request request(metrics, kArrival);
  request.SetTenant("acme");
  request.SetModel("big");
  request.OnAdmitted(/*queued=*/false);
  request.OnPrepared("code", "tenant", 5);
  return request;
}

TEST(MetricsTest, CountsOneRequest) {
  MetricsRegistry registry;
  RouterMetrics metrics(&registry);
  RouterMetrics::Request request = Begin(metrics);
  EXPECT_EQ(metrics.waiting(), 1u);
  EXPECT_EQ(metrics.running(), 0u);
  request.OnStarted();
  EXPECT_EQ(metrics.waiting(), 0u);
  EXPECT_EQ(metrics.running(), 1u);
  request.OnTokens(1, kArrival + absl::Seconds(2));
  request.OnTokens(4, kArrival + absl::Seconds(4));
  request.OnTokens(5, kArrival + absl::Seconds(4));
  request.OnFinished(Finished());
  request.OnEnd(absl::StatusCode::kOk, kArrival + absl::Seconds(5));
  EXPECT_EQ(metrics.running(), 0u);

  const std::string text = registry.Expose();
  for (
      const char* line : {
          "tandem_router_requests_total{code=\"OK\",model=\"big\",tenant=\"acme\"} 1",
          "tandem_router_time_to_first_token_seconds_sum{model=\"big\",tenant=\"acme\"} 2",
          "tandem_router_inter_token_seconds_count{model=\"big\",tenant=\"acme\"} 9",
          "tandem_router_inter_token_seconds_sum{model=\"big\",tenant=\"acme\"} 2",
          "tandem_router_request_seconds_sum{model=\"big\",tenant=\"acme\"} 5",
          "tandem_router_prompt_tokens_total{model=\"big\",tenant=\"acme\"} 5",
          "tandem_router_output_tokens_total{model=\"big\",tenant=\"acme\"} 10",
          R"(tandem_spec_decode_num_drafts_total{drafter="code",source="drafter",target="big",tenant="acme"} 4)",
          R"(tandem_spec_decode_num_drafts_total{drafter="code",source="local",target="big",tenant="acme"} 2)",
          R"(num_draft_tokens_total{drafter="code",source="drafter",target="big",tenant="acme"} 10)",
          R"(num_draft_tokens_total{drafter="code",source="local",target="big",tenant="acme"} 3)",
          R"(num_accepted_tokens_total{drafter="code",source="drafter",target="big",tenant="acme"} 5)",
          R"(num_accepted_tokens_total{drafter="code",source="local",target="big",tenant="acme"} 1)",
          R"(position="0",source="drafter",target="big",tenant="acme"} 3)",
          R"(position="1",source="drafter",target="big",tenant="acme"} 1)",
          R"(position="1",source="local",target="big",tenant="acme"} 1)",
          R"(position="2",source="drafter",target="big",tenant="acme"} 1)",
      }) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(MetricsTest, EndBeforeStartedGivesTheGaugeBack) {
  MetricsRegistry registry;
  RouterMetrics metrics(&registry);
  RouterMetrics::Request request = Begin(metrics);
  request.OnEnd(absl::StatusCode::kUnavailable, kArrival + absl::Seconds(1));
  EXPECT_EQ(metrics.waiting(), 0u);
  EXPECT_EQ(metrics.running(), 0u);
}

TEST(MetricsTest, ImplausibleStatisticsAreNotCounted) {
  const auto counted = [](void (*change)(v1::SpeculationStats&)) {
    MetricsRegistry registry;
    RouterMetrics metrics(&registry);
    RouterMetrics::Request request = Begin(metrics);
    request.OnStarted();
    request.OnTokens(10, kArrival);
    v1::GenerationFinished finished = Finished();
    change(*finished.mutable_speculation());
    const bool plausible = request.OnFinished(finished);
    const bool exposed = registry.Expose().find("tandem_spec_decode_num_drafts_total{") != std::string::npos;
    EXPECT_EQ(plausible, exposed);
    return exposed;
  };
  EXPECT_TRUE(counted([](v1::SpeculationStats&) {}));
  EXPECT_FALSE(counted([](v1::SpeculationStats& s) { s.set_drafted_rounds(4000000000); }));
  // Sources that do not add up to the whole.
  EXPECT_FALSE(counted([](v1::SpeculationStats& s) { s.set_draft_tokens(12); }));
  EXPECT_FALSE(counted([](v1::SpeculationStats& s) { s.set_accepted_tokens(7); }));
  EXPECT_FALSE(counted([](v1::SpeculationStats& s) { s.mutable_by_source()->RemoveLast(); }));
  // Sources that contradict themselves.
  EXPECT_FALSE(
      counted([](v1::SpeculationStats& s) { s.mutable_by_source(0)->set_drafted_rounds(4000000000); }));
  EXPECT_FALSE(counted([](v1::SpeculationStats& s) { s.mutable_by_source(0)->set_drafted_rounds(0); }));
  EXPECT_FALSE(
      counted([](v1::SpeculationStats& s) { s.mutable_by_source(0)->set_accepted_per_position(0, 5); }));
  EXPECT_FALSE(
      counted([](v1::SpeculationStats& s) { s.mutable_by_source(0)->set_accepted_per_position(2, 2); }));
  EXPECT_FALSE(counted(
      [](v1::SpeculationStats& s) { s.mutable_by_source(0)->set_source(v1::DRAFT_SOURCE_UNSPECIFIED); }));
}

}  // namespace
}  // namespace tandem::router
