#include "common/drafting/ngram_index.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "common/base/hash.h"

namespace tandem {
namespace {

// Earlier occurrences of one n-gram that are looked at.
constexpr size_t kMaxOccurrences = 16;

uint64_t NgramHash(absl::Span<const TokenId> ngram) {
  return ExtendPrefixHash(kEmptyPrefixHash, ngram);
}

}  // namespace

void NgramIndex::Clear() {
  assert(options_.min_n >= 1 && options_.min_n <= options_.max_n && options_.max_n <= 16);
  assert(options_.max_tokens > 2 * options_.max_n);
  tokens_.clear();
  lengths_.assign(options_.max_n - options_.min_n + 1, {});
}

void NgramIndex::Append(TokenId token, bool /*is_output*/) {
  if (tokens_.size() == options_.max_tokens) {
    const TokenIds recent(tokens_.end() - options_.max_tokens / 2, tokens_.end());
    Clear();
    for (TokenId kept : recent) Index(kept);
  }
  Index(token);
}

void NgramIndex::Index(TokenId token) {
  tokens_.push_back(token);
  const auto end = static_cast<uint32_t>(tokens_.size());
  for (size_t i = 0; i < lengths_.size(); ++i) {
    const size_t n = options_.min_n + i;
    lengths_[i].previous.resize(end + 1);
    if (n > end) continue;
    const auto [last, is_new] = lengths_[i].last.try_emplace(NgramHash(absl::MakeSpan(tokens_).last(n)), end);
    if (!is_new) lengths_[i].previous[end] = std::exchange(last->second, end);
  }
}

std::vector<NgramIndex::Context> NgramIndex::Contexts() const {
  std::vector<Context> contexts;
  const auto end = static_cast<uint32_t>(tokens_.size());
  for (size_t i = lengths_.size(); i-- > 0 && contexts.size() < kMaxContexts;) {
    const size_t n = options_.min_n + i;
    if (n > end) continue;
    const absl::Span<const TokenId> wanted = absl::MakeConstSpan(tokens_).last(n);
    Context context{.match_length = static_cast<uint32_t>(n)};
    uint32_t at = lengths_[i].previous[end];
    for (size_t seen = 0; at != 0 && seen < kMaxOccurrences; ++seen, at = lengths_[i].previous[at]) {
      // Hashes may collide, and an attacker's will.
      if (absl::MakeConstSpan(tokens_).subspan(at - n, n) == wanted) context.next.push_back(at);
    }
    if (!context.next.empty()) contexts.push_back(std::move(context));
  }
  return contexts;
}

std::vector<Continuation> NgramIndex::Continuations(const Context& context) const {
  std::vector<Continuation> continuations;
  for (uint32_t position : context.next) {
    const TokenId token = tokens_[position];
    const auto known = std::find_if(continuations.begin(), continuations.end(),
                                    [&](const Continuation& one) { return one.token == token; });
    if (known != continuations.end()) {
      ++known->count;
    } else {
      continuations.push_back({.token = token, .count = 1});
    }
  }
  return continuations;
}

std::optional<NgramIndex::Context> NgramIndex::After(const Context& context, TokenId token) const {
  Context after{.match_length = context.match_length + 1};
  for (uint32_t position : context.next) {
    if (tokens_[position] == token && position + 1 < tokens_.size()) after.next.push_back(position + 1);
  }
  if (after.next.empty()) return std::nullopt;
  return after;
}

}  // namespace tandem
