#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/speculation/gumbel.h"
#include "common/speculation/sampling_parameters.h"
#include "common/speculation/token_gaps.h"

namespace tandem {

// A guess of the target's choice, and its probability of being right.
struct TokenProbability {
  TokenId token = 0;
  float probability = 0.0f;  // In (0, 1].
};
using TokenProbabilities = absl::InlinedVector<TokenProbability, 8>;

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0.0f;
};

// What the target chose at one position.
struct TokenChoice {
  TokenId token = 0;
  // Set if log probabilities were requested.
  float logprob = 0.0f;
  std::vector<TokenLogprob> top_logprobs;  // Most likely first; equal ones by token id.
};

// Computes the target's seeded choice (law 2): argmax over v of log p(v) + G(seed, position, v). p is the
// target's distribution after penalties, bias, allowed and banned tokens and sequences, temperature, top-k,
// top-p and min-p; G is Gumbel noise. A pure function of the logits, the parameters, the tokens so far and
// the position. The drafter uses the same class on its own logits to guess the choice.
//
// Cheap to copy apart from the token history. Not thread-safe.
class TargetSampler {
 public:
  // `prompt` counts for the repetition penalty. `sampling` has been validated.
  TargetSampler(const SamplingParameters& sampling, int32_t vocab_size, absl::Span<const TokenId> prompt);

  // Adds a token to the output, which the penalties and the banned sequences look at.
  void Append(TokenId token);

  // For engines that choose (engine.h): the counts for penalties, each token once, in no order; empty if
  // there are no penalties. CountsAfter: only for the tokens of `path`, the counts that they would have once
  // all of them were appended.
  std::vector<TokenCount> Counts() const;
  std::vector<TokenCount> CountsAfter(absl::Span<const TokenId> path) const;

  // The tokens that may be chosen at `position`, by allowed, banned and early banned tokens, in the format of
  // SeededChoice::allowed; empty: all. Valid as long as a copy of this exists.
  absl::Span<const uint32_t> AllowedAt(uint32_t position) const {
    const TokenSet& set = position < sampling_.early_ban_end ? early_allowed_ : allowed_;
    return set == nullptr ? absl::Span<const uint32_t>() : absl::MakeConstSpan(*set);
  }
  // Length of such a set.
  size_t num_words() const { return (static_cast<size_t>(vocab_size_) + 31) / 32; }
  // Whether any token is banned at any position.
  bool restricts() const {
    return allowed_ != nullptr || early_allowed_ != nullptr || !sampling_.banned_sequences.empty();
  }
  bool AllowsAt(TokenId token, uint32_t position) const {
    const absl::Span<const uint32_t> allowed = AllowedAt(position);
    return allowed.empty() ||
           (allowed[static_cast<size_t>(token) / 32] >> (static_cast<uint32_t>(token) % 32) & 1) != 0;
  }
  // The same, and by the banned sequences if the output was continued by `path`.
  bool Allows(TokenId token, uint32_t position, absl::Span<const TokenId> path = {}) const {
    return AllowsAt(token, position) && !CompletesAny(sampling_.banned_sequences, tail_, path, token);
  }
  // The tokens that would complete a banned sequence after the output and `path`; may name one twice.
  TokenIds CompletingTokens(absl::Span<const TokenId> path) const;

  // The choice for the token at `position` (the number of tokens before it, prompt included). `logits`
  // [vocab_size] is scratch and is overwritten. NaN counts as -infinity, which is never chosen unless there
  // is nothing else; then it is token 0, with log probability -infinity.
  //
  // `num_logprobs` < 0: no log probabilities; else those of the chosen and of this many most likely tokens
  // that have a chance, after penalties, bias, allowed and banned tokens at temperature 1.
  TokenChoice Choose(absl::Span<float> logits, uint32_t position, int num_logprobs = -1);

  // For a drafter, whose logits only resemble the target's: up to `count` (> 0) guesses of what the target
  // chooses at `position`, best first. With temperature above 0 they are ordered by log q + G with the
  // target's own noise, whose first matches with probability at least (1 - TV) / (1 + TV) (law 2); their
  // probabilities are the softmax of these scores, as if the target's logits differed from the drafter's by
  // standard Gumbel errors. At temperature 0 they are the softmax at temperature 1. `logits` [vocab_size] is
  // overwritten. None when no logit is finite.
  TokenProbabilities Guess(absl::Span<float> logits, uint32_t position, size_t count) const;

  // For rules that need the distribution itself (verification_rule.h): what Choose draws from, as weights
  // [vocab_size] that are not negative and whose sum is positive. At temperature 0 all of it is on one token.
  // `logits` is overwritten.
  std::vector<double> Weights(absl::Span<float> logits, uint32_t position) const;
  // The same distribution cut to its `count` (> 0) most likely tokens, most likely first, with probabilities
  // relative to what is kept. None when no logit is finite. `logits` is overwritten.
  TokenProbabilities MostLikely(absl::Span<float> logits, uint32_t position, size_t count) const;
  // As Choose, when `token` was chosen by other means. `logits` is overwritten; without log probabilities it
  // is not looked at and may be empty.
  TokenChoice Describe(absl::Span<float> logits, TokenId token, uint32_t position, int num_logprobs) const;

 private:
  using TokenSet = std::shared_ptr<const std::vector<uint32_t>>;  // Null: all tokens.

  bool CountsPrompt() const { return sampling_.repetition_penalty != 1.0f; }
  bool CountsOutput() const {
    return CountsPrompt() || sampling_.presence_penalty != 0.0f || sampling_.frequency_penalty != 0.0f;
  }
  // All that comes before the temperature.
  void Adjust(absl::Span<float> logits, uint32_t position) const;
  // The choice from adjusted logits, of which at least one is above -infinity.
  TokenId Draw(absl::Span<const float> logits, const PeakLogit& peak, uint32_t position) const;
  void Cut(TokenGaps& gaps) const;
  // Fills in the log probabilities from adjusted logits.
  static void AddLogprobs(absl::Span<const float> logits, const PeakLogit& peak, int num_logprobs,
                          TokenChoice& choice);

  SamplingParameters sampling_;
  int32_t vocab_size_;
  TokenSet allowed_;
  TokenSet early_allowed_;  // Where early bans hold as well.
  // Tokens so far and how often each occurs in the output; empty when no penalty asks.
  absl::flat_hash_map<TokenId, uint32_t> output_counts_;
  // The end of the output, as much of it as banned sequences look at.
  TokenIds tail_;
  size_t tail_length_ = 0;  // That of the longest sequence, without its last token.
};

}  // namespace tandem
