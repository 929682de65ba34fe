#include "verifier/rpc/metrics.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Four nodes of the drafter and one of the verifier, two of the drafter's accepted.
RoundReport DraftedRound() {
  RoundReport report{.kind = RoundKind::kHit,
                     .depth = 3,
                     .nodes = 5,
                     .accepted = 2,
                     .committed = 3,
                     .drafters = {.drafter = "drafter"},
                     .supply = DraftSupply::kDrafted,
                     .round_seconds = 0.25,
                     .plain_seconds = 0.5};
  report.shares[static_cast<size_t>(DraftOrigin::kDrafter)] = {
      .depth = 3, .nodes = 4, .accepted = 2, .declined = 7, .wait_seconds = 0.5};
  report.shares[static_cast<size_t>(DraftOrigin::kLocal)] = {
      .depth = 1, .nodes = 1, .declined = 2, .wait_seconds = 0.125};
  report.accepted_by = {DraftOrigin::kDrafter, DraftOrigin::kDrafter};
  return report;
}

TEST(VerifierMetricsTest, TellsWhoGuessed) {
  MetricsRegistry registry;
  VerifierMetrics metrics(&registry, "target");
  const RoundReport report = DraftedRound();
  metrics.RecordRound(report);
  metrics.SpeculationOf("acme", report.drafters).RecordRound(report);
  // Without a drafter.
  RoundReport local{.kind = RoundKind::kHit, .depth = 2, .nodes = 2, .accepted = 1, .committed = 2};
  local.shares[static_cast<size_t>(DraftOrigin::kLocal)] = {.depth = 2, .nodes = 2, .accepted = 1};
  local.accepted_by = {DraftOrigin::kLocal};
  metrics.RecordRound(local);
  metrics.SpeculationOf("acme", local.drafters).RecordRound(local);
  metrics.RecordRound({.committed = 1});
  const std::string text = registry.Expose();
  const std::string drafter = R"({drafter="drafter",source="drafter",target="target",tenant="acme"} )";
  const std::string beside = R"({drafter="drafter",source="local",target="target",tenant="acme"} )";
  const std::string alone = R"({drafter="",source="local",target="target",tenant="acme"} )";
  for (const std::string& line : {
           absl::StrCat("tandem_spec_decode_num_drafts_total", drafter, "1\n"),
           absl::StrCat("tandem_spec_decode_num_draft_tokens_total", drafter, "4\n"),
           absl::StrCat("tandem_spec_decode_num_accepted_tokens_total", drafter, "2\n"),
           absl::StrCat("tandem_spec_decode_num_draft_tokens_total", beside, "1\n"),
           absl::StrCat("tandem_spec_decode_num_accepted_tokens_total", beside, "0\n"),
           absl::StrCat("tandem_spec_decode_num_draft_tokens_total", alone, "2\n"),
           absl::StrCat("tandem_spec_decode_num_accepted_tokens_total", alone, "1\n"),
           std::string("tandem_verifier_rounds_total{outcome=\"hit\",source=\"several\"} 1\n"),
           std::string("tandem_verifier_rounds_total{outcome=\"hit\",source=\"local\"} 1\n"),
           std::string("tandem_verifier_rounds_total{outcome=\"undrafted\",source=\"none\"} 1\n"),
           std::string("tandem_verifier_declined_nodes_total{source=\"drafter\"} 7\n"),
           std::string("tandem_verifier_declined_nodes_total{source=\"local\"} 2\n"),
           std::string("tandem_verifier_exposed_draft_seconds_total{source=\"drafter\"} 0.5\n"),
           std::string("tandem_verifier_exposed_draft_seconds_total{source=\"local\"} 0.125\n"),
       }) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text, Not(HasSubstr(R"({drafter="",source="drafter")")));
}

TEST(VerifierMetricsTest, TellsWhatSpeculationGains) {
  MetricsRegistry registry;
  VerifierMetrics metrics(&registry, "target");
  metrics.RecordStep({.rows = 4});
  metrics.RecordStep({.rows = 1, .plain = true});
  metrics.RecordSpeedup(
      {.drafter = "eagle3", .load = 4, .speedup = 1.5, .low = 1.25, .high = 1.75, .blocks = 3});
  metrics.RecordSpeedup({.load = 1, .speedup = 1.0, .low = 0.5, .high = 2.0, .blocks = 3});
  const std::string text = registry.Expose();
  for (const char* line : {
           "tandem_speculation_speedup{drafter=\"eagle3\",requests=\"4\"} 1.5\n",
           "tandem_speculation_speedup_low{drafter=\"eagle3\",requests=\"4\"} 1.25\n",
           "tandem_speculation_speedup_high{drafter=\"eagle3\",requests=\"4\"} 1.75\n",
           "tandem_speculation_speedup{drafter=\"none\",requests=\"1\"} 1\n",
           "tandem_speculation_control_steps_total 1\n",
           "tandem_speculation_control_blocks_total{drafter=\"eagle3\",requests=\"4\"} 1\n",
       }) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(VerifierMetricsTest, TellsWhatHeadsAreSent) {
  MetricsRegistry registry;
  VerifierMetrics metrics(&registry, "target");
  const VerifierMetrics::DraftSeries series = metrics.DraftingOf("acme", "head");
  series.RecordFeatures(1000);
  series.RecordFeatures(24);
  metrics.DraftingOf("acme", "").RecordFeatures(7);
  metrics.SetWaitingFeatures(512);
  const std::string text = registry.Expose();
  EXPECT_THAT(text, HasSubstr("tandem_feature_bytes_total{drafter=\"head\",tenant=\"acme\"} 1024\n"));
  EXPECT_THAT(text, Not(HasSubstr("tandem_feature_bytes_total{drafter=\"\"")));
  EXPECT_THAT(text, HasSubstr("tandem_features_waiting_bytes 512\n"));
}

TEST(VerifierMetricsTest, TellsVllmsNamesOnlyWhenAsked) {
  MetricsRegistry own;
  VerifierMetrics(&own, "target").RecordRound(DraftedRound());
  EXPECT_THAT(own.Expose(), Not(HasSubstr("vllm:")));

  MetricsRegistry registry;
  VerifierMetrics metrics(&registry, "target", /*vllm_names=*/true);
  metrics.RecordRound(DraftedRound());
  metrics.RecordRound({.committed = 1});  // Undrafted.
  metrics.SetLoad(/*running=*/4, /*waiting=*/2, /*kv_tokens_used=*/250, /*kv_tokens_total=*/1000);
  const std::string text = registry.Expose();
  const std::string labels = "{engine=\"0\",model_name=\"target\"";
  EXPECT_THAT(text, HasSubstr(absl::StrCat("vllm:spec_decode_num_drafts_total", labels, "} 1\n")));
  EXPECT_THAT(text, HasSubstr(absl::StrCat("vllm:spec_decode_num_draft_tokens_total", labels, "} 5\n")));
  EXPECT_THAT(text, HasSubstr(absl::StrCat("vllm:spec_decode_num_accepted_tokens_total", labels, "} 2\n")));
  for (const char* position : {"0\"} 1\n", "1\"} 1\n", "2\"} 0\n"}) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat("vllm:spec_decode_num_accepted_tokens_per_pos_total", labels,
                                             ",position=\"", position)));
  }
  EXPECT_THAT(text, HasSubstr(absl::StrCat("vllm:num_requests_running", labels, "} 4\n")));
  EXPECT_THAT(text, HasSubstr(absl::StrCat("vllm:num_requests_waiting", labels, "} 2\n")));
  EXPECT_THAT(text, HasSubstr(absl::StrCat("vllm:kv_cache_usage_perc", labels, "} 0.25\n")));
}

TEST(VerifierMetricsTest, TellsOfRequestsUnderVllmsNames) {
  MetricsRegistry registry;
  VerifierMetrics metrics(&registry, "target", /*vllm_names=*/true);
  const auto at = [](double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); };
  // Waits a second, computes its prompt for two, then commits 3, 2 and 1 tokens.
  RequestTimes times{.arrived = at(10.0)};
  metrics.RecordStarted(/*prompt_tokens=*/40, &times, at(11.0));
  metrics.RecordStep({.rows = 40, .prefill_rows = 40});
  for (const auto& [committed, seconds] : {std::pair(3u, 13.0), std::pair(2u, 14.0), std::pair(1u, 18.0)}) {
    metrics.RecordRound({.committed = committed});
    metrics.RecordTokens(&times, at(seconds));
    metrics.RecordStep({.rows = 4, .preemptions = committed == 2 ? 1u : 0u});
  }
  SessionSummary summary{
      .prompt_tokens = 40, .cached_prompt_tokens = 16, .output_tokens = 6, .preemptions = 1};
  metrics.RecordFinished(absl::OkStatus(), summary, times, /*max_tokens=*/6, at(18.5));
  summary.end.reason = OutputEnd::Reason::kStopString;
  metrics.RecordFinished(absl::OkStatus(), summary, times, 100, at(18.5));
  // Three that never began.
  metrics.RecordFinished(absl::ResourceExhaustedError("the queue is full"), {}, {.arrived = at(1.0)}, 5,
                         at(1.0));
  metrics.RecordFinished(absl::CancelledError(), {}, {.arrived = at(1.0)}, 5, at(5.0));
  metrics.RecordFinished(absl::InternalError("engine"), {}, {.arrived = at(1.0)}, 5, at(5.0));
  metrics.SetLoad(0, 3, 0, /*kv_tokens_total=*/1600);
  const std::string text = registry.Expose();
  const std::string labels = "{engine=\"0\",model_name=\"target\"";
  for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{
           {"prompt_tokens_total", "40"},
           {"generation_tokens_total", "6"},
           {"num_preemptions_total", "1"},
           {"prefix_cache_queries_total", "80"},
           {"prefix_cache_hits_total", "32"},
           {"iteration_tokens_total_count", "4"},
           {"iteration_tokens_total_sum", "46"},
           {"time_to_first_token_seconds_sum", "3"},
           {"time_to_first_token_seconds_count", "1"},
           {"inter_token_latency_seconds_sum", "5"},
           {"inter_token_latency_seconds_count", "2"},
           {"time_per_output_token_seconds_sum", "5"},
           {"request_time_per_output_token_seconds_sum", "2"},
           {"e2e_request_latency_seconds_sum", "25"},
           {"e2e_request_latency_seconds_count", "5"},
           {"request_queue_time_seconds_sum", "10"},
           {"request_prefill_time_seconds_sum", "4"},
           {"request_decode_time_seconds_sum", "10"},
           {"request_inference_time_seconds_sum", "14"},
           {"request_prompt_tokens_sum", "80"},
           {"request_generation_tokens_sum", "12"},
           {"request_max_num_generation_tokens_sum", "12"},
           {"request_params_max_tokens_sum", "121"},
           {"request_params_n_sum", "5"},
           {"request_params_n_count", "5"},
           {"prompt_tokens_cached_total", "32"},
           {"request_prefill_kv_computed_tokens_sum", "48"},
           {"request_prefill_kv_computed_tokens_count", "2"},
           {"request_num_preemptions_sum", "2"},
           {"request_num_preemptions_count", "5"},
       }) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat("vllm:", name, labels, "} ", value, "\n")));
  }
  for (const auto& [reason, count] :
       std::vector<std::pair<std::string, int>>{{"length", 1}, {"stop", 1}, {"abort", 1}, {"error", 2}}) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat("vllm:request_success_total{engine=\"0\",finished_reason=\"",
                                             reason, "\",model_name=\"target\"} ", count, "\n")));
  }
  for (const auto& [name, label, value] : std::vector<std::tuple<std::string, std::string, int>>{
           {"prompt_tokens_by_source_total", "source=\"local_compute\"", 48},
           {"prompt_tokens_by_source_total", "source=\"local_cache_hit\"", 32},
           {"prompt_tokens_by_source_total", "source=\"external_kv_transfer\"", 0},
           {"num_requests_waiting_by_reason", "reason=\"capacity\"", 3},
           {"num_requests_waiting_by_reason", "reason=\"deferred\"", 0}}) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat("vllm:", name, labels, ",", label, "} ", value, "\n")));
  }
  EXPECT_THAT(text, HasSubstr("vllm:admission_rejections_total{model_name=\"target\",reason=\""
                              "max_num_queued_reqs\"} 1\n"));
  EXPECT_THAT(text,
              HasSubstr("vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"100\"} 1\n"));
}

TEST(VerifierMetricsTest, PoolMovesHaveTheirReasons) {
  MetricsRegistry registry;
  VerifierMetrics metrics(&registry, "target");
  metrics.RecordPoolMove(DrafterPools::MoveReason::kJoined);
  metrics.RecordPoolMove(DrafterPools::MoveReason::kJoined);
  metrics.RecordPoolMove(DrafterPools::MoveReason::kLeft);
  const std::string text = registry.Expose();
  for (const char* moves : {"left\"} 1\n", "joined\"} 2\n", "balanced\"} 0\n"}) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat("tandem_verifier_drafter_pool_moves_total{reason=\"", moves)));
  }
}

TEST(VerifierMetricsTest, ARequestIsDraftedFromATenthOfItsRounds) {
  MetricsRegistry registry;
  VerifierMetrics metrics(&registry, "target");
  const VerifierMetrics::DraftSeries series = metrics.DraftingOf("acme", "small");
  // Drafted, unwanted, opening, late, lost.
  series.RecordRequest({1, 0, 2, 7, 0});
  series.RecordRequest({1, 0, 2, 18, 0});
  series.RecordRequest({0, 0, 0, 0, 3});
  series.RecordRequest({0, 0, 0, 0, 0});  // No round at all.
  const std::string text = registry.Expose();
  for (const char* supply :
       {"drafted\",tenant=\"acme\"} 1\n", "unwanted\",tenant=\"acme\"} 0\n", "opening\",tenant=\"acme\"} 0\n",
        "late\",tenant=\"acme\"} 1\n", "lost\",tenant=\"acme\"} 1\n"}) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat(
                          "tandem_verifier_drafter_requests_total{drafter=\"small\",supply=\"", supply)));
  }
}

// What routers, and so tenants, can make a scrape cost.
TEST(VerifierMetricsTest, TenantsBeyondTheBoundShareTheirSeries) {
  MetricsRegistry registry;
  VerifierMetrics metrics(&registry, "target");
  constexpr int kNames = 3 * kMaxLabelValues;
  for (int i = 0; i < kNames; ++i) {
    const std::string tenant = absl::StrCat("tenant-", i);
    metrics.SpeculationOf(tenant, {.drafter = "drafter"}).RecordRound(DraftedRound());
    metrics.DraftingOf(tenant, "drafter").RecordRound(DraftedRound());
  }
  const std::string text = registry.Expose();
  EXPECT_THAT(text, Not(HasSubstr(absl::StrCat("tenant-", kMaxLabelValues, "\""))));
  EXPECT_THAT(
      text,
      HasSubstr(absl::StrCat(
          "tandem_spec_decode_num_drafts_total{drafter=\"drafter\",source=\"drafter\",target=\"target\","
          "tenant=\"other\"} ",
          kNames - kMaxLabelValues)));
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 40000);
}

}  // namespace
}  // namespace tandem
