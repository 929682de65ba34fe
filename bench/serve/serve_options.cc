#include "bench/serve/serve_options.h"

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem::bench {
namespace {

constexpr char kFooter[] = R"(Examples:
  tandem-bench serve --prompts code=humaneval.jsonl --drafter off,code-1m --policy analytic,fixed
  tandem-bench serve --prompts maths=gsm8k.jsonl --chat maths --drafter off,math-1m --concurrency 1,4,8 --json sweep.json
  tandem-bench serve --prompts chat=mt_bench.jsonl --drafter off,general-1m --rate 2 --batch 32

Configurations are the product of --model, --drafter, --policy and --max-window. They take turns with one batch of
prompts each, in rotating order; speed-ups are medians over these turns. Outputs must not depend on the
configuration: if one does, or if a request fails, the exit code is 1 and the affected prompts are listed.)";

void AddTraffic(CLI::App* app, ServeOptions* options) {
  app->add_option("--prompts", options->prompt_files,
                  "NAME=FILE with prompts (repeatable): entries in the format of HumanEval, GSM8K, MT-bench, "
                  "XSum, finance-alpaca or ShareGPT, one per line in *.jsonl or a list in *.json; other "
                  "files have one prompt per line")
      ->required()
      ->delimiter(',');
  app->add_option("--num-prompts", options->num_prompts, "Use the first N prompts of each file; 0: all")
      ->capture_default_str();
  app->add_option("--max-prompt-tokens", options->max_prompt_tokens,
                  "Cut prompts to their first N tokens (needs --tokenizer); 0: do not cut");
  app->add_option("--tokenizer", options->tokenizer, "Model folder whose tokenizer counts prompt tokens");
  app->add_option(
         "--chat", options->chat,
         "Names of prompt files whose prompts are sent as user messages, formatted by the chat template")
      ->delimiter(',');
  app->add_option("--max-tokens", options->max_tokens, "Most tokens to generate")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app->add_flag("--ignore-eos", options->ignore_eos, "Always generate --max-tokens");
  app->add_option("--temperature", options->temperatures, "Temperatures")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--seed", options->seeds, "Seeds, for temperatures above 0")
      ->delimiter(',')
      ->capture_default_str();
}

void AddSweep(CLI::App* app, ServeOptions* options) {
  app->add_option("--drafter", options->matrix.drafters,
                  "Names of drafters; off: plain decoding; local: only the verifier's local drafter")
      ->delimiter(',')
      ->required();
  app->add_option(
         "--policy", options->matrix.policies,
         "Window policies; a number sets the policy's longest window, as in fixed:4; default: the verifier's")
      ->delimiter(',');
  app->add_option("--max-window", options->matrix.max_windows, "Longest windows; default: the verifier's")
      ->delimiter(',');
  app->add_option(
         "--model", options->matrix.models,
         "Names under which verifiers with different settings, such as tree shapes, serve one target")
      ->delimiter(',');
  app->add_option("--baseline", options->baseline,
                  "Label of the configuration that speed-ups are relative to; default: off, else the first");
  app->add_option("--concurrency", options->concurrency, "Closed loop: N requests at a time (default 1)")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096));
  app->add_option("--rate", options->rates, "Open loop: requests per second, as a Poisson process")
      ->delimiter(',');
  app->add_option("--arrival-seed", options->arrival_seed, "Seed of the arrivals")->capture_default_str();
  app->add_option("--batch", options->batch, "Prompts per turn; default: the largest concurrency");
  app->add_option("--repetitions", options->repetitions, "Times that every configuration runs every prompt")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
  app->add_option("--warm-up", options->warm_up, "Warm-up requests of each configuration, which do not count")
      ->check(CLI::Range(0, 10'000))
      ->capture_default_str();
}

}  // namespace

void AddServeOptions(CLI::App* app, ServeOptions* options) {
  app->footer(kFooter);
  app->add_option("--endpoint", options->endpoint, "Address of the router")
      ->envname("TANDEM_ENDPOINT")
      ->capture_default_str();
  app->add_option_function<std::string>(
         "--token", [options](const std::string& token) { options->token = Secret(token); },
         "The tenant's token")
      ->envname("TANDEM_TOKEN");
  app->add_option("--tls-ca", options->tls.ca,
                  "PEM file of the certificate authorities of the servers; if given, connections use TLS")
      ->envname("TANDEM_TLS_CA");
  app->add_option("--tls-certificate", options->tls.certificate, "PEM file of the client's certificate")
      ->envname("TANDEM_TLS_CERTIFICATE");
  app->add_option("--tls-key", options->tls.key, "PEM file of that certificate's private key")
      ->envname("TANDEM_TLS_KEY");
  app->add_option("--timeout", options->timeout_seconds, "Most seconds for one request")
      ->check(CLI::Range(0.001, 86400.0))
      ->capture_default_str();
  app->add_option("--server", options->servers,
                  "NAME=ENDPOINT of a verifier or drafter to describe in the results (repeatable)")
      ->delimiter(',');
  AddTraffic(app, options);
  AddSweep(app, options);
  app->add_flag("--trace-rounds", options->trace_rounds, "Record every round; needs --json");
  app->add_option("--json", options->json, "Write everything to this file");
  app->add_flag("--quiet", options->quiet, "Print no progress");
}

absl::Status CheckServeOptions(const ServeOptions& options) {
  if (options.matrix.drafters.empty()) {
    return absl::InvalidArgumentError("--drafter: none, expected at least one, or off");
  }
  for (const std::string& policy : options.matrix.policies) {
    TANDEM_RETURN_IF_ERROR(ParsePolicyChoice(policy).status());
  }
  if (options.max_prompt_tokens > 0 && options.tokenizer.empty()) {
    return absl::InvalidArgumentError("--max-prompt-tokens: needs --tokenizer");
  }
  if (options.trace_rounds && options.json.empty()) {
    return absl::InvalidArgumentError("--trace-rounds: needs --json");
  }
  if (options.temperatures.empty() || options.seeds.empty()) {
    return absl::InvalidArgumentError("--temperature, --seed: expected at least one of each");
  }
  for (const double temperature : options.temperatures) {
    if (!(temperature >= 0.0 && temperature <= 100.0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--temperature: ", temperature, ", expected a number from 0 to 100"));
    }
  }
  for (const double rate : options.rates) {
    if (!(rate > 0.0 && rate <= 1e5)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--rate: ", rate, ", expected requests per second above 0 and at most 100000"));
    }
  }
  const std::vector<Configuration> configurations = MakeConfigurations(options.matrix);
  if (options.baseline.empty()) return absl::OkStatus();
  std::string known;
  for (const Configuration& configuration : configurations) {
    if (configuration.label == options.baseline) return absl::OkStatus();
    absl::StrAppend(&known, known.empty() ? "" : ", ", "\"", configuration.label, "\"");
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--baseline: \"", options.baseline, "\" is not a configuration, expected one of ", known));
}

std::vector<Load> LoadsOf(const ServeOptions& options) {
  std::vector<Load> loads;
  for (const uint32_t concurrency : options.concurrency) loads.push_back({.concurrency = concurrency});
  for (const double rate : options.rates) loads.push_back({.requests_per_second = rate});
  if (loads.empty()) loads.push_back({});
  return loads;
}

}  // namespace tandem::bench
