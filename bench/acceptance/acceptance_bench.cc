#include "bench/acceptance/acceptance_bench.h"

#include <cstdio>
#include <iostream>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tandem::bench {

absl::Status CheckEnoughPrompts(const AcceptanceData& data, const PredictionErrorOptions& options) {
  if (data.prompts.size() >= 2 * size_t{options.folds}) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--prompts: ", data.prompts.size(),
                                                 " prompts, expected at least ", 2 * options.folds, " for ",
                                                 options.folds, " folds"));
}

std::string PredictionErrorTable(const std::vector<PredictionError>& errors) {
  std::string table =
      "| drafter | no features | trigrams | tokens' cost elsewhere | real perplexity |\n"
      "| --- | --- | --- | --- | --- |\n";
  for (const PredictionError& error : errors) {
    absl::StrAppend(&table, "| ", error.drafter, " |");
    for (const double value : error.root_mean_square) absl::StrAppendFormat(&table, " %.4f |", value);
    absl::StrAppend(&table, "\n");
  }
  return table;
}

void AddAcceptanceOptions(CLI::App* app, AcceptanceOptions* options) {
  AcceptanceDataOptions& data = options->data;
  app->add_option("--target", data.target, "Folder of the target model.")->required();
  app->add_option("--drafter", data.drafters, "Folders of draft models.")->delimiter(',')->required();
  app->add_option("--prompts", data.prompts, "NAME=FILE, as in `tandem-bench serve` (repeatable).")
      ->delimiter(',')
      ->required();
  app->add_option("--chat", data.chat, "Names of prompt files whose prompts are user messages.")
      ->delimiter(',');
  app->add_option("--num-prompts", data.num_prompts, "Prompts of each file, evenly spaced; 0: all.")
      ->capture_default_str();
  app->add_option("--max-prompt-tokens", data.max_prompt_tokens, "Cut longer prompts to this many tokens.")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app->add_option("--max-tokens", data.max_tokens, "Tokens per output.")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app->add_option("--threads", data.threads, "Threads of each engine.")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app->add_option("--dimension", options->error.dimension, "Features per prompt.")
      ->check(CLI::Range(3, 128))
      ->capture_default_str();
  app->add_option("--folds", options->error.folds, "Parts of the prompts; each is held out once.")
      ->check(CLI::Range(2, 100))
      ->capture_default_str();
  app->add_option("--repeats", options->error.repeats, "Times to divide the prompts again.")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app->add_option("--seed", options->error.seed, "Seed of the division.")->capture_default_str();
}

int RunAcceptance(const AcceptanceOptions& options) {
  const absl::StatusOr<AcceptanceData> data = MeasureAcceptance(options.data);
  absl::Status status = data.status();
  if (status.ok()) status = CheckEnoughPrompts(*data, options.error);
  if (!status.ok()) {
    std::fprintf(stderr, "tandem-bench: %s\n", status.ToString().c_str());
    return 1;
  }
  std::cout << data->prompts.size()
            << " prompts; root mean square of predicted minus realised acceptance, by what stands for "
               "perplexity:\n\n"
            << PredictionErrorTable(MeasurePredictionErrors(*data, options.error)) << std::flush;
  return 0;
}

}  // namespace tandem::bench
