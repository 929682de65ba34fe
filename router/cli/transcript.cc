#include "router/cli/transcript.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"

namespace tandem::cli {
namespace {

using nlohmann::json;

// "FINISH_REASON_STOP_TOKEN" as "stop_token".
std::string EnumName(std::string name, absl::string_view prefix) {
  const absl::string_view stripped = absl::StripPrefix(name, prefix);
  return absl::AsciiStrToLower(stripped);
}

std::string ReasonName(v1::FinishReason reason) {
  return EnumName(v1::FinishReason_Name(reason), "FINISH_REASON_");
}

std::string SourceName(v1::TokenSource source) {
  return EnumName(v1::TokenSource_Name(source), "TOKEN_SOURCE_");
}

// "" for the target's own tokens.
std::string DraftSourceName(v1::DraftSource source) {
  if (source == v1::DRAFT_SOURCE_UNSPECIFIED) return "";
  return EnumName(v1::DraftSource_Name(source), "DRAFT_SOURCE_");
}

json LogprobJson(uint32_t token, const v1::TokenDetail& detail) {
  json top = json::array();
  for (const v1::TokenLogprob& entry : detail.top_logprobs()) {
    top.push_back({{"token", entry.token()}, {"logprob", entry.logprob()}});
  }
  return {{"token", token}, {"logprob", detail.logprob()}, {"top", std::move(top)}};
}

// The prompt's first token has no log probability.
json PromptLogprobsJson(const v1::PromptChunk& prompt) {
  json list = json::array();
  for (int i = 0; i < prompt.tokens_size() && i < prompt.details_size(); ++i) {
    json entry = LogprobJson(prompt.tokens(i), prompt.details(i));
    if (prompt.offset() == 0 && i == 0) entry["logprob"] = nullptr;
    list.push_back(std::move(entry));
  }
  return list;
}

json UsageJson(const v1::Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens()},
          {"completion_tokens", usage.completion_tokens()},
          {"cached_prompt_tokens", usage.cached_prompt_tokens()}};
}

json SourceJson(const v1::SourceStats& stats) {
  return {{"source", DraftSourceName(stats.source())},
          {"drafter", stats.drafter()},
          {"drafted_rounds", stats.drafted_rounds()},
          {"draft_tokens", stats.draft_tokens()},
          {"accepted_tokens", stats.accepted_tokens()},
          {"accepted_per_position",
           std::vector<uint32_t>(stats.accepted_per_position().begin(), stats.accepted_per_position().end())},
          {"mean_acceptance_length", stats.mean_acceptance_length()},
          {"draft_acceptance_rate", stats.draft_acceptance_rate()},
          {"rejections", stats.rejections()},
          {"wait_seconds", stats.wait_seconds()}};
}

json SpeculationJson(const v1::SpeculationStats& stats) {
  json by_source = json::array();
  for (const v1::SourceStats& source : stats.by_source()) by_source.push_back(SourceJson(source));
  return {{"drafter", stats.drafter()},
          {"rounds", stats.rounds()},
          {"drafted_rounds", stats.drafted_rounds()},
          {"draft_tokens", stats.draft_tokens()},
          {"accepted_tokens", stats.accepted_tokens()},
          {"mean_acceptance_length", stats.mean_acceptance_length()},
          {"draft_acceptance_rate", stats.draft_acceptance_rate()},
          {"accepted_per_position",
           std::vector<uint32_t>(stats.accepted_per_position().begin(), stats.accepted_per_position().end())},
          {"window_histogram",
           std::vector<uint32_t>(stats.window_histogram().begin(), stats.window_histogram().end())},
          {"hits", stats.hits()},
          {"misses", stats.misses()},
          {"drafter_lost", stats.drafter_lost()},
          {"merged_rounds", stats.merged_rounds()},
          {"masked_draft_tokens", stats.masked_draft_tokens()},
          {"by_source", std::move(by_source)}};
}

// One line for each source that had anything verified, if it is not all the same.
void DescribeSources(const v1::SpeculationStats& stats, std::string* text) {
  for (const v1::SourceStats& source : stats.by_source()) {
    if (source.draft_tokens() == 0) continue;
    const bool by_drafter = source.source() == v1::DRAFT_SOURCE_DRAFTER;
    absl::StrAppendFormat(text, "  %-10s %d of %d draft tokens (%.1f%%), %d drafted rounds\n",
                          by_drafter ? source.drafter() : DraftSourceName(source.source()),
                          source.accepted_tokens(), source.draft_tokens(),
                          100.0 * source.draft_acceptance_rate(), source.drafted_rounds());
  }
}

}  // namespace

void Transcript::Add(const v1::GenerateResponse& event, absl::Time now) {
  if (event.has_started()) started_ = event.started();
  if (event.has_prompt()) {
    prompt_.mutable_tokens()->MergeFrom(event.prompt().tokens());
    prompt_.mutable_details()->MergeFrom(event.prompt().details());
  }
  if (event.has_chunk()) {
    const v1::GenerationChunk& chunk = event.chunk();
    if (chunk.tokens_size() > 0 && tokens_.empty()) first_token_ = now;
    tokens_.insert(tokens_.end(), chunk.tokens().begin(), chunk.tokens().end());
    details_.insert(details_.end(), chunk.details().begin(), chunk.details().end());
    text_ += chunk.text();
    AddDeltas(chunk.deltas());
  }
  if (event.has_finished()) {
    finished_ = event.finished();
    text_ += finished_.text();
    AddDeltas(finished_.deltas());
  }
}

void Transcript::AddDeltas(const google::protobuf::RepeatedPtrField<v1::OutputDelta>& deltas) {
  for (const v1::OutputDelta& delta : deltas) {
    is_parsed_ = true;
    content_ += delta.content();
    reasoning_ += delta.reasoning();
    if (!delta.has_tool_call()) continue;
    const v1::ToolCallDelta& piece = delta.tool_call();
    if (!piece.name().empty() || calls_.empty()) {
      v1::ToolCall& call = calls_.emplace_back();
      call.set_id(piece.id());
      call.set_name(piece.name());
    }
    *calls_.back().mutable_arguments() += piece.arguments();
  }
}

absl::Duration Transcript::TimeToFirstToken() const {
  return tokens_.empty() ? absl::ZeroDuration() : first_token_ - begin_;
}

double Transcript::TokensPerSecond() const {
  const double seconds = absl::ToDoubleSeconds(TotalTime());
  return seconds > 0 ? static_cast<double>(tokens_.size()) / seconds : 0.0;
}

json Transcript::ToJson(bool with_logprobs, const absl::Status& status) const {
  json result = {{"request_id", started_.request_id()},
                 {"model", started_.model()},
                 {"adapter", started_.adapter()},
                 {"seed", started_.seed()},
                 {"drafter", started_.drafter()},
                 {"partner", started_.partner()},
                 {"tokens", tokens_},
                 {"sources", json::array()},
                 {"text", text_},
                 {"finish_reason", ReasonName(finished_.reason())},
                 {"matched_stop", finished_.matched_stop()},
                 {"usage", UsageJson(finished_.usage())},
                 {"speculation", SpeculationJson(finished_.speculation())},
                 {"timings",
                  {{"time_to_first_token_seconds", absl::ToDoubleSeconds(TimeToFirstToken())},
                   {"total_seconds", absl::ToDoubleSeconds(TotalTime())},
                   {"tokens_per_second", TokensPerSecond()}}}};
  result["draft_sources"] = json::array();
  for (const v1::TokenDetail& detail : details_) {
    result["sources"].push_back(SourceName(detail.source()));
    result["draft_sources"].push_back(DraftSourceName(detail.draft_source()));
  }
  if (with_logprobs) {
    json& logprobs = result["logprobs"] = json::array();
    for (size_t i = 0; i < tokens_.size() && i < details_.size(); ++i) {
      logprobs.push_back(LogprobJson(tokens_[i], details_[i]));
    }
  }
  if (prompt_.tokens_size() > 0) result["prompt_logprobs"] = PromptLogprobsJson(prompt_);
  if (is_parsed_) {
    result["content"] = content_;
    result["reasoning"] = reasoning_;
    json& calls = result["tool_calls"] = json::array();
    for (const v1::ToolCall& call : calls_)
      calls.push_back({{"id", call.id()}, {"name", call.name()}, {"arguments", call.arguments()}});
  }
  if (!status.ok()) result["error"] = ErrorJson(status);
  return result;
}

std::string Transcript::DescribeStats() const {
  const v1::SpeculationStats& stats = finished_.speculation();
  const v1::Usage& usage = finished_.usage();
  std::string text;
  absl::StrAppend(&text, "drafter      ", started_.drafter().empty() ? "none" : started_.drafter());
  // It was swapped, or lost and replaced.
  if (!stats.drafter().empty() && stats.drafter() != started_.drafter()) {
    absl::StrAppend(&text, ", at the end ", stats.drafter());
  }
  if (!started_.partner().empty()) absl::StrAppend(&text, ", with ", started_.partner());
  text += '\n';
  absl::StrAppendFormat(&text, "tokens       %d, after a prompt of %d (%d from the cache); ended by %s\n",
                        tokens_.size(), usage.prompt_tokens(), usage.cached_prompt_tokens(),
                        ReasonName(finished_.reason()));
  absl::StrAppendFormat(&text, "rounds       %d, of which %d drafted\n", stats.rounds(),
                        stats.drafted_rounds());
  if (stats.drafted_rounds() > 0) {
    absl::StrAppendFormat(
        &text, "acceptance   %d of %d draft tokens (%.1f%%), length %.2f tokens per drafted round\n",
        stats.accepted_tokens(), stats.draft_tokens(), 100.0 * stats.draft_acceptance_rate(),
        stats.mean_acceptance_length());
    DescribeSources(stats, &text);
  }
  if (!stats.drafter_lost().empty()) absl::StrAppend(&text, "drafter lost ", stats.drafter_lost(), "\n");
  absl::StrAppendFormat(&text, "first token  after %.0f ms\n",
                        absl::ToDoubleMilliseconds(TimeToFirstToken()));
  absl::StrAppendFormat(&text, "speed        %.1f tokens/s (%.0f ms in all)\n", TokensPerSecond(),
                        absl::ToDoubleMilliseconds(TotalTime()));
  return text;
}

namespace {

json DeltasJson(const google::protobuf::RepeatedPtrField<v1::OutputDelta>& deltas) {
  json list = json::array();
  for (const v1::OutputDelta& delta : deltas) {
    if (delta.has_content()) list.push_back({{"content", delta.content()}});
    if (delta.has_reasoning()) list.push_back({{"reasoning", delta.reasoning()}});
    if (!delta.has_tool_call()) continue;
    const v1::ToolCallDelta& call = delta.tool_call();
    json piece = {{"index", call.index()}, {"arguments", call.arguments()}};
    if (!call.name().empty()) {
      piece["id"] = call.id();
      piece["name"] = call.name();
    }
    list.push_back({{"tool_call", std::move(piece)}});
  }
  return list;
}

}  // namespace

namespace {

json OneEventJson(const v1::GenerateResponse& event, bool with_logprobs) {
  if (event.has_prompt()) {
    return {{"event", "prompt"},
            {"offset", event.prompt().offset()},
            {"logprobs", PromptLogprobsJson(event.prompt())}};
  }
  if (event.has_started()) {
    const v1::GenerationStarted& started = event.started();
    return {{"event", "started"},           {"request_id", started.request_id()},
            {"model", started.model()},     {"adapter", started.adapter()},
            {"seed", started.seed()},       {"drafter", started.drafter()},
            {"partner", started.partner()}, {"prompt_tokens", started.prompt_tokens()}};
  }
  if (event.has_chunk()) {
    const v1::GenerationChunk& chunk = event.chunk();
    json result = {{"event", "chunk"},
                   {"offset", chunk.offset()},
                   {"tokens", std::vector<uint32_t>(chunk.tokens().begin(), chunk.tokens().end())},
                   {"text", chunk.text()},
                   {"sources", json::array()},
                   {"draft_sources", json::array()}};
    for (const v1::TokenDetail& detail : chunk.details()) {
      result["sources"].push_back(SourceName(detail.source()));
      result["draft_sources"].push_back(DraftSourceName(detail.draft_source()));
    }
    if (chunk.deltas_size() > 0) result["deltas"] = DeltasJson(chunk.deltas());
    if (with_logprobs) {
      json& logprobs = result["logprobs"] = json::array();
      for (int i = 0; i < chunk.tokens_size() && i < chunk.details_size(); ++i) {
        logprobs.push_back(LogprobJson(chunk.tokens(i), chunk.details(i)));
      }
    }
    return result;
  }
  const v1::GenerationFinished& finished = event.finished();
  json result = {{"event", "finished"},
                 {"finish_reason", ReasonName(finished.reason())},
                 {"matched_stop", finished.matched_stop()},
                 {"text", finished.text()},
                 {"usage", UsageJson(finished.usage())},
                 {"speculation", SpeculationJson(finished.speculation())}};
  if (finished.deltas_size() > 0) result["deltas"] = DeltasJson(finished.deltas());
  return result;
}

}  // namespace

json EventJson(const v1::GenerateResponse& event, bool with_logprobs) {
  json result = OneEventJson(event, with_logprobs);
  if (event.output() > 0) result["output"] = event.output();
  return result;
}

json ErrorJson(const absl::Status& status) {
  return {{"code", absl::StatusCodeToString(status.code())},
          {"message", std::string(status.message().data(), status.message().size())}};
}

std::string DumpJson(const json& json) {
  return json.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace tandem::cli
