#include "common/tokenizer/streaming_decoder.h"

#include <utility>

#include "absl/strings/match.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/unicode/unicode.h"

namespace tandem {

StreamingDecoder::StreamingDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special,
                                   bool continuation)
    : tokenizer_(std::move(tokenizer)), skip_special_(skip_special), continuation_(continuation) {
  Restart();
}

void StreamingDecoder::Restart() {
  pending_.clear();
  is_first_ = !continuation_;
  leading_strips_left_ = continuation_ ? 0 : tokenizer_->leading_strip().max_count;
}

std::string StreamingDecoder::Push(TokenId token) {
  return Push(absl::MakeConstSpan(&token, 1));
}

std::string StreamingDecoder::Push(absl::Span<const TokenId> tokens) {
  std::string text;
  for (TokenId token : tokens) {
    if (!tokenizer_->HasToken(token)) continue;
    if (skip_special_ && tokenizer_->IsSpecial(token)) continue;
    AppendBytes(is_first_ ? tokenizer_->FirstTokenBytes(token) : tokenizer_->TokenBytes(token), text);
    is_first_ = false;
  }
  StripLeading(text);
  return text;
}

std::string StreamingDecoder::Flush() {
  std::string text;
  if (!pending_.empty()) text = std::string(kReplacementCharacter);
  StripLeading(text);
  Restart();
  return text;
}

void StreamingDecoder::AppendBytes(absl::string_view bytes, std::string& out) {
  std::string joined;
  if (!pending_.empty()) {
    joined = std::move(pending_);
    joined.append(bytes.data(), bytes.size());
    bytes = joined;
    pending_.clear();
  }
  while (!bytes.empty()) {
    const Utf8Unit unit = ReadUtf8(bytes);
    const absl::string_view head = bytes.substr(0, unit.length);
    if (unit.kind == Utf8Unit::Kind::kIncomplete) {
      pending_ = std::string(head);
    } else {
      const absl::string_view shown = unit.kind == Utf8Unit::Kind::kCharacter ? head : kReplacementCharacter;
      out.append(shown.data(), shown.size());
    }
    bytes.remove_prefix(unit.length);
  }
}

void StreamingDecoder::StripLeading(std::string& text) {
  const std::string& character = tokenizer_->leading_strip().character;
  size_t begin = 0;
  while (leading_strips_left_ > 0 && begin < text.size()) {
    if (absl::StartsWith(absl::string_view(text).substr(begin), character)) {
      begin += character.size();
      --leading_strips_left_;
    } else {
      leading_strips_left_ = 0;
    }
  }
  text.erase(0, begin);
}

}  // namespace tandem
