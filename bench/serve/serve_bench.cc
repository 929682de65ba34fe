#include "bench/serve/serve_bench.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "bench/serve/report.h"
#include "common/base/status_macros.h"
#include "common/config/flags.h"
#include "common/rpc/channel.h"
#include "common/rpc/security.h"
#include "common/rpc/status.h"
#include "common/tokenizer/tokenizer.h"
#include "tandem/v1/admin.grpc.pb.h"

namespace tandem::bench {
namespace {

constexpr absl::Duration kInfoTimeout = absl::Seconds(10);

absl::StatusOr<std::vector<Prompt>> LoadAllPrompts(const ServeOptions& options) {
  std::shared_ptr<const Tokenizer> tokenizer;
  if (options.max_prompt_tokens > 0) {
    TANDEM_ASSIGN_OR_RETURN(tokenizer, Tokenizer::Load(options.tokenizer));
  }
  std::vector<Prompt> all;
  std::vector<std::string> unknown = options.chat;
  for (const std::string& file : options.prompt_files) {
    TANDEM_ASSIGN_OR_RETURN(std::vector<Prompt> prompts, LoadPrompts(file));
    if (options.num_prompts > 0 && prompts.size() > options.num_prompts) prompts.resize(options.num_prompts);
    const std::string& dataset = prompts.front().dataset;
    const bool chat = std::count(options.chat.begin(), options.chat.end(), dataset) > 0;
    unknown.erase(std::remove(unknown.begin(), unknown.end(), dataset), unknown.end());
    for (Prompt& prompt : prompts) {
      prompt.chat = prompt.chat || chat;
      if (tokenizer != nullptr) {
        TANDEM_ASSIGN_OR_RETURN(prompt.text, CutToTokens(*tokenizer, prompt.text, options.max_prompt_tokens));
      }
      all.push_back(std::move(prompt));
    }
  }
  if (!unknown.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--chat: \"", unknown.front(), "\", expected the name of one of --prompts"));
  }
  return all;
}

// Consecutive prompts of one dataset.
std::vector<Batch> MakeBatches(const std::vector<Prompt>& prompts, size_t size) {
  std::vector<Batch> batches;
  for (uint32_t i = 0; i < prompts.size(); ++i) {
    if (batches.empty() || batches.back().dataset != prompts[i].dataset ||
        batches.back().prompts.size() == size) {
      batches.push_back({.dataset = prompts[i].dataset});
    }
    batches.back().prompts.push_back(i);
  }
  return batches;
}

uint32_t FindBaseline(const ServeOptions& options, const std::vector<Configuration>& configurations) {
  const std::string wanted = options.baseline.empty() ? "off" : options.baseline;
  for (uint32_t i = 0; i < configurations.size(); ++i) {
    if (configurations[i].label == wanted) return i;
    if (options.baseline.empty() && configurations[i].drafter.empty()) return i;
  }
  return 0;
}

absl::StatusOr<ServerDescription> DescribeServer(
    const std::string& name_and_endpoint, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(name_and_endpoint, absl::MaxSplits('=', 1));
  if (parts.first.empty() || parts.second.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--server: \"", name_and_endpoint, "\", expected NAME=ENDPOINT"));
  }
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kInfoTimeout));
  ServerDescription server{.name = parts.first};
  const grpc::Status status =
      v1::Admin::NewStub(CreateChannel(parts.second, credentials, "", kClientConnectTimeout))
          ->GetServerInfo(&context, {}, &server.info);
  if (!status.ok()) {
    const absl::Status cause = FromGrpcStatus(status);
    return absl::Status(cause.code(), absl::StrCat("--server ", name_and_endpoint, ": ", cause.message()));
  }
  return server;
}

absl::Status WarmUp(const ServeOptions& options, GenerateBackend& backend, const Experiment& experiment) {
  for (const Configuration& configuration : experiment.configurations) {
    std::vector<v1::GenerateRequest> requests;
    for (uint32_t i = 0; i < options.warm_up; ++i) {
      const Prompt& prompt = experiment.prompts[i % experiment.prompts.size()];
      requests.push_back(MakeRequest(options, prompt, experiment.samplings.front(), configuration));
    }
    const LoadResult result = RunLoad(backend, requests, {.concurrency = 1}, {});
    for (const RequestRecord& record : result.records) {
      if (record.status.ok()) continue;
      return absl::Status(record.status.code(), absl::StrCat("warming up \"", configuration.label,
                                                             "\": ", record.status.message()));
    }
  }
  return absl::OkStatus();
}

// Indented, but each request on a line of its own: with a line for each of its tokens nobody could read the
// file.
absl::Status WriteReport(const std::string& path, nlohmann::json report) {
  constexpr auto kReplace = nlohmann::json::error_handler_t::replace;
  const nlohmann::json requests = std::move(report["requests"]);
  report.erase("requests");
  std::string text = report.dump(2, ' ', false, kReplace);
  text.erase(text.rfind('\n'));  // And the closing brace after it.
  absl::string_view separator = ",\n  \"requests\": [\n";
  for (const nlohmann::json& request : requests) {
    absl::StrAppend(&text, separator, request.dump(-1, ' ', false, kReplace));
    separator = ",\n";
  }
  text += "\n  ]\n}\n";
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  return file.good() ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("--json: cannot write ", path));
}

void ShowProgress(size_t turn, size_t turns) {
  const bool terminal = isatty(STDERR_FILENO) == 1;
  if (!terminal) return;
  std::fprintf(stderr, "\r\033[Kturn %zu of %zu", turn + 1, turns);
  if (turn + 1 == turns) std::fprintf(stderr, "\r\033[K");
  std::fflush(stderr);
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "tandem-bench: %s\n", status.ToString().c_str());
  return absl::IsInvalidArgument(status) ? kExitUsage : kExitFailure;
}

}  // namespace

absl::StatusOr<Experiment> PrepareExperiment(const ServeOptions& options) {
  TANDEM_RETURN_IF_ERROR(CheckServeOptions(options));
  Experiment experiment;
  TANDEM_ASSIGN_OR_RETURN(experiment.prompts, LoadAllPrompts(options));
  experiment.loads = LoadsOf(options);
  uint32_t batch = options.batch;
  if (batch == 0) {
    for (const Load& load : experiment.loads) batch = std::max(batch, load.concurrency);
  }
  experiment.batches = MakeBatches(experiment.prompts, batch);
  experiment.samplings = MakeSamplings(options.temperatures, options.seeds);
  experiment.configurations = MakeConfigurations(options.matrix);
  experiment.baseline = FindBaseline(options, experiment.configurations);
  return experiment;
}

v1::GenerateRequest MakeRequest(const ServeOptions& options, const Prompt& prompt, const Sampling& sampling,
                                const Configuration& configuration) {
  v1::GenerateRequest request;
  request.set_model(configuration.model);
  if (prompt.chat) {
    v1::ChatMessage& message = *request.mutable_chat()->add_messages();
    message.set_role("user");
    message.set_content(prompt.text);
  } else {
    request.set_text(prompt.text);
  }
  request.mutable_sampling()->set_temperature(static_cast<float>(sampling.temperature));
  request.mutable_sampling()->set_seed(sampling.seed);
  request.mutable_stopping()->set_max_tokens(options.max_tokens);
  request.mutable_stopping()->set_ignore_eos(options.ignore_eos);
  request.mutable_output()->set_round_trace(options.trace_rounds);
  v1::SpeculationOptions& speculation = *request.mutable_speculation();
  if (configuration.drafter.empty()) {
    speculation.set_mode(v1::SPECULATION_MODE_OFF);
    return request;
  }
  speculation.set_mode(v1::SPECULATION_MODE_ON);
  if (configuration.drafter != kLocalDrafts) speculation.set_drafter(configuration.drafter);
  speculation.set_window_policy(configuration.policy);
  speculation.set_max_window(configuration.max_window);
  return request;
}

absl::Status RunExperiment(const ServeOptions& options, GenerateBackend& backend, Experiment& experiment,
                           const std::function<void(size_t turn, size_t turns)>& progress) {
  TANDEM_RETURN_IF_ERROR(WarmUp(options, backend, experiment));
  const auto count = [](const auto& values) { return static_cast<uint32_t>(values.size()); };
  const std::vector<Turn> turns =
      MakeSchedule(options.repetitions, count(experiment.batches), count(experiment.samplings),
                   count(experiment.loads), count(experiment.configurations));
  for (size_t i = 0; i < turns.size(); ++i) {
    progress(i, turns.size());
    const Turn& turn = turns[i];
    const Load& load = experiment.loads[turn.load];
    std::vector<v1::GenerateRequest> requests;
    for (const uint32_t prompt : experiment.batches[turn.batch].prompts) {
      requests.push_back(MakeRequest(options, experiment.prompts[prompt], experiment.samplings[turn.sampling],
                                     experiment.configurations[turn.configuration]));
    }
    // The same arrivals for every configuration of the cell, others in the next.
    const uint64_t seed = options.arrival_seed + (uint64_t{turn.repetition} << 32) + turn.batch;
    std::vector<absl::Duration> arrivals;
    if (load.open()) arrivals = PoissonArrivals(load.requests_per_second, requests.size(), seed);
    LoadResult result = RunLoad(backend, requests, load, arrivals);
    experiment.results.push_back(
        {.turn = turn, .seconds = result.seconds, .records = std::move(result.records)});
  }
  return absl::OkStatus();
}

int RunServe(const ServeOptions& options) {
  absl::StatusOr<Experiment> experiment = PrepareExperiment(options);
  if (!experiment.ok()) return Fail(experiment.status());
  const absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> credentials =
      OpenClientSecurity(options.tls, absl::Now());
  if (!credentials.ok()) return Fail(credentials.status());
  std::vector<ServerDescription> servers;
  for (const std::string& server : options.servers) {
    absl::StatusOr<ServerDescription> description = DescribeServer(server, *credentials);
    if (!description.ok()) return Fail(description.status());
    servers.push_back(*std::move(description));
  }
  RouterBackend backend(options.endpoint, options.token, absl::Seconds(options.timeout_seconds),
                        *credentials);
  const absl::Status run = RunExperiment(options, backend, *experiment, [&](size_t turn, size_t turns) {
    if (!options.quiet) ShowProgress(turn, turns);
  });
  // Whatever a server says about a request is no misuse of this command's flags.
  if (!run.ok()) {
    Fail(run);
    return kExitFailure;
  }

  const std::vector<Summary> summaries = Summarize(*experiment);
  const std::vector<Mismatch> mismatches = FindMismatches(*experiment);
  if (!options.json.empty()) {
    const absl::Status written =
        WriteReport(options.json, ReportJson(options, *experiment, summaries, mismatches, servers));
    if (!written.ok()) return Fail(written);
  }
  if (!mismatches.empty()) {
    std::fprintf(stderr, "%standem-bench: the run is invalid: speculation must never change an output\n",
                 FormatMismatches(*experiment, mismatches).c_str());
    return kExitFailure;
  }
  std::printf("%s", FormatSummaries(*experiment, summaries, servers).c_str());
  const bool failed = std::any_of(summaries.begin(), summaries.end(),
                                  [](const Summary& summary) { return summary.errors > 0; });
  return failed ? kExitFailure : kExitOk;
}

}  // namespace tandem::bench
