#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/hash.h"
#include "common/drafting/best_first.h"
#include "common/drafting/draft_source.h"
#include "common/drafting/match_acceptance.h"

namespace tandem {

// A token that has followed a context, and how often.
struct Continuation {
  TokenId token = 0;
  uint32_t count = 0;

  friend bool operator==(const Continuation&, const Continuation&) = default;
};

// Most contexts looked at for one position, and most continuations of each.
inline constexpr size_t kMaxContexts = 4;
inline constexpr size_t kMaxContinuations = 64;

// A draft source on top of an index of contexts. It predicts the next token by partial matching (PPM). The
// longest matching context comes first: its continuations share the probability with which contexts of
// that length were right (MatchAcceptance), in proportion to their counts. The rest of the probability
// goes to the next shorter context, for tokens that no longer context named.
//
// An Index has
//   Context                        `match_length` (the number of matching tokens) and what it takes to find
//                                  the context again;
//   Clear(), Append(token, is_output);
//   Contexts()                     suffixes of the text that occurred before, longest first, at most
//                                  kMaxContexts;
//   Continuations(context)         at most kMaxContinuations;
//   After(context, token)          the context extended by the token, if it has continuations.
template <class Index>
class BlendedSource final : public DraftSource {
 public:
  using Context = typename Index::Context;

  BlendedSource(Index index, MatchAcceptance* prior, bool teaches_prior = true)
      : index_(std::move(index)), acceptance_(prior, teaches_prior) {}

  void Start(absl::Span<const TokenId> tokens, uint32_t prompt_length) override {
    if (length_ > 0 && length_ <= tokens.size() &&
        ExtendPrefixHash(kEmptyPrefixHash, tokens.first(length_)) == hash_) {
      return Observe(tokens.subspan(length_));
    }
    index_.Clear();
    length_ = 0;
    hash_ = kEmptyPrefixHash;
    const absl::Span<const TokenId> prompt = tokens.first(std::min<size_t>(prompt_length, tokens.size()));
    Read(prompt);
    Observe(tokens.subspan(prompt.size()));
  }

  void Read(absl::Span<const TokenId> prompt) override {
    for (TokenId token : prompt) index_.Append(token, /*is_output=*/false);
    Count(prompt);
  }

  void Observe(absl::Span<const TokenId> committed) override {
    for (TokenId token : committed) {
      Learn(token);
      index_.Append(token, /*is_output=*/true);
    }
    Count(committed);
  }

  std::vector<ProposedNode> Propose(const ProposalLimits& limits) const override {
    return GrowBestFirst<std::vector<Context>>(
        index_.Contexts(), limits,
        [this](const std::vector<Context>& contexts) { return Predict(contexts); });
  }

  const Index& index() const { return index_; }

 private:
  using Branch = GrowthBranch<std::vector<Context>>;

  void Count(absl::Span<const TokenId> tokens) {
    length_ += tokens.size();
    hash_ = ExtendPrefixHash(hash_, tokens);
  }

  // The continuations of a context that no longer one has named.
  template <class Named>
  std::vector<Continuation> New(const Context& context, const Named& named) const {
    std::vector<Continuation> continuations = index_.Continuations(context);
    std::erase_if(continuations, [&](const Continuation& one) { return named(one.token); });
    return continuations;
  }

  std::vector<Branch> Predict(const std::vector<Context>& contexts) const {
    std::vector<Branch> branches;
    float left = 1.0f;
    for (const Context& context : contexts) {
      const std::vector<Continuation> found = New(context, [&](TokenId token) {
        return std::any_of(branches.begin(), branches.end(),
                           [&](const Branch& b) { return b.token == token; });
      });
      if (found.empty()) continue;
      uint64_t total = 0;
      for (const Continuation& continuation : found) total += continuation.count;
      const float acceptance = acceptance_.Value(context.match_length, found.size() == 1);
      for (const Continuation& continuation : found) {
        const float share = static_cast<float>(continuation.count) / static_cast<float>(total);
        branches.push_back({.token = continuation.token, .score = left * acceptance * share, .state = {}});
      }
      left *= 1.0f - acceptance;
    }
    for (Branch& branch : branches) {
      for (const Context& context : contexts) {
        std::optional<Context> after = index_.After(context, branch.token);
        if (after.has_value()) branch.state.push_back(*std::move(after));
      }
    }
    std::erase_if(branches, [](const Branch& branch) { return !(branch.score > 0.0f); });
    return branches;
  }

  // Which contexts would have had `token` among their continuations?
  void Learn(TokenId token) {
    std::vector<TokenId> named;
    for (const Context& context : index_.Contexts()) {
      const std::vector<Continuation> found = New(context, [&](TokenId other) {
        return std::find(named.begin(), named.end(), other) != named.end();
      });
      if (found.empty()) continue;
      const bool right = std::any_of(found.begin(), found.end(),
                                     [&](const Continuation& one) { return one.token == token; });
      acceptance_.Observe(context.match_length, found.size() == 1, right);
      if (right) return;
      for (const Continuation& continuation : found) named.push_back(continuation.token);
    }
  }

  Index index_;
  MatchAcceptance acceptance_;
  size_t length_ = 0;  // Of the tokens so far, and their hash.
  uint64_t hash_ = kEmptyPrefixHash;
};

}  // namespace tandem
