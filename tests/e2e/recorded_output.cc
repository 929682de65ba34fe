#include "tests/e2e/recorded_output.h"

#include <bit>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tandem::e2e {

std::vector<uint32_t> Output::ids() const {
  std::vector<uint32_t> ids;
  for (const Token& token : tokens) ids.push_back(token.token);
  return ids;
}

size_t Output::CertainTextBytes(size_t num_tokens) const {
  size_t bytes = 0;
  for (size_t i = 0; i < num_tokens; ++i) bytes += tokens[i].text_bytes;
  return bytes;
}

void PrintTo(const Output& output, std::ostream* out) {
  *out << v1::FinishReason_Name(output.reason) << " \"" << absl::CEscape(output.text) << "\" tokens "
       << absl::StrJoin(output.ids(), ",") << " log probabilities ";
  for (const Output::Token& token : output.tokens) *out << std::hex << token.logprob_bits << std::dec << " ";
}

void OutputRecorder::Require(bool holds, absl::string_view what) {
  if (!holds && broken_.ok())
    broken_ = absl::InternalError(absl::StrCat("the stream broke a promise: ", what));
}

void OutputRecorder::Add(const v1::GenerateResponse& event) {
  Require(!finished_, "an event after finished");
  if (event.has_started()) {
    Require(!started_, "started twice");
    started_ = true;
    recorded_.started = event.started();
    return;
  }
  Require(started_, "an event before started");
  if (event.has_prompt()) AddPrompt(event.prompt());
  if (event.has_chunk()) AddChunk(event.chunk());
  if (event.has_finished()) {
    finished_ = true;
    recorded_.finished = event.finished();
    recorded_.output.text += event.finished().text();
    recorded_.output.reason = event.finished().reason();
    recorded_.output.matched_stop = event.finished().matched_stop();
  }
}

void OutputRecorder::AddChunk(const v1::GenerationChunk& chunk) {
  Output& output = recorded_.output;
  Require(chunk.offset() == recorded_.first_offset + output.tokens.size(), "a gap between chunks");
  Require(chunk.tokens_size() > 0, "a chunk without tokens");
  Require(chunk.details_size() == chunk.tokens_size(), "not one detail a token");
  if (!broken_.ok()) return;
  size_t text_bytes = 0;
  for (int i = 0; i < chunk.tokens_size(); ++i) {
    const v1::TokenDetail& detail = chunk.details(i);
    Require(detail.source() != v1::TOKEN_SOURCE_UNSPECIFIED, "a token from nowhere");
    Output::Token token{.token = chunk.tokens(i),
                        .text_bytes = detail.text_bytes(),
                        .logprob_bits = std::bit_cast<uint32_t>(detail.logprob())};
    for (const v1::TokenLogprob& top : detail.top_logprobs()) {
      token.top_logprobs.emplace_back(top.token(), std::bit_cast<uint32_t>(top.logprob()));
    }
    text_bytes += token.text_bytes;
    output.tokens.push_back(std::move(token));
  }
  Require(text_bytes == chunk.text().size(), "text_bytes do not add up to the text");
  output.text += chunk.text();
}

void OutputRecorder::AddPrompt(const v1::PromptChunk& prompt) {
  Require(recorded_.output.tokens.empty(), "a part of the prompt after output");
  Require(prompt.offset() == recorded_.prompt.size(), "a gap between parts of the prompt");
  Require(prompt.tokens_size() > 0 && prompt.tokens_size() <= 1024,
          "a part of the prompt of no or too many tokens");
  Require(prompt.details_size() == prompt.tokens_size(), "not one detail a token of the prompt");
  if (!broken_.ok()) return;
  for (int i = 0; i < prompt.tokens_size(); ++i) {
    Output::Token token{.token = prompt.tokens(i),
                        .logprob_bits = std::bit_cast<uint32_t>(prompt.details(i).logprob())};
    for (const v1::TokenLogprob& top : prompt.details(i).top_logprobs())
      token.top_logprobs.emplace_back(top.token(), std::bit_cast<uint32_t>(top.logprob()));
    recorded_.prompt.push_back(std::move(token));
  }
}

absl::StatusOr<RecordedOutput> OutputRecorder::End(const absl::Status& status) {
  if (!status.ok()) return status;
  Require(finished_, "OK without finished");
  Require(recorded_.finished.usage().completion_tokens() ==
              recorded_.first_offset + recorded_.output.tokens.size(),
          "usage counts other tokens than were sent");
  if (!broken_.ok()) return broken_;
  return recorded_;
}

}  // namespace tandem::e2e
