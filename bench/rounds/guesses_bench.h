#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/token.h"
#include "common/engine/engine.h"
#include "common/speculation/sampling_parameters.h"
#include "nlohmann/json.hpp"

namespace CLI {
class App;
}  // namespace CLI

namespace tandem::bench {

// The options of `tandem-bench guesses`.
struct GuessesOptions {
  std::string target;
  std::vector<std::string> drafters;  // NAME=FOLDER, of draft models.
  std::vector<std::string> prompts;   // NAME=FILE, as of `tandem-bench serve`.
  uint32_t num_prompts = 0;           // Of each file, the first ones; 0: all.
  uint32_t max_prompt_tokens = 512;
  uint32_t max_tokens = 96;
  std::vector<float> temperatures = {0.0f};
  uint64_t seed = 1;                  // Of every request.
  std::string weight_dtype = "int8";  // Of drafters.
  int threads = 1;
  std::string json;
};

// A drafter's guesses at one position: their probabilities, best first, and the number of the right one, from
// 1; 0 for none.
struct GuessedPosition {
  uint32_t right = 0;
  std::vector<float> probabilities;
};
inline constexpr size_t kMostGuessed = 8;

// The target's output for a prompt, in full length: end-of-text tokens do not end it.
absl::StatusOr<TokenIds> GenerateAlone(Engine* engine, const TokenIds& prompt,
                                       const SamplingParameters& sampling, uint32_t max_tokens);

// The drafter's guesses at each position of the output, with the request's own noise, as in DraftCore.
absl::StatusOr<std::vector<GuessedPosition>> GuessAlong(Engine* drafter, const TokenIds& prompt,
                                                        const TokenIds& output,
                                                        const SamplingParameters& sampling);

// Everything, in the form that tandem-plan reads (docs/operate/planning.md).
absl::StatusOr<nlohmann::json> RecordGuesses(const GuessesOptions& options);

void AddGuessesOptions(CLI::App* app, GuessesOptions* options);
// Records, writes and prints a summary. Returns the process's exit code.
int RunGuesses(const GuessesOptions& options);

}  // namespace tandem::bench
