#include "bench/serve/summary.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

namespace tandem::bench {
namespace {

template <class Values>
void AddCounts(std::vector<uint64_t>& sums, const Values& values) {
  sums.resize(std::max<size_t>(sums.size(), static_cast<size_t>(values.size())));
  for (int i = 0; i < values.size(); ++i) sums[static_cast<size_t>(i)] += values[i];
}

// What is collected until all turns have been seen.
struct Samples {
  double seconds = 0.0;
  std::vector<double> stream_rates;
  std::vector<double> first_token_seconds;
  std::vector<double> token_gaps;
  std::vector<double> chunk_gaps;
  std::vector<double> latencies;
};

void AddRequest(const RequestRecord& record, Summary& summary, Samples& samples) {
  ++summary.requests;
  if (!record.status.ok()) {
    if (summary.errors++ == 0) summary.first_error = record.status.ToString();
    return;
  }
  summary.tokens += record.tokens.size();
  samples.stream_rates.push_back(record.tokens_per_second());
  samples.first_token_seconds.push_back(record.first_token_seconds());
  samples.latencies.push_back(record.total_seconds);
  for (const double gap : record.TokenGaps()) samples.token_gaps.push_back(gap);
  for (const double gap : record.ChunkGaps()) samples.chunk_gaps.push_back(gap);
  const v1::SpeculationStats& stats = record.finished.speculation();
  summary.rounds += stats.rounds();
  summary.drafted_rounds += stats.drafted_rounds();
  summary.hits += stats.hits();
  summary.misses += stats.misses();
  summary.draft_tokens += stats.draft_tokens();
  summary.accepted_tokens += stats.accepted_tokens();
  for (const v1::SourceStats& source : stats.by_source()) {
    Summary::SourceTotals& totals = source.source() == v1::DRAFT_SOURCE_LOCAL        ? summary.by_local
                                    : source.source() == v1::DRAFT_SOURCE_GRAMMAR    ? summary.by_grammar
                                    : source.source() == v1::DRAFT_SOURCE_PREDICTION ? summary.by_prediction
                                                                                     : summary.by_drafter;
    totals.draft_tokens += source.draft_tokens();
    totals.accepted_tokens += source.accepted_tokens();
  }
  AddCounts(summary.accepted_per_position, stats.accepted_per_position());
  AddCounts(summary.window_histogram, stats.window_histogram());
  if (!stats.drafter_lost().empty()) ++summary.drafter_lost;
}

void Conclude(const Samples& samples, Summary& summary) {
  if (samples.seconds > 0.0)
    summary.tokens_per_second = static_cast<double>(summary.tokens) / samples.seconds;
  summary.stream_tokens_per_second = Median(samples.stream_rates);
  summary.first_token_seconds = SpreadOf(samples.first_token_seconds);
  summary.token_gap_p50 = Quantile(samples.token_gaps, 0.5);
  summary.token_gap_p90 = Quantile(samples.token_gaps, 0.9);
  summary.token_gap_p99 = Quantile(samples.token_gaps, 0.99);
  summary.chunk_gap_p99 = Quantile(samples.chunk_gaps, 0.99);
  summary.latency_p50 = Quantile(samples.latencies, 0.5);
  summary.latency_p90 = Quantile(samples.latencies, 0.9);
  summary.latency_p99 = Quantile(samples.latencies, 0.99);
  summary.speed_up = SpreadOf(summary.ratios);
}

// The speed of one turn, in a measure that a ratio can be taken of; nothing when a request failed.
std::optional<double> SpeedOf(const TurnResult& result, const Load& load) {
  uint64_t tokens = 0;
  double latency = 0.0;
  for (const RequestRecord& record : result.records) {
    if (!record.status.ok()) return std::nullopt;
    tokens += record.tokens.size();
    latency += record.total_seconds;
  }
  if (load.open()) {
    return latency > 0.0 ? std::optional(static_cast<double>(result.records.size()) / latency) : std::nullopt;
  }
  return result.seconds > 0.0 ? std::optional(static_cast<double>(tokens) / result.seconds) : std::nullopt;
}

// A cell of the schedule: the turns that are compared with one another.
std::tuple<uint32_t, uint32_t, uint32_t, uint32_t> CellOf(const Turn& turn) {
  return {turn.repetition, turn.batch, turn.sampling, turn.load};
}

}  // namespace

double Summary::acceptance_rate() const {
  return draft_tokens == 0 ? 0.0 : static_cast<double>(accepted_tokens) / static_cast<double>(draft_tokens);
}

double Summary::SourceTotals::acceptance_rate() const {
  return draft_tokens == 0 ? 0.0 : static_cast<double>(accepted_tokens) / static_cast<double>(draft_tokens);
}

double Summary::EarnedPerRound(const SourceTotals& source) const {
  return rounds == 0 ? 0.0 : static_cast<double>(source.accepted_tokens) / static_cast<double>(rounds);
}

double Summary::mean_acceptance_length() const {
  return drafted_rounds == 0
             ? 1.0
             : 1.0 + static_cast<double>(accepted_tokens) / static_cast<double>(drafted_rounds);
}

std::vector<Mismatch> FindMismatches(const Experiment& experiment) {
  struct Reference {
    const RequestRecord* record;
    uint32_t configuration;
  };
  std::map<std::pair<uint32_t, uint32_t>, Reference> references;
  std::set<std::tuple<uint32_t, uint32_t, uint32_t>> found;
  std::vector<Mismatch> mismatches;
  for (const TurnResult& result : experiment.results) {
    const Batch& batch = experiment.batches[result.turn.batch];
    for (size_t i = 0; i < result.records.size(); ++i) {
      const RequestRecord& record = result.records[i];
      if (!record.status.ok()) continue;
      const uint32_t prompt = batch.prompts[i];
      const auto [at, inserted] = references.try_emplace({prompt, result.turn.sampling},
                                                         Reference{&record, result.turn.configuration});
      const RequestRecord& reference = *at->second.record;
      if (inserted || (record.tokens == reference.tokens && record.text == reference.text)) continue;
      if (!found.insert({prompt, result.turn.sampling, result.turn.configuration}).second) continue;
      const auto differs = std::mismatch(record.tokens.begin(), record.tokens.end(), reference.tokens.begin(),
                                         reference.tokens.end());
      mismatches.push_back({.prompt = prompt,
                            .sampling = result.turn.sampling,
                            .configuration = result.turn.configuration,
                            .reference = at->second.configuration,
                            .position = static_cast<size_t>(differs.first - record.tokens.begin())});
    }
  }
  return mismatches;
}

std::vector<Summary> Summarize(const Experiment& experiment) {
  // By (dataset in order of batches, temperature, load, configuration).
  using Key = std::tuple<size_t, double, uint32_t, uint32_t>;
  std::map<std::string, size_t> datasets;
  std::map<Key, std::pair<Summary, Samples>> groups;
  std::map<std::tuple<uint32_t, uint32_t, uint32_t, uint32_t>, double> baselines;
  for (const Batch& batch : experiment.batches) datasets.try_emplace(batch.dataset, datasets.size());
  for (const TurnResult& result : experiment.results) {
    if (result.turn.configuration != experiment.baseline) continue;
    const std::optional<double> speed = SpeedOf(result, experiment.loads[result.turn.load]);
    if (speed.has_value()) baselines[CellOf(result.turn)] = *speed;
  }
  for (const TurnResult& result : experiment.results) {
    const Turn& turn = result.turn;
    const std::string& dataset = experiment.batches[turn.batch].dataset;
    const double temperature = experiment.samplings[turn.sampling].temperature;
    auto& [summary, samples] = groups[{datasets[dataset], temperature, turn.load, turn.configuration}];
    summary.dataset = dataset;
    summary.temperature = temperature;
    summary.load = turn.load;
    summary.configuration = turn.configuration;
    samples.seconds += result.seconds;
    for (const RequestRecord& record : result.records) AddRequest(record, summary, samples);
    const std::optional<double> speed = SpeedOf(result, experiment.loads[turn.load]);
    const auto baseline = baselines.find(CellOf(turn));
    if (speed.has_value() && baseline != baselines.end() && baseline->second > 0.0) {
      summary.ratios.push_back(*speed / baseline->second);
    }
  }
  std::vector<Summary> summaries;
  for (auto& [key, group] : groups) {
    Conclude(group.second, group.first);
    summaries.push_back(std::move(group.first));
  }
  return summaries;
}

}  // namespace tandem::bench
