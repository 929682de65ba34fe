#include "router/drafters/features/token_ngrams.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem::router {
namespace {

constexpr int kTokenBits = 21;
constexpr uint64_t kTokenMask = (uint64_t{1} << kTokenBits) - 1;

// Ids beyond the packing's range share one code, and kStart has one that no id has.
uint64_t Code(TokenId token) {
  if (token == TokenNgrams::kStart) return kTokenMask;
  return std::min<uint64_t>(static_cast<uint32_t>(token), kTokenMask - 1);
}

uint64_t Key(uint64_t a, uint64_t b) {
  return a << kTokenBits | b;
}

using Counts = absl::flat_hash_map<uint64_t, uint32_t>;

// D = n1 / (n1 + 2 n2), kept away from the ends that tiny counts give.
double Discount(const Counts& counts) {
  double once = 0;
  double twice = 0;
  for (const auto& [key, count] : counts) {
    once += count == 1;
    twice += count == 2;
  }
  if (once == 0) return 0.5;
  return std::clamp(once / (once + 2 * twice), 0.1, 0.9);
}

struct Context {
  double total = 0;     // Sum of counts after the context.
  double distinct = 0;  // Number of different tokens after it.
};

using Contexts = absl::flat_hash_map<uint64_t, Context>;

// The contexts of n-grams: their keys without the last token.
Contexts SumByContext(const Counts& counts) {
  Contexts contexts;
  for (const auto& [key, count] : counts) {
    Context& context = contexts[key >> kTokenBits];
    context.total += count;
    ++context.distinct;
  }
  return contexts;
}

// How many different tokens stand before the rest of each n-gram: what Kneser-Ney counts below the top order.
Counts CountContinuations(const Counts& counts, uint64_t mask) {
  Counts continuations;
  for (const auto& [key, count] : counts) ++continuations[key & mask];
  return continuations;
}

template <class Map>
std::vector<uint64_t> SortedKeys(const Map& map) {
  std::vector<uint64_t> keys;
  keys.reserve(map.size());
  for (const auto& [key, value] : map) keys.push_back(key);
  std::sort(keys.begin(), keys.end());
  return keys;
}

absl::Status CheckKeys(absl::string_view field, const google::protobuf::RepeatedField<uint64_t>& keys,
                       int num_values, int bits) {
  if (keys.size() != num_values) {
    return absl::InvalidArgumentError(
        absl::StrCat("ngrams.", field, ": ", keys.size(), " keys with ", num_values, " values"));
  }
  if (static_cast<size_t>(keys.size()) > 2 * TokenNgrams::kMaxTrainingTokens) {
    return absl::InvalidArgumentError(absl::StrCat("ngrams.", field, ": ", keys.size(), " keys, too many"));
  }
  for (int i = 0; i < keys.size(); ++i) {
    if (keys[i] >> bits != 0 || (i > 0 && keys[i] <= keys[i - 1])) {
      return absl::InvalidArgumentError(absl::StrCat("ngrams.", field, "[", i, "]: ", keys[i],
                                                     ", expected increasing keys of ", bits, " bits"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLogs(absl::string_view field, const google::protobuf::RepeatedField<float>& values) {
  for (int i = 0; i < values.size(); ++i) {
    // Not "> 0": that would let NaN pass. Rounding may lift a logarithm of 1 above 0 by a little.
    if (!(values[i] <= 1e-3f && values[i] > -1e3f)) {
      return absl::InvalidArgumentError(
          absl::StrCat("ngrams.", field, "[", i, "]: ", values[i], ", expected a logarithm of at most 0"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

TokenNgrams::TokenNgrams(uint32_t vocab_size)
    : unknown_(static_cast<float>(-std::log(std::max(vocab_size, 1u)))) {}

TokenNgrams TokenNgrams::Train(absl::Span<const absl::Span<const TokenId>> texts, uint32_t vocab_size) {
  Counts trigrams;
  size_t num_tokens = 0;
  for (const absl::Span<const TokenId> text : texts) {
    uint64_t context = Key(Code(kStart), Code(kStart));
    for (const TokenId token : text) {
      if (++num_tokens > kMaxTrainingTokens) break;
      const uint64_t key = context << kTokenBits | Code(token);
      ++trigrams[key];
      context = key & (kTokenMask << kTokenBits | kTokenMask);
    }
  }
  TokenNgrams model(vocab_size);
  if (trigrams.empty()) return model;
  const Counts bigrams = CountContinuations(trigrams, kTokenMask << kTokenBits | kTokenMask);
  const Counts unigrams = CountContinuations(bigrams, kTokenMask);

  double total = 0;
  for (const auto& [key, count] : unigrams) total += count;
  const double discount = Discount(unigrams);
  const double uniform = discount * static_cast<double>(unigrams.size()) / total / std::max(vocab_size, 1u);
  model.unknown_ = static_cast<float>(std::log(uniform));
  for (const auto& [key, count] : unigrams) {
    model.unigrams_[key].log_probability = static_cast<float>(std::log((count - discount) / total + uniform));
  }

  const double bigram_discount = Discount(bigrams);
  const Contexts bigram_contexts = SumByContext(bigrams);
  for (const auto& [key, context] : bigram_contexts) {
    // A context at the start of a text is no token of it, and has no probability.
    Entry& entry = model.unigrams_.try_emplace(key, Entry{.log_probability = model.unknown_}).first->second;
    entry.backoff = static_cast<float>(std::log(bigram_discount * context.distinct / context.total));
  }
  for (const auto& [key, count] : bigrams) {
    const Context& context = bigram_contexts.at(key >> kTokenBits);
    const double shorter = std::exp(model.unigrams_.at(key & kTokenMask).log_probability);
    model.bigrams_[key].log_probability = static_cast<float>(
        std::log((count - bigram_discount + bigram_discount * context.distinct * shorter) / context.total));
  }

  const double trigram_discount = Discount(trigrams);
  const Contexts trigram_contexts = SumByContext(trigrams);
  for (const auto& [key, context] : trigram_contexts) {
    Entry& entry = model.bigrams_.try_emplace(key, Entry{.log_probability = model.unknown_}).first->second;
    entry.backoff = static_cast<float>(std::log(trigram_discount * context.distinct / context.total));
  }
  for (const auto& [key, count] : trigrams) {
    const Context& context = trigram_contexts.at(key >> kTokenBits);
    const uint64_t bigram = key & (kTokenMask << kTokenBits | kTokenMask);
    const double shorter = std::exp(model.bigrams_.at(bigram).log_probability);
    model.trigrams_[key] = static_cast<float>(
        std::log((count - trigram_discount + trigram_discount * context.distinct * shorter) / context.total));
  }
  return model;
}

float TokenNgrams::LogProbability(TokenId before_last, TokenId last, TokenId token) const {
  const uint64_t context = Key(Code(before_last), Code(last));
  const uint64_t code = Code(token);
  if (const auto found = trigrams_.find(context << kTokenBits | code); found != trigrams_.end()) {
    return found->second;
  }
  float backoff = 0.0f;
  if (const auto found = bigrams_.find(context); found != bigrams_.end()) backoff = found->second.backoff;
  if (const auto found = bigrams_.find(Key(Code(last), code)); found != bigrams_.end()) {
    return backoff + found->second.log_probability;
  }
  if (const auto found = unigrams_.find(Code(last)); found != unigrams_.end())
    backoff += found->second.backoff;
  const auto found = unigrams_.find(code);
  return backoff + (found == unigrams_.end() ? unknown_ : found->second.log_probability);
}

double TokenNgrams::NatsPerToken(absl::Span<const TokenId> tokens) const {
  if (tokens.empty()) return 0.0;
  double sum = 0.0;
  TokenId before_last = kStart;
  TokenId last = kStart;
  for (const TokenId token : tokens) {
    sum -= LogProbability(before_last, last, token);
    before_last = last;
    last = token;
  }
  return sum / static_cast<double>(tokens.size());
}

void TokenNgrams::Save(v1::TokenNgramsState* state) const {
  state->set_unknown(unknown_);
  for (const uint64_t key : SortedKeys(unigrams_)) {
    state->add_unigrams(key);
    state->add_unigram_log_probs(unigrams_.at(key).log_probability);
    state->add_unigram_backoffs(unigrams_.at(key).backoff);
  }
  for (const uint64_t key : SortedKeys(bigrams_)) {
    state->add_bigrams(key);
    state->add_bigram_log_probs(bigrams_.at(key).log_probability);
    state->add_bigram_backoffs(bigrams_.at(key).backoff);
  }
  for (const uint64_t key : SortedKeys(trigrams_)) {
    state->add_trigrams(key);
    state->add_trigram_log_probs(trigrams_.at(key));
  }
}

absl::StatusOr<TokenNgrams> TokenNgrams::Load(const v1::TokenNgramsState& state) {
  TANDEM_RETURN_IF_ERROR(CheckKeys("unigrams", state.unigrams(), state.unigram_log_probs_size(), kTokenBits));
  TANDEM_RETURN_IF_ERROR(
      CheckKeys("bigrams", state.bigrams(), state.bigram_log_probs_size(), 2 * kTokenBits));
  TANDEM_RETURN_IF_ERROR(
      CheckKeys("trigrams", state.trigrams(), state.trigram_log_probs_size(), 3 * kTokenBits));
  if (state.unigram_backoffs_size() != state.unigrams_size() ||
      state.bigram_backoffs_size() != state.bigrams_size()) {
    return absl::InvalidArgumentError("ngrams: expected as many backoffs as unigrams and bigrams");
  }
  TANDEM_RETURN_IF_ERROR(CheckLogs("unigram_log_probs", state.unigram_log_probs()));
  TANDEM_RETURN_IF_ERROR(CheckLogs("unigram_backoffs", state.unigram_backoffs()));
  TANDEM_RETURN_IF_ERROR(CheckLogs("bigram_log_probs", state.bigram_log_probs()));
  TANDEM_RETURN_IF_ERROR(CheckLogs("bigram_backoffs", state.bigram_backoffs()));
  TANDEM_RETURN_IF_ERROR(CheckLogs("trigram_log_probs", state.trigram_log_probs()));
  if (!(state.unknown() <= 0.0f && state.unknown() > -1e3f)) {
    return absl::InvalidArgumentError(
        absl::StrCat("ngrams.unknown: ", state.unknown(), ", expected a logarithm of at most 0"));
  }
  TokenNgrams model;
  model.unknown_ = state.unknown();
  for (int i = 0; i < state.unigrams_size(); ++i) {
    model.unigrams_[state.unigrams(i)] = {state.unigram_log_probs(i), state.unigram_backoffs(i)};
  }
  for (int i = 0; i < state.bigrams_size(); ++i) {
    model.bigrams_[state.bigrams(i)] = {state.bigram_log_probs(i), state.bigram_backoffs(i)};
  }
  for (int i = 0; i < state.trigrams_size(); ++i) {
    model.trigrams_[state.trigrams(i)] = state.trigram_log_probs(i);
  }
  return model;
}

}  // namespace tandem::router
