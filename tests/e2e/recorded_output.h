#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::e2e {

// All parts of an output that law 2 makes a function of model, prompt, parameters and seed. Log probabilities
// are stored as bits, to compare them exactly.
struct Output {
  struct Token {
    uint32_t token = 0;
    uint32_t text_bytes = 0;
    uint32_t logprob_bits = 0;
    std::vector<std::pair<uint32_t, uint32_t>> top_logprobs;  // Token and bits.

    friend bool operator==(const Token&, const Token&) = default;
  };
  std::vector<Token> tokens;
  std::string text;
  v1::FinishReason reason = v1::FINISH_REASON_UNSPECIFIED;
  std::string matched_stop;

  std::vector<uint32_t> ids() const;
  // Bytes of text that had become certain after `num_tokens` tokens.
  size_t CertainTextBytes(size_t num_tokens) const;

  friend bool operator==(const Output&, const Output&) = default;
  friend void PrintTo(const Output& output, std::ostream* out);
};

struct RecordedOutput {
  Output output;
  uint32_t first_offset = 0;          // Of the first chunk.
  std::vector<Output::Token> prompt;  // With its log probabilities, when they were asked for.
  v1::GenerationStarted started;
  v1::GenerationFinished finished;
};

// Collects a stream of events, and checks what every stream promises: `started` first and once, chunks
// without gaps, one detail per token, text that adds up, `finished` last. Internal if a stream breaks one of
// these promises.
class OutputRecorder {
 public:
  // `first_offset`: of the first chunk, for a generation that was resumed.
  explicit OutputRecorder(uint32_t first_offset = 0) { recorded_.first_offset = first_offset; }

  void Add(const v1::GenerateResponse& event);
  // After the stream's end with `status`: that, unless it is OK.
  absl::StatusOr<RecordedOutput> End(const absl::Status& status);

 private:
  void AddChunk(const v1::GenerationChunk& chunk);
  void AddPrompt(const v1::PromptChunk& prompt);
  void Require(bool holds, absl::string_view what);

  RecordedOutput recorded_;
  absl::Status broken_;
  bool started_ = false;
  bool finished_ = false;
};

}  // namespace tandem::e2e
