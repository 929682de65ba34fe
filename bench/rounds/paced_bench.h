#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/rounds/paced_loop.h"

namespace CLI {
class App;
}  // namespace CLI

namespace tandem::bench {

// The options of `tandem-bench paced`.
struct PacedOptions {
  std::string target;
  std::vector<std::string> drafters;
  std::vector<std::string> prompts;  // NAME=FILE, as of `tandem-bench serve`.
  uint32_t num_prompts = 3;          // Of each file,
  uint32_t warm_up = 1;              // and before them so many that do not count, which teach the verifier.
  uint32_t max_prompt_tokens = 64;
  uint32_t max_tokens = 96;
  std::vector<float> temperatures = {0.0f};
  uint64_t seed = 1;  // Of the first request; the next ones count on.
  std::vector<uint32_t> concurrency = {1};
  std::vector<std::string> shapes = {"best-first"};
  std::vector<std::string> policies = {"goodput"};  // NAME, or NAME:DEPTH for the largest window.
  WindowLimits limits;
  uint32_t expand_width = 4;
  std::string local_drafter = "none";
  std::string target_pace = "12+0.4";
  std::string draft_pace = "1";
  double link_ms = 0.1;
  double shared = 0.0;  // See PacedLoop::Options.
  int threads = 1;
};

// One configuration over all prompts of one file.
struct PacedRow {
  std::string drafter;
  std::string dataset;
  std::string shape;
  std::string policy;
  float temperature = 0.0f;
  uint32_t concurrency = 1;
  PacedLoop::Report report;
  double speedup = 0.0;  // Over plain decoding.
};

// Internal if an output depends on how it was drafted.
absl::StatusOr<std::vector<PacedRow>> MeasurePaced(const PacedOptions& options);
std::string PacedTable(const std::vector<PacedRow>& rows);

void AddPacedOptions(CLI::App* app, PacedOptions* options);
// Measures and prints. Returns the process's exit code.
int RunPaced(const PacedOptions& options);

}  // namespace tandem::bench
