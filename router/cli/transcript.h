#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "nlohmann/json_fwd.hpp"
#include "tandem/v1/generation.pb.h"

namespace tandem::cli {

// Collects the events of one generation.
class Transcript {
 public:
  explicit Transcript(absl::Time begin) : begin_(begin) {}

  void Add(const v1::GenerateResponse& event, absl::Time now);
  // The request got its terminal status.
  void End(absl::Time now) { end_ = now; }

  const v1::GenerationStarted& started() const { return started_; }
  const v1::GenerationFinished& finished() const { return finished_; }
  const std::string& text() const { return text_; }
  size_t num_tokens() const { return tokens_.size(); }

  // From the call to the first token; zero without one.
  absl::Duration TimeToFirstToken() const;
  // From the call to its terminal status.
  absl::Duration TotalTime() const { return end_ - begin_; }
  // Output tokens over the total time.
  double TokensPerSecond() const;

  // One object: request_id, model, seed, drafter, tokens, sources, text, finish_reason, matched_stop, usage,
  // speculation, timings; content, reasoning and tool_calls of a parsed output; logprobs if `with_logprobs`,
  // prompt_logprobs if there are any; error with code and message if `status` is not OK.
  nlohmann::json ToJson(bool with_logprobs, const absl::Status& status) const;

  // Lines about speed and speculation, for people.
  std::string DescribeStats() const;

 private:
  void AddDeltas(const google::protobuf::RepeatedPtrField<v1::OutputDelta>& deltas);

  const absl::Time begin_;
  absl::Time end_ = begin_;
  absl::Time first_token_ = absl::InfiniteFuture();
  v1::GenerationStarted started_;
  v1::GenerationFinished finished_;
  std::vector<uint32_t> tokens_;
  std::vector<v1::TokenDetail> details_;
  v1::PromptChunk prompt_;  // All parts together.
  std::string text_;
  // Of a parsed output.
  bool is_parsed_ = false;
  std::string content_;
  std::string reasoning_;
  std::vector<v1::ToolCall> calls_;
};

// One event as an object whose "event" is "started", "prompt", "chunk" or "finished". "output" is the number
// of the output, unless it is the first.
nlohmann::json EventJson(const v1::GenerateResponse& event, bool with_logprobs);

// {"code": "NOT_FOUND", "message": ...}
nlohmann::json ErrorJson(const absl::Status& status);

// A line of JSON. Text that is not UTF-8, which no conforming server sends, gets replacement characters.
std::string DumpJson(const nlohmann::json& json);

}  // namespace tandem::cli
