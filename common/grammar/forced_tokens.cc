#include "common/grammar/forced_tokens.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/grammar/call_marks.h"

namespace tandem {
namespace {

// Tokens in front that may have a say in how the next ones are spelled.
constexpr size_t kMostTokensBefore = 8;

absl::StatusOr<TokenIds> Spell(const Tokenizer& tokenizer, absl::string_view text) {
  return tokenizer.Encode(text, {.parse_special = false, .add_special_tokens = false, .max_tokens = 4096});
}

// The tokens of `spelled` behind its first `bytes` bytes, if a border falls there.
TokenIds After(const Tokenizer& tokenizer, const TokenIds& spelled, size_t bytes) {
  size_t at = 0;
  for (size_t i = 0; i < spelled.size(); ++i) {
    if (at == bytes) return {spelled.begin() + static_cast<ptrdiff_t>(i), spelled.end()};
    if (at > bytes) break;
    at += i == 0 ? tokenizer.FirstTokenBytes(spelled[i]).size() : tokenizer.TokenBytes(spelled[i]).size();
  }
  return {};
}

// Whether these tokens, in the middle of a text, are `text`.
bool Spells(const Tokenizer& tokenizer, absl::Span<const TokenId> tokens, absl::string_view text) {
  for (const TokenId token : tokens) {
    const absl::string_view bytes = tokenizer.TokenBytes(token);
    if (!absl::StartsWith(text, bytes)) return false;
    text.remove_prefix(bytes.size());
  }
  return text.empty();
}

}  // namespace

namespace {

// `forced` has no marks.
TokenIds SpellText(const Tokenizer& tokenizer, absl::Span<const TokenId> before, absl::string_view forced) {
  std::string context;
  const size_t num_before = std::min(before.size(), kMostTokensBefore);
  for (const TokenId token : before.last(num_before)) {
    if (tokenizer.IsSpecial(token)) {
      context.clear();
    } else {
      absl::StrAppend(&context, tokenizer.TokenBytes(token));
    }
  }
  if (absl::StatusOr<TokenIds> whole = Spell(tokenizer, absl::StrCat(context, forced)); whole.ok()) {
    TokenIds tokens = After(tokenizer, *whole, context.size());
    if (Spells(tokenizer, tokens, forced) && !tokens.empty()) return tokens;
  }
  absl::StatusOr<TokenIds> alone = Spell(tokenizer, forced);
  if (alone.ok() && Spells(tokenizer, *alone, forced)) return *std::move(alone);
  return {};
}

// Where the first mark in `forced` begins.
size_t FindMark(absl::string_view forced) {
  size_t at = 0;
  while (at < forced.size() && FindCallMark(forced.substr(at)) == kCallMarks.size()) ++at;
  return at;
}

}  // namespace

TokenIds SpellForced(const Tokenizer& tokenizer, absl::Span<const TokenId> before, absl::string_view forced) {
  TokenIds all(before.begin(), before.end());
  while (!forced.empty()) {
    const size_t at = FindMark(forced);
    if (at > 0) {
      const TokenIds text = SpellText(tokenizer, all, forced.substr(0, at));
      all.insert(all.end(), text.begin(), text.end());
      forced.remove_prefix(at);
      // What comes behind bytes without a spelling is not known.
      if (text.empty()) break;
      continue;
    }
    const std::optional<TokenId> mark = tokenizer.FindToken(kCallMarks[FindCallMark(forced)]);
    if (!mark.has_value()) break;
    all.push_back(*mark);
    forced.remove_prefix(kCallMarkBytes);
  }
  return {all.begin() + static_cast<ptrdiff_t>(before.size()), all.end()};
}

}  // namespace tandem
