#include "bench/serve/request_record.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace tandem::bench {
namespace {

using nlohmann::json;

template <class Values>
std::vector<uint32_t> Counts(const Values& values) {
  return {values.begin(), values.end()};
}

std::string Name(std::string value, absl::string_view prefix) {
  return absl::AsciiStrToLower(absl::StripPrefix(value, prefix));
}

json RoundJson(const v1::RoundTrace& round) {
  json growth = json::array();
  for (const v1::GrowthTrace& message : round.growth()) {
    growth.push_back({{"received", message.received()},
                      {"nodes", message.nodes()},
                      {"step_seconds", message.step_seconds()}});
  }
  return {{"kind", Name(v1::RoundKind_Name(round.kind()), "ROUND_KIND_")},
          {"depth", round.depth()},
          {"nodes", round.nodes()},
          {"wait_seconds", round.wait_seconds()},
          {"verify_start", round.verify_start()},
          {"verify_seconds", round.verify_seconds()},
          {"growth", std::move(growth)}};
}

json SpeculationJson(const v1::SpeculationStats& stats) {
  return {{"drafter", stats.drafter()},
          {"rounds", stats.rounds()},
          {"drafted_rounds", stats.drafted_rounds()},
          {"hits", stats.hits()},
          {"misses", stats.misses()},
          {"draft_tokens", stats.draft_tokens()},
          {"accepted_tokens", stats.accepted_tokens()},
          {"accepted_per_position", Counts(stats.accepted_per_position())},
          {"window_histogram", Counts(stats.window_histogram())},
          {"drafter_lost", stats.drafter_lost()}};
}

}  // namespace

double RequestRecord::tokens_per_second() const {
  return total_seconds > 0.0 ? static_cast<double>(tokens.size()) / total_seconds : 0.0;
}

std::vector<double> RequestRecord::ChunkGaps() const {
  std::vector<double> gaps;
  for (size_t i = 1; i < chunks.size(); ++i) gaps.push_back(chunks[i].seconds - chunks[i - 1].seconds);
  return gaps;
}

std::vector<double> RequestRecord::TokenGaps() const {
  std::vector<double> gaps;
  for (size_t i = 1; i < chunks.size(); ++i) {
    const double gap = chunks[i].seconds - chunks[i - 1].seconds;
    gaps.insert(gaps.end(), chunks[i].tokens, gap / chunks[i].tokens);
  }
  return gaps;
}

json RequestRecord::ToJson() const {
  json result = {{"start", absl::ToDoubleSeconds(start - absl::UnixEpoch())},
                 {"total_seconds", total_seconds},
                 {"first_token_seconds", first_token_seconds()},
                 {"prompt_tokens", started.prompt_tokens()},
                 {"cached_prompt_tokens", finished.usage().cached_prompt_tokens()},
                 {"tokens", tokens},
                 {"finish_reason", Name(v1::FinishReason_Name(finished.reason()), "FINISH_REASON_")},
                 {"speculation", SpeculationJson(finished.speculation())}};
  json& times = result["chunks"] = json::array();
  for (const Chunk& chunk : chunks) times.push_back({chunk.seconds, chunk.tokens});
  if (!rounds.empty()) {
    json& traces = result["rounds"] = json::array();
    for (const v1::RoundTrace& round : rounds) traces.push_back(RoundJson(round));
  }
  if (!status.ok()) result["error"] = status.ToString();
  return result;
}

void RequestRecorder::Add(const v1::GenerateResponse& event, absl::Time now) {
  const double seconds = absl::ToDoubleSeconds(now - record_.start);
  if (event.has_started()) {
    record_.started = event.started();
  } else if (event.has_chunk()) {
    const v1::GenerationChunk& chunk = event.chunk();
    if (chunk.tokens().empty() || chunk.offset() != record_.tokens.size()) gap_ = true;
    if (chunk.tokens().empty()) return;
    record_.tokens.insert(record_.tokens.end(), chunk.tokens().begin(), chunk.tokens().end());
    record_.text += chunk.text();
    record_.chunks.push_back({.seconds = seconds, .tokens = static_cast<uint32_t>(chunk.tokens_size())});
    if (chunk.has_round()) record_.rounds.push_back(chunk.round());
  } else if (event.has_finished()) {
    record_.finished = event.finished();
    record_.text += event.finished().text();
    finished_ = true;
  }
}

RequestRecord RequestRecorder::End(const absl::Status& status, absl::Time now) {
  record_.total_seconds = absl::ToDoubleSeconds(now - record_.start);
  record_.status = status;
  if (status.ok() && !finished_) {
    record_.status = absl::DataLossError("the stream ended without `finished`");
  } else if (status.ok() && (gap_ || record_.tokens.empty())) {
    record_.status = absl::DataLossError("the chunks' offsets do not follow one another");
  }
  return std::move(record_);
}

}  // namespace tandem::bench
