#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "bench/serve/report.h"
#include "common/config/version.h"

namespace tandem::bench {
namespace {

using nlohmann::json;

std::string ProcessorName() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    const size_t colon = line.find(": ");
    if (absl::StartsWith(line, "model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

json ServerJson(const ServerDescription& server) {
  json models = json::array();
  for (const v1::ModelInfo& model : server.info.models()) {
    models.push_back({{"name", model.name()},
                      {"parameters", model.parameters()},
                      {"weight_type", model.weight_type()},
                      {"context_length", model.context_length()}});
  }
  return {{"name", server.name},
          {"version", server.info.version()},
          {"device", server.info.device()},
          {"simulated_pace", server.info.simulated_pace()},
          {"window_policy", server.info.window_policy()},
          {"models", std::move(models)}};
}

json SettingsJson(const ServeOptions& options) {
  return {{"endpoint", options.endpoint},
          {"prompts", options.prompt_files},
          {"num_prompts", options.num_prompts},
          {"max_prompt_tokens", options.max_prompt_tokens},
          {"chat", options.chat},
          {"max_tokens", options.max_tokens},
          {"ignore_eos", options.ignore_eos},
          {"arrival_seed", options.arrival_seed},
          {"repetitions", options.repetitions},
          {"warm_up", options.warm_up},
          {"timeout_seconds", options.timeout_seconds}};
}

json ConfigurationJson(const Configuration& configuration) {
  return {{"label", configuration.label},
          {"model", configuration.model},
          {"drafter", configuration.drafter},
          {"policy", configuration.policy},
          {"max_window", configuration.max_window}};
}

json SpreadJson(const Spread& spread) {
  return {{"count", spread.count},
          {"median", spread.median},
          {"first_quartile", spread.low},
          {"third_quartile", spread.high}};
}

json SummaryJson(const Experiment& experiment, const Summary& summary) {
  return {{"dataset", summary.dataset},
          {"temperature", summary.temperature},
          {"load", experiment.loads[summary.load].Label()},
          {"configuration", experiment.configurations[summary.configuration].label},
          {"requests", summary.requests},
          {"errors", summary.errors},
          {"first_error", summary.first_error},
          {"tokens", summary.tokens},
          {"tokens_per_second", summary.tokens_per_second},
          {"stream_tokens_per_second", summary.stream_tokens_per_second},
          {"first_token_seconds", SpreadJson(summary.first_token_seconds)},
          {"token_gap_seconds",
           {{"p50", summary.token_gap_p50}, {"p90", summary.token_gap_p90}, {"p99", summary.token_gap_p99}}},
          {"chunk_gap_seconds_p99", summary.chunk_gap_p99},
          {"latency_seconds",
           {{"p50", summary.latency_p50}, {"p90", summary.latency_p90}, {"p99", summary.latency_p99}}},
          {"acceptance_rate", summary.acceptance_rate()},
          {"mean_acceptance_length", summary.mean_acceptance_length()},
          {"rounds", summary.rounds},
          {"drafted_rounds", summary.drafted_rounds},
          {"hits", summary.hits},
          {"misses", summary.misses},
          {"draft_tokens", summary.draft_tokens},
          {"accepted_tokens", summary.accepted_tokens},
          {"by_source",
           {{"drafter",
             {{"draft_tokens", summary.by_drafter.draft_tokens},
              {"accepted_tokens", summary.by_drafter.accepted_tokens},
              {"earned_per_round", summary.EarnedPerRound(summary.by_drafter)}}},
            {"local",
             {{"draft_tokens", summary.by_local.draft_tokens},
              {"accepted_tokens", summary.by_local.accepted_tokens},
              {"earned_per_round", summary.EarnedPerRound(summary.by_local)}}},
            {"grammar",
             {{"draft_tokens", summary.by_grammar.draft_tokens},
              {"accepted_tokens", summary.by_grammar.accepted_tokens},
              {"earned_per_round", summary.EarnedPerRound(summary.by_grammar)}}},
            {"prediction",
             {{"draft_tokens", summary.by_prediction.draft_tokens},
              {"accepted_tokens", summary.by_prediction.accepted_tokens},
              {"earned_per_round", summary.EarnedPerRound(summary.by_prediction)}}}}},
          {"accepted_per_position", summary.accepted_per_position},
          {"window_histogram", summary.window_histogram},
          {"drafter_lost", summary.drafter_lost},
          {"speed_up", SpreadJson(summary.speed_up)},
          {"speed_up_per_turn", summary.ratios}};
}

json RequestsJson(const Experiment& experiment) {
  json requests = json::array();
  for (const TurnResult& result : experiment.results) {
    const Turn& turn = result.turn;
    for (size_t i = 0; i < result.records.size(); ++i) {
      json request = result.records[i].ToJson();
      const uint32_t prompt = experiment.batches[turn.batch].prompts[i];
      request["configuration"] = experiment.configurations[turn.configuration].label;
      request["dataset"] = experiment.prompts[prompt].dataset;
      request["prompt"] = experiment.prompts[prompt].label;
      request["temperature"] = experiment.samplings[turn.sampling].temperature;
      request["seed"] = experiment.samplings[turn.sampling].seed;
      request["load"] = experiment.loads[turn.load].Label();
      request["repetition"] = turn.repetition;
      request["batch"] = turn.batch;
      requests.push_back(std::move(request));
    }
  }
  return requests;
}

}  // namespace

json DescribeMachine() {
  json machine = {{"processor", ProcessorName()},
                  {"cores", std::thread::hardware_concurrency()},
                  {"compiler", __VERSION__},
                  {"version", std::string(Version())}};
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) machine["client_cores"] = CPU_COUNT(&allowed);
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page_bytes = sysconf(_SC_PAGE_SIZE);
  if (pages > 0 && page_bytes > 0) {
    machine["memory_bytes"] = static_cast<uint64_t>(pages) * static_cast<uint64_t>(page_bytes);
  }
  utsname system{};
  if (uname(&system) == 0) {
    machine["system"] = absl::StrCat(system.sysname, " ", system.release, " ", system.machine);
  }
  return machine;
}

json ReportJson(const ServeOptions& options, const Experiment& experiment,
                const std::vector<Summary>& summaries, const std::vector<Mismatch>& mismatches,
                const std::vector<ServerDescription>& servers) {
  json report = {{"tool", "tandem-bench serve"},
                 {"format", 1},
                 {"ended_at", absl::FormatTime(absl::Now(), absl::UTCTimeZone())},
                 {"machine", DescribeMachine()},
                 {"settings", SettingsJson(options)},
                 {"simulated", IsSimulated(servers)},
                 {"baseline", experiment.configurations[experiment.baseline].label},
                 {"identical_outputs", mismatches.empty()},
                 {"mismatches", json::array()},
                 {"servers", json::array()},
                 {"configurations", json::array()},
                 {"summaries", json::array()}};
  for (const ServerDescription& server : servers) report["servers"].push_back(ServerJson(server));
  for (const Configuration& configuration : experiment.configurations) {
    report["configurations"].push_back(ConfigurationJson(configuration));
  }
  for (const Mismatch& mismatch : mismatches) {
    report["mismatches"].push_back(
        {{"dataset", experiment.prompts[mismatch.prompt].dataset},
         {"prompt", experiment.prompts[mismatch.prompt].label},
         {"temperature", experiment.samplings[mismatch.sampling].temperature},
         {"seed", experiment.samplings[mismatch.sampling].seed},
         {"configuration", experiment.configurations[mismatch.configuration].label},
         {"reference", experiment.configurations[mismatch.reference].label},
         {"position", mismatch.position}});
  }
  for (const Summary& summary : summaries) report["summaries"].push_back(SummaryJson(experiment, summary));
  report["requests"] = RequestsJson(experiment);
  return report;
}

}  // namespace tandem::bench
