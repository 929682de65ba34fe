#include "bench/plan/sweep.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

#include "bench/plan/plan_test_fixture.h"
#include "bench/plan/plot.h"
#include "bench/plan/report_html.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::plan {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// A short traffic that is too much for one verifier.
Plan SweptPlan() {
  Plan plan = DraftedPlan();
  plan.title = "A <sweep> & \"more\"";
  plan.traffic.seconds = 6.0;
  plan.traffic.warm_up_seconds = 1.0;
  plan.traffic.rates = {{0.0, 12.0}};
  plan.traffic.tenants[0].prompt = {.mean = 20.0};
  plan.traffic.tenants[0].output = {.mean = 40.0};
  plan.layout.verifiers.max_running = 4;
  plan.layout.verifiers.price_per_hour = 4.0;
  plan.layout.drafters[0].price_per_hour = 1.0;
  plan.layout.choice = DrafterChoice::kAuto;
  plan.layout.pinned.clear();
  plan.sweep = {.verifiers = {1, 2, 3}, .drafters = {{"small", {0, 1}}}, .policies = {"goodput", "off"}};
  plan.target = Target{.latency_p95_ms = 400.0};
  return plan;
}

std::string Labels(const std::vector<Candidate>& candidates) {
  std::string labels;
  for (const Candidate& candidate : candidates) labels += candidate.label + "\n";
  return labels;
}

TEST(SweepTest, TriesEveryCombinationOnce) {
  Plan plan = SweptPlan();
  plan.sweep.verifiers = {1, 2};
  EXPECT_EQ(Labels(CandidatesOf(plan)),
            "1 verifier, plain decoding\n1 verifier, 1 small, goodput\n"
            "2 verifiers, plain decoding\n2 verifiers, 1 small, goodput\n");
  plan.sweep = {.load = {1.0, 2.0}};
  EXPECT_EQ(Labels(CandidatesOf(plan)),
            "1 verifier, 1 small, goodput\n1 verifier, 1 small, goodput, load x 2\n");
  plan.sweep = {};
  EXPECT_THAT(CandidatesOf(plan), SizeIs(1));
}

TEST(SweepTest, TheAnswerDoesNotDependOnTheThreads) {
  Plan plan = SweptPlan();
  plan.sweep.verifiers = {1, 2};
  std::vector<double> seen;
  const auto alone = RunPlan(plan, {.on_progress = [&seen](double done) { seen.push_back(done); }});
  ASSERT_TRUE(alone.ok()) << alone.status();
  const auto together = RunPlan(plan, {.threads = 3});
  ASSERT_TRUE(together.ok()) << together.status();
  EXPECT_EQ(PlanJson(plan, *alone), PlanJson(plan, *together));
  ASSERT_FALSE(seen.empty());
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_THAT(seen.back(), DoubleNear(1.0, 1e-9));
}

TEST(SweepTest, FindsTheCheapestThatMeetsTheTarget) {
  const Plan plan = SweptPlan();
  const auto all = RunPlan(plan, {});
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_TRUE(all->cheapest.has_value());
  const CandidateOutcome& best = all->candidates[*all->cheapest];
  EXPECT_TRUE(best.meets_target);
  for (const CandidateOutcome& other : all->candidates) {
    if (!other.meets_target) continue;
    EXPECT_GE(other.result.price_per_hour, best.result.price_per_hour);
  }
  EXPECT_FALSE(all->candidates[0].meets_target) << "one verifier alone is too slow, or nothing was tried";
  EXPECT_THAT(all->candidates[0].missed, Not(IsEmpty()));
  double done = 0.0;
  const auto first =
      RunPlan(plan, {.until_met = true, .on_progress = [&done](double share) { done = share; }});
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(done, 1.0);
  ASSERT_TRUE(first->cheapest.has_value());
  EXPECT_EQ(first->candidates[*first->cheapest].candidate.label, best.candidate.label);
  EXPECT_FALSE(first->candidates.back().simulated);
}

TEST(SweepTest, SaysThatNothingCame) {
  Plan plan = SweptPlan();
  plan.traffic.rates = {{0.0, 0.0}};
  const auto outcome = RunPlan(plan, {});
  EXPECT_EQ(outcome.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(outcome.status().message()),
              HasSubstr("no request comes in the 5 measured seconds"));
}

TEST(SweepTest, NoLayoutMeetsWhatCannotBeMet) {
  Plan plan = SweptPlan();
  plan.sweep.verifiers = {3};
  plan.target = Target{.first_token_p95_ms = 5.0};
  const auto outcome = RunPlan(plan, {.until_met = true});
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_FALSE(outcome->cheapest.has_value());
  EXPECT_THAT(PlanTable(plan, *outcome), HasSubstr("No layout of the sweep meets the target."));
}

// Steps of 10 ms, 8 requests of 50 tokens: 16 requests per second.
TEST(SweepTest, FindsWhereItSaturates) {
  Plan plan = OneVerifierPlan();
  plan.traffic.seconds = 60.0;
  plan.traffic.warm_up_seconds = 10.0;
  plan.traffic.rates = {{0.0, 6.0}};
  plan.traffic.tenants[0].prompt = {.mean = 1.0};
  plan.traffic.tenants[0].output = {.mean = 50.0};
  plan.layout.verifiers.step = *StepTimes::OfPace("10");
  plan.layout.verifiers.max_running = 8;
  const auto load = FindSaturation(plan, plan.layout, 0.02);
  ASSERT_TRUE(load.ok()) << load.status();
  ASSERT_TRUE(load->has_value());
  EXPECT_THAT(**load * 6.0, DoubleNear(16.0, 1.3));
}

// Checks that tags are closed in order and attributes are quoted. Returns the error; empty: none.
std::string XmlFault(const std::string& text) {
  std::vector<std::string> open;
  for (size_t at = text.find('<'); at != std::string::npos; at = text.find('<', at + 1)) {
    const size_t end = text.find('>', at);
    if (end == std::string::npos) return "a tag without end";
    const std::string tag = text.substr(at + 1, end - at - 1);
    if (tag.find('<') != std::string::npos) return "a tag within " + tag;
    if (tag[0] == '!') continue;
    size_t name_end = tag[0] == '/' ? 1 : 0;
    while (name_end < tag.size() && std::isalnum(static_cast<unsigned char>(tag[name_end]))) ++name_end;
    if (tag[0] == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return "closed " + tag;
      open.pop_back();
      continue;
    }
    bool quoted = false;
    for (size_t i = name_end; i < tag.size(); ++i) {
      if (tag[i] == '"') quoted = !quoted;
      if (!quoted && tag[i] == '=' && (i + 1 == tag.size() || tag[i + 1] != '"')) return "unquoted in " + tag;
    }
    if (quoted) return "an open quote in " + tag;
    if (tag.back() != '/') open.push_back(tag.substr(0, name_end));
  }
  for (size_t at = text.find('&'); at != std::string::npos; at = text.find('&', at + 1)) {
    const std::string entity = text.substr(at, text.find(';', at) - at + 1);
    if (entity != "&amp;" && entity != "&lt;" && entity != "&gt;" && entity != "&quot;") return entity;
  }
  return open.empty() ? "" : "never closed: " + open.back();
}

TEST(ReportTest, TheCheckOfXmlFindsFaults) {
  EXPECT_EQ(XmlFault("<a b=\"c\"><d/></a>"), "");
  for (const char* const bad : {"<a>", "<a></b>", "<a b=c></a>", "<a b=\"c></a>", "<p>a & b</p>", "<p"}) {
    EXPECT_NE(XmlFault(bad), "") << bad;
  }
}

TEST(ReportTest, IsOneWellFormedFileThatNeedsNoOther) {
  Plan plan = SweptPlan();
  plan.notes = {"Inputs of 5 < 6 machines & none else."};
  plan.sweep.verifiers = {2};
  plan.sweep.load = {0.5, 1.0};
  const auto outcome = RunPlan(plan, {});
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  const std::string html = PlanHtml(plan, *outcome);
  EXPECT_EQ(XmlFault(html), "");
  EXPECT_THAT(html, HasSubstr("A &lt;sweep&gt; &amp; &quot;more&quot;"));
  EXPECT_THAT(html, HasSubstr("Inputs of 5 &lt; 6 machines &amp; none else."));
  EXPECT_THAT(html, HasSubstr("<polyline"));
  EXPECT_THAT(html, HasSubstr("<circle"));
  for (const char* const other : {"<script", "<link", "<img", "src=", "href="}) {
    EXPECT_THAT(html, Not(HasSubstr(other)));
  }
  const nlohmann::json json = PlanJson(plan, *outcome);
  EXPECT_EQ(json["simulated"], true);
  EXPECT_EQ(json["candidates"].size(), outcome->candidates.size());
  EXPECT_THAT(json["candidates"][1]["result"]["tokens_per_second"].get<double>(), Gt(0.0));
}

TEST(PlotTest, TicksAreRoundAndReachTheLargestValue) {
  EXPECT_THAT(TicksTo(10.0, 5), ElementsAre(0.0, 2.0, 4.0, 6.0, 8.0, 10.0));
  EXPECT_THAT(TicksTo(0.0, 5), ElementsAre(0.0, 1.0));
  EXPECT_THAT(TicksTo(137.0, 5).back(), DoubleNear(150.0, 1e-9));
  // The legend is beside the axes, which end at 640. Colours that repeat have other marks.
  Plot many{.title = "many", .x_label = "x", .y_label = "y", .series = {}};
  for (int i = 0; i < 30; ++i) {
    many.series.push_back({.name = "series " + std::to_string(i), .points = {{1.0, 2.0}, {2.0, i}}});
  }
  const std::string svg = many.ToSvg();
  EXPECT_EQ(XmlFault(svg), "");
  EXPECT_THAT(svg, HasSubstr("<text x=\"668.0\" y=\"38.0\" text-anchor=\"start\">series 0</text>"));
  EXPECT_THAT(svg, HasSubstr("series 17</text>"));
  EXPECT_THAT(svg, Not(HasSubstr("series 18</text>")));
  EXPECT_THAT(svg, HasSubstr("and 12 more</text>"));
  EXPECT_THAT(svg, HasSubstr("stroke=\"#0072b2\" stroke-width=\"1.6\" stroke-dasharray="));
  const Plot empty{.title = "none", .x_label = "x", .y_label = "y", .series = {{.name = "a", .points = {}}}};
  EXPECT_EQ(XmlFault(empty.ToSvg()), "");
}

}  // namespace
}  // namespace tandem::plan
