#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bench/serve/schedule.h"
#include "common/config/secret.h"
#include "common/rpc/tls_files.h"

namespace CLI {
class App;
}  // namespace CLI

namespace tandem::bench {

// The options of `tandem-bench serve`.
struct ServeOptions {
  std::string endpoint = "127.0.0.1:7001";
  Secret token;
  TlsFiles tls;                      // For the router and for `servers`.
  double timeout_seconds = 300.0;    // Of one request.
  std::vector<std::string> servers;  // NAME=ENDPOINT, asked what they are.

  std::vector<std::string> prompt_files;  // NAME=FILE.
  uint32_t num_prompts = 0;               // Of each file, the first ones; 0: all.
  uint32_t max_prompt_tokens = 0;         // 0: not cut.
  std::string tokenizer;                  // Folder; needed to cut.
  std::vector<std::string> chat;          // Names of prompt files whose prompts are messages.

  uint32_t max_tokens = 96;
  bool ignore_eos = false;
  std::vector<double> temperatures = {0.0};
  std::vector<uint64_t> seeds = {1};

  Matrix matrix;
  std::string baseline;  // Label; empty: "off" if there is one, else the first configuration.

  std::vector<uint32_t> concurrency;
  std::vector<double> rates;
  uint64_t arrival_seed = 1;
  uint32_t batch = 0;  // Prompts in a turn; 0: as many as the largest concurrency.
  uint32_t repetitions = 3;
  uint32_t warm_up = 2;  // Requests of each configuration that are not counted.
  bool trace_rounds = false;

  std::string json;
  bool quiet = false;
};

// Declares the options on the subcommand; `options` outlives it.
void AddServeOptions(CLI::App* app, ServeOptions* options);

// The checks that the parser of flags cannot make. InvalidArgument names the flag.
absl::Status CheckServeOptions(const ServeOptions& options);

// The loads that the options name; one request at a time if they name none.
std::vector<Load> LoadsOf(const ServeOptions& options);

}  // namespace tandem::bench
