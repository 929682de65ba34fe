#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/token.h"

namespace tandem::bench {

// A prompt, and its result with each drafter.
struct ScoredPrompt {
  struct Score {
    double acceptance = 0.0;         // Share of the output's tokens that are the drafter's first guess.
    uint32_t output_tokens = 0;      // That this was measured on.
    std::vector<float> prompt_nats;  // -ln of the probability of each of the prompt's tokens but the first.

    // The logarithm of the drafter's perplexity.
    double NatsPerToken() const;
  };
  std::string dataset;
  TokenIds tokens;
  std::vector<Score> scores;  // As the drafters stand in the options.
};

struct AcceptanceDataOptions {
  std::string target;
  std::vector<std::string> drafters;
  std::vector<std::string> prompts;  // NAME=FILE
  std::vector<std::string> chat;     // Names of those whose prompts are messages of a user.
  uint32_t num_prompts = 60;         // Of each file, evenly spaced; 0: all.
  uint32_t max_prompt_tokens = 256;  // Of a longer one, its beginning.
  uint32_t max_tokens = 64;          // Of the outputs, at temperature 0.
  int threads = 1;
};

struct AcceptanceData {
  std::vector<std::string> drafters;  // Names.
  std::vector<ScoredPrompt> prompts;
  uint32_t vocab_size = 1;
};

// Generates from every prompt, tokenized as by a router, and asks each drafter for its Drafter.Score.
// InvalidArgument or FailedPrecondition names the flag, file or folder at fault.
absl::StatusOr<AcceptanceData> MeasureAcceptance(const AcceptanceDataOptions& options);

}  // namespace tandem::bench
