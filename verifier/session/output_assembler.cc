#include "verifier/session/output_assembler.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace tandem {

OutputAssembler::OutputAssembler(std::shared_ptr<const Tokenizer> tokenizer, StopRules rules)
    : rules_(std::move(rules)),
      decoder_(std::move(tokenizer), /*skip_special=*/!rules_.include_special_tokens, /*continuation=*/true) {
  assert(rules_.max_tokens > 0);
  for (const std::string& stop : rules_.stop) {
    if (!stop.empty()) matchers_.push_back(MakeMatcher(stop));
  }
}

OutputAssembler::Matcher OutputAssembler::MakeMatcher(std::string stop) {
  std::vector<size_t> borders(stop.size(), 0);
  size_t border = 0;
  for (size_t i = 1; i < stop.size(); ++i) {
    while (border > 0 && stop[i] != stop[border]) border = borders[border - 1];
    if (stop[i] == stop[border]) ++border;
    borders[i] = border;
  }
  return {.stop = std::move(stop), .borders = std::move(borders)};
}

void OutputAssembler::Advance(Matcher& matcher, char byte) {
  while (matcher.matched > 0 && byte != matcher.stop[matcher.matched]) {
    matcher.matched = matcher.borders[matcher.matched - 1];
  }
  if (byte == matcher.stop[matcher.matched]) ++matcher.matched;
}

std::optional<std::string> OutputAssembler::Scan(absl::string_view text) {
  for (char byte : text) {
    held_.push_back(byte);
    const Matcher* longest = nullptr;
    for (Matcher& matcher : matchers_) {
      Advance(matcher, byte);
      if (matcher.matched < matcher.stop.size()) continue;
      // What is text by now may begin another occurrence.
      matcher.matched = matcher.borders.back();
      if (num_tokens_ < rules_.min_tokens) continue;
      if (longest == nullptr || matcher.stop.size() > longest->stop.size()) longest = &matcher;
    }
    if (longest != nullptr) {
      if (!rules_.include_stop) held_.resize(held_.size() - longest->stop.size());
      return longest->stop;
    }
  }
  return std::nullopt;
}

OutputPiece OutputAssembler::End(OutputEnd::Reason reason) {
  ended_ = true;
  return {.end = OutputEnd{.reason = reason, .text = std::exchange(held_, {})}};
}

OutputPiece OutputAssembler::Push(TokenId token) {
  assert(!ended_);
  ++num_tokens_;
  const bool is_stop_token = rules_.stop_tokens.contains(token);
  const bool is_last = is_stop_token || num_tokens_ >= rules_.max_tokens;
  std::string text = is_stop_token && !rules_.include_stop ? std::string() : decoder_.Push(token);
  // An unfinished character becomes a replacement character, which a stop string may hold as well.
  if (is_last) text += decoder_.Flush();
  if (std::optional<std::string> stop = Scan(text); stop.has_value()) {
    OutputPiece piece = End(OutputEnd::Reason::kStopString);
    piece.end->matched_stop = *std::move(stop);
    return piece;
  }
  if (is_last) return End(is_stop_token ? OutputEnd::Reason::kStopToken : OutputEnd::Reason::kMaxTokens);

  // The longest beginning of a stop string at the end of the text stays.
  size_t num_kept = 0;
  for (const Matcher& matcher : matchers_) num_kept = std::max(num_kept, matcher.matched);
  OutputPiece piece = {.text = held_.substr(0, held_.size() - num_kept)};
  held_.erase(0, held_.size() - num_kept);
  return piece;
}

std::optional<OutputEnd> OutputAssembler::Replay(absl::Span<const TokenId> tokens) {
  for (TokenId token : tokens) {
    OutputPiece piece = Push(token);
    if (piece.end.has_value()) return std::move(piece.end);
  }
  return std::nullopt;
}

}  // namespace tandem
