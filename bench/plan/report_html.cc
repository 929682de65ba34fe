#include "bench/plan/report_html.h"

#include <algorithm>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "bench/plan/plot.h"

namespace tandem::plan {
namespace {

using Json = nlohmann::json;

constexpr char kStyle[] =
    "body{font-family:sans-serif;max-width:100em;margin:2em auto;padding:0 1em;color:#222}"
    "div.table{overflow-x:auto}table{border-collapse:collapse;font-size:90%}"
    "td,th{padding:.3em .6em;border-bottom:1px solid #ddd;text-align:right}td{white-space:nowrap}"
    "td:first-child,th:first-child,td:last-child,th:last-child{text-align:left}"
    "td:first-child{min-width:13em;white-space:normal}td:last-child{min-width:20em;white-space:normal}"
    "tr.cheapest{background:#e8f4ea}"
    ".note{background:#fff6e0;padding:.6em 1em}svg{max-width:100%;height:auto;display:block;margin:1.5em 0}";

const std::vector<std::string>& Columns() {
  static const auto* const columns = new std::vector<std::string>{
      "layout",        "per hour",      "requests/s", "tokens/s", "per M tokens", "first token p50",
      "p95",           "token gap p50", "p95",        "e2e p95",  "in flight",    "verifiers busy",
      "drafters busy", "tokens/round",  "refused",    "verdict"};
  return *columns;
}

std::string DraftersBusy(const Result& result) {
  std::vector<std::string> parts;
  for (const auto& [name, share] : result.drafter_utilisation) {
    parts.push_back(absl::StrFormat("%.0f %%", 100.0 * share));
  }
  return parts.empty() ? "-" : absl::StrJoin(parts, ", ");
}

std::string VerdictOf(const Plan& plan, const CandidateOutcome& outcome) {
  std::vector<std::string> parts;
  if (outcome.result.saturated) parts.push_back(absl::StrCat("saturated: ", outcome.result.saturation));
  if (plan.target.has_value()) {
    parts.push_back(outcome.meets_target ? "meets the target" : absl::StrCat("misses: ", outcome.missed));
  }
  if (plan.find_saturation) {
    parts.push_back(
        outcome.saturation_load.has_value()
            ? absl::StrFormat("bears up to %.1f requests/s", outcome.saturation_requests_per_second)
            : "no saturation found");
  }
  return parts.empty() ? "-" : absl::StrJoin(parts, "; ");
}

std::vector<std::string> Cells(const Plan& plan, const CandidateOutcome& outcome) {
  const Result& r = outcome.result;
  if (!outcome.simulated) {
    std::vector<std::string> cells(Columns().size(), "-");
    cells[0] = outcome.candidate.label;
    cells[1] = absl::StrFormat("%.2f", outcome.candidate.layout.PricePerHour());
    cells.back() = "not simulated: a cheaper one meets the target";
    return cells;
  }
  return {outcome.candidate.label,
          absl::StrFormat("%.2f", r.price_per_hour),
          absl::StrFormat("%.2f", r.requests_per_second),
          absl::StrFormat("%.1f", r.tokens_per_second),
          absl::StrFormat("%.3f", r.cost_per_million_tokens),
          absl::StrFormat("%.1f ms", r.first_token.p50_ms),
          absl::StrFormat("%.1f ms", r.first_token.p95_ms),
          absl::StrFormat("%.1f ms", r.token_gap.p50_ms),
          absl::StrFormat("%.1f ms", r.token_gap.p95_ms),
          absl::StrFormat("%.0f ms", r.latency.p95_ms),
          absl::StrFormat("%.1f", r.mean_in_flight),
          absl::StrFormat("%.0f %%", 100.0 * r.verifier_utilisation),
          DraftersBusy(r),
          absl::StrFormat("%.2f", r.tokens_per_round),
          absl::StrCat(r.refused),
          VerdictOf(plan, outcome)};
}

std::string HtmlTable(const Plan& plan, const PlanOutcome& outcome) {
  std::string html = "<div class=\"table\"><table>\n<tr>";
  for (const std::string& column : Columns()) absl::StrAppend(&html, "<th>", XmlText(column), "</th>");
  absl::StrAppend(&html, "</tr>\n");
  for (size_t i = 0; i < outcome.candidates.size(); ++i) {
    absl::StrAppend(&html, outcome.cheapest == i ? "<tr class=\"cheapest\">" : "<tr>");
    for (const std::string& cell : Cells(plan, outcome.candidates[i])) {
      absl::StrAppend(&html, "<td>", XmlText(cell), "</td>");
    }
    absl::StrAppend(&html, "</tr>\n");
  }
  return html + "</table></div>\n";
}

Plot CostPlot(const PlanOutcome& outcome) {
  Plot plot{.title = "Cost and throughput of layouts",
            .x_label = "price per hour",
            .y_label = "tokens per second",
            .series = {}};
  for (const CandidateOutcome& one : outcome.candidates) {
    if (!one.simulated) continue;
    plot.series.push_back({.name = one.candidate.label,
                           .points = {{one.result.price_per_hour, one.result.tokens_per_second}},
                           .joined = false});
  }
  return plot;
}

// A plot of one figure by the load: a line for each layout that was simulated under several loads.
Plot LoadPlot(const PlanOutcome& outcome, const std::string& title, const std::string& y_label,
              double (*figure)(const Result&)) {
  Plot plot{.title = title, .x_label = "arriving requests per second", .y_label = y_label, .series = {}};
  std::map<std::string, size_t> lines;
  for (const CandidateOutcome& one : outcome.candidates) {
    if (!one.simulated) continue;
    const std::string label = one.candidate.label.substr(0, one.candidate.label.find(", load x"));
    const auto [line, is_new] = lines.try_emplace(label, plot.series.size());
    if (is_new) plot.series.push_back({.name = label, .points = {}});
    const double rate = static_cast<double>(one.result.arrived) / one.result.seconds;
    plot.series[line->second].points.emplace_back(rate, figure(one.result));
  }
  for (PlotSeries& series : plot.series) std::sort(series.points.begin(), series.points.end());
  return plot;
}

std::string TimelinePlots(const Result& result) {
  Plot rates{.title = "Tokens over time", .x_label = "seconds", .y_label = "tokens per second", .series = {}};
  Plot flight{.title = "Requests over time", .x_label = "seconds", .y_label = "requests", .series = {}};
  rates.series.push_back({.name = "tokens per second", .points = {}});
  flight.series = {{.name = "in flight", .points = {}}, {.name = "of these, waiting", .points = {}}};
  for (const TimelinePoint& point : result.timeline) {
    rates.series[0].points.emplace_back(point.at_seconds, point.tokens_per_second);
    flight.series[0].points.emplace_back(point.at_seconds, point.in_flight);
    flight.series[1].points.emplace_back(point.at_seconds, point.queued);
  }
  return rates.ToSvg() + flight.ToSvg();
}

std::string Answer(const Plan& plan, const PlanOutcome& outcome) {
  if (!plan.target.has_value()) return "";
  if (!outcome.cheapest.has_value()) return "No layout of the sweep meets the target.";
  const CandidateOutcome& best = outcome.candidates[*outcome.cheapest];
  return absl::StrFormat(
      "The cheapest layout that meets the target: %s, at %.2f per hour and %.3f per million tokens.",
      best.candidate.label, best.result.price_per_hour, best.result.cost_per_million_tokens);
}

}  // namespace

Json PlanJson(const Plan& plan, const PlanOutcome& outcome) {
  Json json = {{"tool", "tandem-plan"}, {"format", 1},         {"simulated", true},
               {"title", plan.title},   {"notes", plan.notes}, {"candidates", Json::array()},
               {"cheapest", nullptr}};
  for (const CandidateOutcome& one : outcome.candidates) {
    Json drafters = Json::object();
    for (const DrafterGroup& group : one.candidate.layout.drafters) drafters[group.name] = group.count;
    Json entry = {{"label", one.candidate.label},
                  {"verifiers", one.candidate.layout.verifiers.count},
                  {"drafters", std::move(drafters)},
                  {"window_policy", one.candidate.layout.window_policy},
                  {"drafting", one.candidate.layout.choice != DrafterChoice::kOff},
                  {"load", one.candidate.load},
                  {"price_per_hour", one.candidate.layout.PricePerHour()},
                  {"simulated", one.simulated}};
    if (one.simulated) entry["result"] = one.result.ToJson();
    if (plan.target.has_value() && one.simulated) {
      entry["meets_target"] = one.meets_target;
      entry["missed"] = one.missed;
    }
    if (one.saturation_load.has_value()) {
      entry["saturation"] = {{"load", *one.saturation_load},
                             {"requests_per_second", one.saturation_requests_per_second}};
    }
    json["candidates"].push_back(std::move(entry));
  }
  if (outcome.cheapest.has_value()) json["cheapest"] = *outcome.cheapest;
  return json;
}

std::string PlanHtml(const Plan& plan, const PlanOutcome& outcome) {
  const std::string title = plan.title.empty() ? "A plan" : plan.title;
  std::string html = absl::StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"/><title>", XmlText(title),
      "</title><style>", kStyle, "</style></head>\n<body>\n<h1>", XmlText(title), "</h1>\n",
      "<p class=\"note\">Simulated: the servers' own decisions in virtual time; times of passes and "
      "acceptance are inputs of the plan.</p>\n");
  for (const std::string& note : plan.notes) {
    absl::StrAppend(&html, "<p class=\"note\">", XmlText(note), "</p>\n");
  }
  absl::StrAppendFormat(&html, "<p>%g s of traffic, of which the first %g s are not counted.</p>\n",
                        plan.traffic.seconds, plan.traffic.warm_up_seconds);
  if (const std::string answer = Answer(plan, outcome); !answer.empty()) {
    absl::StrAppend(&html, "<p><b>", XmlText(answer), "</b></p>\n");
  }
  absl::StrAppend(&html, HtmlTable(plan, outcome));
  const auto simulated = std::count_if(outcome.candidates.begin(), outcome.candidates.end(),
                                       [](const CandidateOutcome& one) { return one.simulated; });
  if (simulated > 1) absl::StrAppend(&html, CostPlot(outcome).ToSvg());
  if (plan.sweep.load.size() > 1) {
    absl::StrAppend(&html,
                    LoadPlot(outcome, "Time to the first token, p95", "ms",
                             [](const Result& result) { return result.first_token.p95_ms; })
                        .ToSvg(),
                    LoadPlot(outcome, "Time between tokens, p95", "ms",
                             [](const Result& result) { return result.token_gap.p95_ms; })
                        .ToSvg(),
                    LoadPlot(outcome, "Throughput", "tokens per second", [](const Result& result) {
                      return result.tokens_per_second;
                    }).ToSvg());
  }
  const size_t shown = outcome.cheapest.value_or(0);
  if (shown < outcome.candidates.size() && outcome.candidates[shown].simulated) {
    absl::StrAppend(&html, "<h2>", XmlText(outcome.candidates[shown].candidate.label), "</h2>\n",
                    TimelinePlots(outcome.candidates[shown].result));
  }
  return html + "</body>\n</html>\n";
}

std::string PlanTable(const Plan& plan, const PlanOutcome& outcome) {
  std::string table = absl::StrCat("| ", absl::StrJoin(Columns(), " | "), " |\n|");
  for (size_t i = 0; i < Columns().size(); ++i) absl::StrAppend(&table, " --- |");
  absl::StrAppend(&table, "\n");
  for (const CandidateOutcome& one : outcome.candidates) {
    absl::StrAppend(&table, "| ", absl::StrJoin(Cells(plan, one), " | "), " |\n");
  }
  if (const std::string answer = Answer(plan, outcome); !answer.empty()) {
    absl::StrAppend(&table, "\n", answer, "\n");
  }
  return table;
}

}  // namespace tandem::plan
