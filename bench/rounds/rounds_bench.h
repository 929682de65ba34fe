#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/token.h"

namespace CLI {
class App;
}  // namespace CLI

namespace tandem::bench {

// The options of `tandem-bench rounds`.
struct RoundsOptions {
  std::string target;
  std::vector<std::string> drafters;
  std::string prompts;  // JSON with cases[].prompt_ids, as in tests/golden.
  std::vector<uint32_t> nodes = {4, 8, 16, 32};
  std::vector<float> temperatures = {0.0f, 0.8f};
  uint32_t num_seeds = 4;  // Above temperature 0; seeds 1, 2, ...
  uint32_t max_tokens = 96;
  uint32_t branching = 4;
  uint32_t expand_width = 4;
  std::string feature_dtype = "bfloat16";  // Of what draft heads are fed with.
  std::string weight_dtype = "int8";       // Of drafters.
  bool text_drafting = false;              // Of drafters whose vocabulary is an entirely different one.
  int threads = 1;
};

// How the drafter guesses, and which guesses are verified.
enum class RoundsVariant {
  kUnseeded,    // Its own most likely tokens; above temperature 0 only.
  kSeeded,      // With the request's noise.
  kCalibrated,  // Besides, it grows twice as many nodes, of which the best by calibrated score are verified.
};

struct RoundsRow {
  std::string drafter;
  float temperature = 0.0f;
  RoundsVariant variant = RoundsVariant::kSeeded;
  std::vector<double> tokens_per_round;  // For each number of nodes.
};

// The token ids of every case. InvalidArgument names the file and the error.
absl::StatusOr<std::vector<TokenIds>> LoadPromptIds(const std::string& file);

// The number of tokens that a round of the textbook loop makes, over all prompts and seeds: output tokens /
// rounds. Internal if an output depends on the drafter, the variant or the number of nodes.
absl::StatusOr<std::vector<RoundsRow>> MeasureRounds(const RoundsOptions& options);
std::string RoundsTable(const RoundsOptions& options, const std::vector<RoundsRow>& rows);

void AddRoundsOptions(CLI::App* app, RoundsOptions* options);
// Measures and prints. Returns the process's exit code.
int RunRounds(const RoundsOptions& options);

}  // namespace tandem::bench
