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

// What `tandem-bench guesses` is told.
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

// What a drafter guessed at one position: the probabilities of its guesses, best first, and which of them was
// right, from 1; 0 for none.
struct GuessedPosition {
  uint32_t right = 0;
  std::vector<float> probabilities;
};
inline constexpr size_t kMostGuessed = 8;

// The target's output for a prompt, to its last token: end-of-text tokens do not end it.
absl::StatusOr<TokenIds> GenerateAlone(Engine* engine, const TokenIds& prompt,
                                       const SamplingParameters& sampling, uint32_t max_tokens);

// What the drafter would have guessed at each position of the output, with the request's own noise, as
// DraftCore does.
absl::StatusOr<std::vector<GuessedPosition>> GuessAlong(Engine* drafter, const TokenIds& prompt,
                                                        const TokenIds& output,
                                                        const SamplingParameters& sampling);

// Everything, as tandem-plan reads it (docs/operate/planning.md).
absl::StatusOr<nlohmann::json> RecordGuesses(const GuessesOptions& options);

void AddGuessesOptions(CLI::App* app, GuessesOptions* options);
// Records, writes and prints a summary; the process's exit code.
int RunGuesses(const GuessesOptions& options);

}  // namespace tandem::bench
