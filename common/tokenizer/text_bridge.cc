#include "common/tokenizer/text_bridge.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/tokenizer/unicode/unicode.h"

namespace tandem {
namespace {

// Tokens that end this many bytes before the end of a text do not change when it grows.
constexpr size_t kUnsettledBytes = 48;
// Retokenizing starts at the beginning of a word, if one begins at most this many tokens before.
constexpr size_t kTokensToWord = 16;
// The most context that is encoded in front of a text, so that it is cut as in its context.
constexpr size_t kAnchorTokens = 8;
constexpr size_t kAnchorBytes = 64;

constexpr Tokenizer::EncodeOptions kPlainText = {.parse_special = false, .add_special_tokens = false};

size_t NumBytes(const Tokenizer& tokenizer, absl::Span<const TokenId> tokens) {
  size_t bytes = 0;
  for (const TokenId token : tokens) bytes += tokenizer.TokenBytes(token).size();
  return bytes;
}

bool Makes(const Tokenizer& tokenizer, absl::Span<const TokenId> tokens, absl::string_view text) {
  if (NumBytes(tokenizer, tokens) != text.size()) return false;
  for (const TokenId token : tokens) {
    const absl::string_view bytes = tokenizer.TokenBytes(token);
    if (text.substr(0, bytes.size()) != bytes) return false;
    text.remove_prefix(bytes.size());
  }
  return true;
}

// Encodes `text` as the middle of a longer text; nullopt if that fails. Some tokenizers treat every text as a
// beginning, and put a space in front of it.
std::optional<TokenIds> EncodeMiddle(const Tokenizer& tokenizer, absl::string_view text) {
  absl::StatusOr<TokenIds> tokens = tokenizer.Encode(text, kPlainText);
  if (tokens.ok() && Makes(tokenizer, *tokens, text)) return *std::move(tokens);
  if (!text.empty() && text.front() == ' ') {
    tokens = tokenizer.Encode(text.substr(1), kPlainText);
    if (tokens.ok() && Makes(tokenizer, *tokens, text)) return *std::move(tokens);
  }
  // Encodes it after a line end, which is not part of any word.
  tokens = tokenizer.Encode(absl::StrCat("\n", text), kPlainText);
  if (!tokens.ok()) return std::nullopt;
  const auto line_end = absl::c_find_if(
      *tokens, [&tokenizer](TokenId token) { return absl::EndsWith(tokenizer.TokenBytes(token), "\n"); });
  if (line_end == tokens->end()) return std::nullopt;
  tokens->erase(tokens->begin(), line_end + 1);
  return Makes(tokenizer, *tokens, text) ? std::optional<TokenIds>(*std::move(tokens)) : std::nullopt;
}

TokenIds FrameOf(const Tokenizer& tokenizer) {
  constexpr absl::string_view kAnyText = "A";
  const absl::StatusOr<TokenIds> framed = tokenizer.Encode(kAnyText, {});
  const absl::StatusOr<TokenIds> plain = tokenizer.Encode(kAnyText, kPlainText);
  if (!framed.ok() || !plain.ok() || plain->empty()) return {};
  return {framed->begin(), std::search(framed->begin(), framed->end(), plain->begin(), plain->end())};
}

}  // namespace

size_t WholeCharacters(absl::string_view bytes) {
  for (size_t back = 1; back <= std::min<size_t>(3, bytes.size()); ++back) {
    const size_t at = bytes.size() - back;
    if ((bytes[at] & 0xc0) == 0x80) continue;
    return ReadUtf8(bytes.substr(at)).kind == Utf8Unit::Kind::kIncomplete ? at : bytes.size();
  }
  return bytes.size();
}

TextBridge::TextBridge(std::shared_ptr<const Tokenizer> draft, std::shared_ptr<const Tokenizer> target,
                       int32_t target_width)
    : draft_(std::move(draft)),
      target_(std::move(target)),
      target_width_(target_width),
      frame_(FrameOf(*draft_)) {
  const auto pair = [this](std::optional<TokenId> of_target, std::optional<TokenId> of_draft) {
    if (!of_target.has_value() || !of_draft.has_value()) return;
    to_draft_.emplace(*of_target, *of_draft);
    to_target_.emplace(*of_draft, *of_target);
  };
  const auto entries = target_->Entries();
  for (size_t id = 0; id < entries.size(); ++id) {
    const auto token = static_cast<TokenId>(id);
    if (!target_->IsSpecial(token)) continue;
    const std::optional<TokenId> same = draft_->FindToken(entries[id]->content);
    if (same.has_value() && draft_->IsSpecial(*same)) pair(token, same);
  }
  pair(target_->eos(), draft_->eos());
  pair(target_->bos(), draft_->bos());
}

std::optional<TokenId> TextBridge::SpecialToDraft(TokenId target) const {
  const auto found = to_draft_.find(target);
  return found == to_draft_.end() ? std::nullopt : std::optional<TokenId>(found->second);
}

std::optional<TokenId> TextBridge::SpecialToTarget(TokenId draft) const {
  const auto found = to_target_.find(draft);
  return found == to_target_.end() ? std::nullopt : std::optional<TokenId>(found->second);
}

std::vector<TextBridge::PlacedToken> TextBridge::ToTarget(absl::Span<const TokenId> before,
                                                          absl::string_view text) const {
  const auto placed = [this, text](absl::Span<const TokenId> tokens) {
    std::vector<PlacedToken> result;
    size_t end = 0;
    for (const TokenId token : tokens) {
      end += target_->TokenBytes(token).size();
      if (token < target_width_ && end <= text.size()) result.push_back({.token = token, .end = end});
    }
    return result;
  };
  // The context from the beginning of a word, if there is one.
  std::string anchor;
  for (size_t i = before.size(); i > 0 && before.size() - i < kAnchorTokens; --i) {
    const TokenId token = before[i - 1];
    if (target_->IsSpecial(token) || !target_->HasToken(token)) break;
    const absl::string_view bytes = target_->TokenBytes(token);
    if (anchor.size() + bytes.size() > kAnchorBytes) break;
    anchor.insert(0, bytes.data(), bytes.size());
    if (!anchor.empty() && anchor.front() == ' ') break;
  }
  if (!anchor.empty()) {
    const std::optional<TokenIds> tokens = EncodeMiddle(*target_, anchor + std::string(text));
    size_t first = 0;
    size_t end = 0;
    while (tokens.has_value() && first < tokens->size() && end < anchor.size()) {
      end += target_->TokenBytes((*tokens)[first++]).size();
    }
    if (tokens.has_value() && end == anchor.size())
      return placed(absl::MakeConstSpan(*tokens).subspan(first));
  }
  const std::optional<TokenIds> tokens = EncodeMiddle(*target_, text);
  return tokens.has_value() ? placed(*tokens) : std::vector<PlacedToken>();
}

TranslatedText::TranslatedText(const TextBridge* bridge) : bridge_(*bridge), tokens_(bridge->frame()) {
  if (tokens_.empty()) tokens_.push_back(bridge_.draft().eos().value_or(bridge_.draft().bos().value_or(0)));
  run_begin_ = tokens_.size();
}

void TranslatedText::Append(absl::Span<const TokenId> target_tokens) {
  const Tokenizer& target = bridge_.target();
  num_target_ += target_tokens.size();
  for (const TokenId token : target_tokens) {
    if (!target.HasToken(token)) continue;
    if (target.IsSpecial(token)) {
      EndRun();
      AddSpecial(token);
    } else {
      const absl::string_view bytes = target.TokenBytes(token);
      run_.append(bytes.data(), bytes.size());
    }
  }
  Retokenize();
}

double TranslatedText::tokens_per_token() const {
  constexpr uint64_t kEnoughTokens = 16;
  if (num_target_ < kEnoughTokens) return 1.0;
  return static_cast<double>(tokens_.size()) / static_cast<double>(num_target_);
}

void TranslatedText::EndRun() {
  Retokenize();
  run_.clear();
  ends_.clear();
  covered_ = 0;
  run_begin_ = tokens_.size();
}

void TranslatedText::AddSpecial(TokenId target) {
  const std::optional<TokenId> token = bridge_.SpecialToDraft(target);
  if (!token.has_value()) return;
  // The frame already has this token.
  if (tokens_ == bridge_.frame() && tokens_.back() == *token) return;
  tokens_.push_back(*token);
  run_begin_ = tokens_.size();
}

// Drops bytes that can never become a character, from the part that has no tokens yet.
void TranslatedText::DropInvalid() {
  absl::string_view rest = absl::string_view(run_).substr(covered_);
  if (!FindInvalidUtf8(rest).has_value()) return;
  std::string kept = run_.substr(0, covered_);
  while (!rest.empty()) {
    const Utf8Unit unit = ReadUtf8(rest);
    if (unit.kind != Utf8Unit::Kind::kInvalid) kept.append(rest.data(), unit.length);
    rest.remove_prefix(unit.length);
  }
  run_ = std::move(kept);
}

void TranslatedText::Retokenize() {
  DropInvalid();
  const size_t end = WholeCharacters(run_);
  if (end <= covered_) return;
  size_t kept = ends_.size();
  while (kept > 0 && ends_[kept - 1] + kUnsettledBytes > covered_) --kept;
  const size_t settled = kept;
  while (kept > 0 && run_[ends_[kept - 1]] != ' ' && settled - kept < kTokensToWord) --kept;
  const size_t begin = kept == 0 ? 0 : ends_[kept - 1];
  const absl::string_view text = absl::string_view(run_).substr(begin, end - begin);
  covered_ = end;
  // At the beginning of a text, and if the tokenizer changes the text, its own result is taken.
  std::optional<TokenIds> exact;
  if (begin > 0) exact = EncodeMiddle(bridge_.draft(), text);
  const absl::StatusOr<TokenIds> made = exact.has_value() ? absl::StatusOr<TokenIds>(*std::move(exact))
                                                          : bridge_.draft().Encode(text, kPlainText);
  tokens_.resize(run_begin_ + kept);
  ends_.resize(kept);
  if (!made.ok()) {
    // Text that the tokenizer cannot encode is left out.
    run_.erase(0, end);
    run_begin_ = tokens_.size();
    ends_.clear();
    covered_ = 0;
    return;
  }
  // A space that the tokenizer adds is not part of the text.
  const bool adds_space = !made->empty() && NumBytes(bridge_.draft(), *made) == text.size() + 1 &&
                          bridge_.draft().TokenBytes(made->front()).substr(0, 1) == " ";
  size_t num_bytes = 0;
  for (const TokenId token : *made) {
    num_bytes += bridge_.draft().TokenBytes(token).size();
    tokens_.push_back(token);
    ends_.push_back(std::min(begin + num_bytes - (adds_space ? 1 : 0), end));
  }
  // If the tokenizer changes the text, the ends of tokens are a guess.
  if (ends_.size() > kept) ends_.back() = end;
}

}  // namespace tandem
