#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/serve/prompts.h"
#include "bench/serve/request_record.h"
#include "bench/serve/schedule.h"
#include "bench/serve/statistics.h"

namespace tandem::bench {

// Prompts of one dataset that a configuration runs in one turn.
struct Batch {
  std::string dataset;
  std::vector<uint32_t> prompts;  // Indices.
};

// The results of one turn.
struct TurnResult {
  Turn turn;
  double seconds = 0.0;
  std::vector<RequestRecord> records;  // Of the batch's prompts.
};

// All data of a run. Turns refer to it by index.
struct Experiment {
  std::vector<Prompt> prompts;
  std::vector<Batch> batches;
  std::vector<Sampling> samplings;
  std::vector<Load> loads;
  std::vector<Configuration> configurations;
  uint32_t baseline = 0;  // Index of a configuration.
  std::vector<TurnResult> results;
};

// Two outputs that should be equal.
struct Mismatch {
  uint32_t prompt = 0;
  uint32_t sampling = 0;
  uint32_t configuration = 0;  // Whose output differs,
  uint32_t reference = 0;      // and from whose.
  size_t position = 0;         // The first token that differs.
};

// Compares every output with the first one of the same prompt and sampling, whatever the configuration, the
// load and the repetition. Requests that failed are left out. At most one entry for each (prompt, sampling,
// configuration).
std::vector<Mismatch> FindMismatches(const Experiment& experiment);

// One configuration's figures on one dataset, at one temperature and under one load.
struct Summary {
  std::string dataset;
  double temperature = 0.0;
  uint32_t load = 0;
  uint32_t configuration = 0;

  uint32_t requests = 0;
  uint32_t errors = 0;
  std::string first_error;
  uint64_t tokens = 0;
  double tokens_per_second = 0.0;         // All requests together: tokens by time, over all turns.
  double stream_tokens_per_second = 0.0;  // One request: median.
  Spread first_token_seconds;
  double token_gap_p50 = 0.0, token_gap_p90 = 0.0, token_gap_p99 = 0.0;
  double chunk_gap_p99 = 0.0;
  double latency_p50 = 0.0, latency_p90 = 0.0, latency_p99 = 0.0;

  uint64_t rounds = 0, drafted_rounds = 0, hits = 0, misses = 0;
  uint64_t draft_tokens = 0, accepted_tokens = 0;
  // Of these, what drafters guessed, and what verifiers guessed by themselves.
  struct SourceTotals {
    uint64_t draft_tokens = 0, accepted_tokens = 0;
    double acceptance_rate() const;  // accepted / drafted; 0 without drafts.
  };
  SourceTotals by_drafter, by_local, by_grammar, by_prediction;
  std::vector<uint64_t> accepted_per_position;
  std::vector<uint64_t> window_histogram;
  uint32_t drafter_lost = 0;

  // Against the baseline in the same cell of the schedule, one ratio for each cell; above 1 is faster. Closed
  // loop: of tokens per second. Open loop, where the rate of arrivals decides over throughput: of the
  // baseline's mean latency to this configuration's.
  std::vector<double> ratios;
  Spread speed_up;

  double acceptance_rate() const;         // accepted / drafted; 0 without drafts.
  double mean_acceptance_length() const;  // Tokens per drafted round; 1 without.
  // Accepted tokens per round, over all rounds: what the source earned beside the target's own token.
  double EarnedPerRound(const SourceTotals& source) const;
};

// In the order dataset, temperature, load, configuration. Ratios leave out cells in which a request of either
// side failed.
std::vector<Summary> Summarize(const Experiment& experiment);

}  // namespace tandem::bench
