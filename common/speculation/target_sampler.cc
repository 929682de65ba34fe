#include "common/speculation/target_sampler.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <utility>

namespace tandem {
namespace {

// A bias that bans its token.
constexpr float kBan = -100.0f;

void Exclude(absl::Span<const TokenId> tokens, std::vector<uint32_t>& set) {
  for (const TokenId token : tokens)
    set[static_cast<size_t>(token) / 32] &= ~(uint32_t{1} << (static_cast<uint32_t>(token) % 32));
}

void BanOthers(absl::Span<const uint32_t> allowed, absl::Span<float> logits) {
  for (size_t word = 0; word < allowed.size(); ++word) {
    if (allowed[word] == UINT32_MAX) continue;
    const size_t end = std::min(32 * word + 32, logits.size());
    for (size_t token = 32 * word; token < end; ++token) {
      if ((allowed[word] >> (token % 32) & 1) == 0) logits[token] = -std::numeric_limits<float>::infinity();
    }
  }
}

}  // namespace

TargetSampler::TargetSampler(const SamplingParameters& sampling, int32_t vocab_size,
                             absl::Span<const TokenId> prompt)
    : sampling_(sampling), vocab_size_(vocab_size) {
  const bool early = !sampling.early_banned_tokens.empty() && sampling.early_ban_end > 0;
  if (early || !sampling.allowed_tokens.empty() || !sampling.banned_tokens.empty()) {
    std::vector<uint32_t> set(num_words(), sampling.allowed_tokens.empty() ? UINT32_MAX : 0);
    for (const TokenId token : sampling.allowed_tokens)
      set[static_cast<size_t>(token) / 32] |= uint32_t{1} << (static_cast<uint32_t>(token) % 32);
    Exclude(sampling.banned_tokens, set);
    allowed_ = std::make_shared<const std::vector<uint32_t>>(set);
    if (early) Exclude(sampling.early_banned_tokens, set);
    early_allowed_ = std::make_shared<const std::vector<uint32_t>>(std::move(set));
  }
  for (const TokenIds& sequence : sampling.banned_sequences)
    tail_length_ = std::max(tail_length_, sequence.size() - 1);
  if (!CountsPrompt()) return;
  for (TokenId token : prompt) {
    assert(token >= 0 && token < vocab_size);
    output_counts_.try_emplace(token, 0);
  }
}

void TargetSampler::Append(TokenId token) {
  assert(token >= 0 && token < vocab_size_);
  if (CountsOutput()) ++output_counts_[token];
  if (tail_length_ == 0) return;
  if (tail_.size() == tail_length_) tail_.erase(tail_.begin());
  tail_.push_back(token);
}

TokenIds TargetSampler::CompletingTokens(absl::Span<const TokenId> path) const {
  TokenIds tokens;
  for (const TokenIds& sequence : sampling_.banned_sequences) {
    if (EndsBeforeLast(sequence, tail_, path)) tokens.push_back(sequence.back());
  }
  return tokens;
}

std::vector<TokenCount> TargetSampler::Counts() const {
  std::vector<TokenCount> counts;
  counts.reserve(output_counts_.size());
  for (const auto& [token, count] : output_counts_) counts.push_back({token, count});
  return counts;
}

std::vector<TokenCount> TargetSampler::CountsAfter(absl::Span<const TokenId> path) const {
  std::vector<TokenCount> counts;
  if (!CountsOutput()) return counts;
  for (const TokenId token : path) {
    const auto same = std::find_if(counts.begin(), counts.end(),
                                   [&](const TokenCount& entry) { return entry.token == token; });
    if (same != counts.end()) {
      ++same->count;
      continue;
    }
    const auto known = output_counts_.find(token);
    counts.push_back({token, 1 + (known == output_counts_.end() ? 0 : known->second)});
  }
  return counts;
}

void TargetSampler::Adjust(absl::Span<float> logits, uint32_t position) const {
  for (const auto& [token, count] : output_counts_) {
    float& logit = logits[token];
    if (CountsPrompt()) {
      logit = logit > 0.0f ? logit / sampling_.repetition_penalty : logit * sampling_.repetition_penalty;
    }
    if (count == 0) continue;
    logit -= sampling_.presence_penalty;
    logit -= sampling_.frequency_penalty * static_cast<float>(count);
  }
  for (const auto& [token, bias] : sampling_.logit_bias) {
    logits[token] = bias <= kBan ? -std::numeric_limits<float>::infinity() : logits[token] + bias;
  }
  BanOthers(AllowedAt(position), logits);
  for (const TokenIds& sequence : sampling_.banned_sequences) {
    if (EndsBeforeLast(sequence, tail_, {}))
      logits[static_cast<size_t>(sequence.back())] = -std::numeric_limits<float>::infinity();
  }
}

TokenId TargetSampler::Draw(absl::Span<const float> logits, const PeakLogit& peak, uint32_t position) const {
  if (sampling_.temperature == 0.0f) return peak.token;
  TokenGaps gaps(logits, peak, sampling_.temperature);
  Cut(gaps);
  return gaps.DrawWithNoise(sampling_.seed, position);
}

void TargetSampler::Cut(TokenGaps& gaps) const {
  if (sampling_.top_k > 0) gaps.KeepTopK(sampling_.top_k);
  if (sampling_.top_p < 1.0f) gaps.KeepTopP(sampling_.top_p);
  if (sampling_.min_p > 0.0f) gaps.KeepMinP(sampling_.min_p);
}

TokenProbabilities TargetSampler::Guess(absl::Span<float> logits, uint32_t position, size_t count) const {
  assert(logits.size() == static_cast<size_t>(vocab_size_) && count > 0);
  Adjust(logits, position);
  const PeakLogit peak = FindPeak(logits);
  if (!std::isfinite(peak.logit)) return {};
  const auto clamped = [](double probability) {
    return std::clamp(static_cast<float>(probability), std::numeric_limits<float>::min(), 1.0f);
  };
  TokenProbabilities guesses;
  guesses.reserve(count);
  if (sampling_.temperature == 0.0f) {
    const TokenGaps gaps(logits, peak, /*temperature=*/1.0f);
    const auto total = static_cast<double>(gaps.TotalWeight());
    for (const auto& [token, gap] : gaps.MostLikely(count)) {
      guesses.push_back({token, clamped(static_cast<double>(TokenWeight(gap)) / total)});
    }
    return guesses;
  }
  TokenGaps gaps(logits, peak, sampling_.temperature);
  Cut(gaps);
  // Twice as many as asked for stand for all that could be chosen.
  const std::vector<TokenGaps::NoisyToken> best = gaps.BestWithNoise(sampling_.seed, position, 2 * count);
  double total = 0.0;
  for (const TokenGaps::NoisyToken& token : best) total += std::exp(token.score - best.front().score);
  for (size_t i = 0; i < std::min(count, best.size()); ++i) {
    guesses.push_back({best[i].token, clamped(std::exp(best[i].score - best.front().score) / total)});
  }
  return guesses;
}

void TargetSampler::AddLogprobs(absl::Span<const float> logits, const PeakLogit& peak, int num_logprobs,
                                TokenChoice& choice) {
  const TokenGaps gaps(logits, peak, /*temperature=*/1.0f);
  // log softmax(v) = -gap(v) - log(sum of exp(-gap)).
  const double log_total = NaturalLog(std::ldexp(static_cast<double>(gaps.TotalWeight()), -kWeightBits));
  const auto logprob = [&](float gap) { return static_cast<float>(-double{gap} - log_total); };
  choice.logprob = logprob(gaps.gap(choice.token));
  for (const auto& [token, gap] : gaps.MostLikely(static_cast<size_t>(num_logprobs))) {
    choice.top_logprobs.push_back({token, logprob(gap)});
  }
}

TokenChoice TargetSampler::Choose(absl::Span<float> logits, uint32_t position, int num_logprobs) {
  assert(logits.size() == static_cast<size_t>(vocab_size_));
  Adjust(logits, position);
  const PeakLogit peak = FindPeak(logits);
  TokenChoice choice;
  if (peak.logit == -std::numeric_limits<float>::infinity()) {
    if (num_logprobs >= 0) choice.logprob = -std::numeric_limits<float>::infinity();
    return choice;
  }
  choice.token = Draw(logits, peak, position);
  if (num_logprobs >= 0) AddLogprobs(logits, peak, num_logprobs, choice);
  return choice;
}

TokenChoice TargetSampler::Describe(absl::Span<float> logits, TokenId token, uint32_t position,
                                    int num_logprobs) const {
  assert(token >= 0 && token < vocab_size_);
  TokenChoice choice;
  choice.token = token;
  if (num_logprobs < 0) return choice;
  assert(logits.size() == static_cast<size_t>(vocab_size_));
  Adjust(logits, position);
  const PeakLogit peak = FindPeak(logits);
  if (peak.logit == -std::numeric_limits<float>::infinity()) {
    choice.logprob = -std::numeric_limits<float>::infinity();
  } else {
    AddLogprobs(logits, peak, num_logprobs, choice);
  }
  return choice;
}

std::vector<double> TargetSampler::Weights(absl::Span<float> logits, uint32_t position) const {
  assert(logits.size() == static_cast<size_t>(vocab_size_));
  Adjust(logits, position);
  const PeakLogit peak = FindPeak(logits);
  if (peak.logit == -std::numeric_limits<float>::infinity() || sampling_.temperature == 0.0f) {
    std::vector<double> weights(logits.size());
    weights[static_cast<size_t>(peak.token)] = 1.0;
    return weights;
  }
  TokenGaps gaps(logits, peak, sampling_.temperature);
  Cut(gaps);
  return gaps.Weights();
}

TokenProbabilities TargetSampler::MostLikely(absl::Span<float> logits, uint32_t position,
                                             size_t count) const {
  assert(logits.size() == static_cast<size_t>(vocab_size_) && count > 0);
  Adjust(logits, position);
  const PeakLogit peak = FindPeak(logits);
  if (!std::isfinite(peak.logit)) return {};
  if (sampling_.temperature == 0.0f) return {{peak.token, 1.0f}};
  TokenGaps gaps(logits, peak, sampling_.temperature);
  Cut(gaps);
  TokenProbabilities most_likely;
  double total = 0.0;
  const TokenGaps::LikelyTokens likely = gaps.MostLikely(count);
  for (const auto& [token, gap] : likely) {
    // What has no weight is never chosen.
    if (TokenWeight(gap) == 0) break;
    total += static_cast<double>(TokenWeight(gap));
    most_likely.push_back({token});
  }
  for (size_t i = 0; i < most_likely.size(); ++i) {
    most_likely[i].probability = static_cast<float>(static_cast<double>(TokenWeight(likely[i].gap)) / total);
  }
  return most_likely;
}

}  // namespace tandem
