#include "verifier/metrics.h"

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
           std::string("tandem_verifier_rounds_total{outcome=\"hit\",source=\"both\"} 1\n"),
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
