#include "common/engine/cuda/choice_words.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/engine/cuda/kernels/step_words.h"
#include "common/speculation/gumbel.h"

namespace tandem {
namespace {

// The largest distance of a logit below the best one that min-p allows (TokenGaps::KeepMinP).
float MostGap(float min_p) {
  if (min_p == 0.0f) return std::numeric_limits<float>::infinity();
  const double limit = 0.0 - NaturalLog(min_p);
  auto gap = static_cast<float>(limit);
  if (gap > limit) gap = BitsAs<float>(BitsAs<uint32_t>(gap) - 1);
  return gap;
}

}  // namespace

ChoiceWriter::Pairs ChoiceWriter::WriteCounts(absl::Span<const TokenCount> counts) {
  const Pairs pairs = {Place(), static_cast<uint32_t>(counts.size())};
  for (const TokenCount& entry : counts) {
    words_.push_back(static_cast<uint32_t>(entry.token));
    words_.push_back(entry.count);
  }
  return pairs;
}

ChoiceWriter::Pairs ChoiceWriter::WriteBiases(const SamplingParameters& sampling) {
  // If a token has several biases, they are added in the order given.
  std::vector<std::pair<TokenId, float>> sorted = sampling.logit_bias;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  const Pairs pairs = {Place(), static_cast<uint32_t>(sorted.size())};
  for (const auto& [token, bias] : sorted) {
    words_.push_back(static_cast<uint32_t>(token));
    words_.push_back(BitsAs<uint32_t>(bias));
  }
  return pairs;
}

uint32_t ChoiceWriter::Write(const SeededChoice& choice) {
  const SamplingParameters& sampling = *choice.sampling;
  if (known_sampling_ != choice.sampling) {
    known_sampling_ = choice.sampling;
    biases_ = WriteBiases(sampling);
  }
  if (known_counts_.data() != choice.counts.data() || known_counts_.size() != choice.counts.size()) {
    known_counts_ = choice.counts;
    counts_ = WriteCounts(choice.counts);
  }
  const Pairs own_counts = WriteCounts(choice.own_counts);
  const uint32_t allowed_at = choice.allowed.empty() ? 0 : Place();
  words_.insert(words_.end(), choice.allowed.begin(), choice.allowed.end());
  const uint32_t at = Place();
  words_.resize(words_.size() + StepWords::kChoiceWords);
  uint32_t* const place = &words_[at];
  place[StepWords::kSeed] = static_cast<uint32_t>(sampling.seed);
  place[StepWords::kSeed + 1] = static_cast<uint32_t>(sampling.seed >> 32);
  place[StepWords::kPosition] = choice.position;
  place[StepWords::kTopK] = sampling.top_k;
  place[StepWords::kTemperature] = BitsAs<uint32_t>(sampling.temperature);
  place[StepWords::kTopP] = BitsAs<uint32_t>(sampling.top_p);
  place[StepWords::kMostGap] = BitsAs<uint32_t>(MostGap(sampling.min_p));
  place[StepWords::kRepetitionPenalty] = BitsAs<uint32_t>(sampling.repetition_penalty);
  place[StepWords::kPresencePenalty] = BitsAs<uint32_t>(sampling.presence_penalty);
  place[StepWords::kFrequencyPenalty] = BitsAs<uint32_t>(sampling.frequency_penalty);
  place[StepWords::kCountsAt] = counts_.at;
  place[StepWords::kNumCounts] = counts_.size;
  place[StepWords::kOwnCountsAt] = own_counts.at;
  place[StepWords::kNumOwnCounts] = own_counts.size;
  place[StepWords::kBiasesAt] = biases_.at;
  place[StepWords::kNumBiases] = biases_.size;
  place[StepWords::kAllowedAt] = allowed_at;
  return at;
}

}  // namespace tandem
