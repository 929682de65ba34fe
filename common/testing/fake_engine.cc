#include "common/testing/fake_engine.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "common/testing/reference_choice.h"

namespace tandem {
namespace {

constexpr uint64_t kEmptyState = 0x66616b65;

// What a row reads of the slots before it, folded in position order.
uint64_t Attend(uint64_t seen, uint64_t slot) {
  return HashCombine(seen, slot);
}
uint64_t KeysAndValues(uint64_t seen, TokenId token, AdapterId adapter) {
  const uint64_t plain = HashCombine(~seen, static_cast<uint32_t>(token));
  return adapter == kNoAdapter ? plain : HashCombine(plain, adapter);
}

// In [0, 1), from the 53 highest bits.
double Uniform(uint64_t hash) {
  return static_cast<double>(hash >> 11) * 0x1p-53;
}

// Grows with the logit of `token`, and is cheaper.
uint64_t Rank(uint64_t seed, uint64_t state, TokenId token) {
  return HashCombine(HashCombine(seed, state), static_cast<uint32_t>(token)) >> 11;
}

// The best token of a plain engine, leaving out `except`.
TokenId BestToken(uint64_t seed, uint64_t state, int32_t vocab_size, TokenId except = -1) {
  TokenId best = -1;
  for (TokenId token = 0; token < vocab_size; ++token) {
    if (token == except) continue;
    if (best < 0 || Rank(seed, state, token) > Rank(seed, state, best)) best = token;
  }
  return best;
}

}  // namespace

FakeEngine::FakeEngine(const Options& options)
    : options_(options), slots_(size_t{options.num_blocks} * kBlockTokens) {
  assert(options.vocab_size >= (options.agreement >= 0 ? 2 : 1) && options.max_context > 0);
  config_.architecture = "Fake";
  config_.vocab_size = options.vocab_size;
  config_.max_context = options.max_context;
  config_.hidden_size = kHiddenSize;
  config_.num_layers = kNumLayers;
}

SlotId FakeEngine::Slot(const RowContext& context, uint32_t position) const {
  if (position >= context.num_committed) return context.tail[position - context.num_committed];
  return context.blocks[position / kBlockTokens] * kBlockTokens + position % kBlockTokens;
}

absl::Status FakeEngine::CheckRow(const StepRow& row) const {
  if (row.token < 0 || row.token >= options_.vocab_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("token ", row.token, ", expected [0, ", options_.vocab_size, ")"));
  }
  const uint64_t length = uint64_t{row.context.num_committed} + row.context.tail.size();
  if (length == 0 || length > static_cast<uint64_t>(options_.max_context)) {
    return absl::InvalidArgumentError(
        absl::StrCat("context of ", length, " tokens, expected [1, ", options_.max_context, "]"));
  }
  if (row.context.num_committed > uint64_t{row.context.blocks.size()} * kBlockTokens) {
    return absl::InvalidArgumentError(absl::StrCat(row.context.num_committed, " committed tokens in ",
                                                   row.context.blocks.size(), " blocks"));
  }
  for (BlockId block : row.context.blocks) {
    if (block >= options_.num_blocks) {
      return absl::InvalidArgumentError(
          absl::StrCat("block ", block, ", expected below ", options_.num_blocks));
    }
  }
  if (row.adapter > options_.num_adapters) {
    return absl::InvalidArgumentError(
        absl::StrCat("adapter ", row.adapter, ", expected at most ", options_.num_adapters));
  }
  for (SlotId slot : row.context.tail) {
    if (slot >= slots_.size()) {
      return absl::InvalidArgumentError(absl::StrCat("slot ", slot, ", expected below ", slots_.size()));
    }
  }
  return absl::OkStatus();
}

absl::Status FakeEngine::CheckChoice(const StepRow& row) const {
  const SeededChoice& choice = *row.choice;
  if (!options_.chooses || row.logits != nullptr || choice.sampling == nullptr || choice.token == nullptr) {
    return absl::InvalidArgumentError("a choice that cannot be made, or for a row with logits as well");
  }
  TANDEM_RETURN_IF_ERROR(Validate(*choice.sampling, options_.vocab_size));
  for (const absl::Span<const TokenCount> counts : {choice.counts, choice.own_counts}) {
    absl::flat_hash_set<TokenId> seen;
    for (const TokenCount& entry : counts) {
      if (entry.token >= 0 && entry.token < options_.vocab_size && seen.insert(entry.token).second) continue;
      return absl::InvalidArgumentError(absl::StrCat("counts of token ", entry.token, ", or two of them"));
    }
  }
  return absl::OkStatus();
}

absl::Status FakeEngine::CheckFeatures(const FeatureRequest& request) const {
  if (!options_.has_features || request.states == nullptr || request.num_states() == 0) {
    return absl::InvalidArgumentError("features of an engine that has none, or of no state");
  }
  for (size_t i = 0; i < request.layers.size(); ++i) {
    if (request.layers[i] <= kNumLayers && (i == 0 || request.layers[i] > request.layers[i - 1])) continue;
    return absl::InvalidArgumentError(absl::StrCat("features after layer ", request.layers[i]));
  }
  return absl::OkStatus();
}

absl::Status FakeEngine::Step(absl::Span<const StepRow> rows) {
  if (!next_failure_.ok()) return std::exchange(next_failure_, absl::OkStatus());
  if (rows.empty() || rows.size() > options_.max_rows) {
    return absl::InvalidArgumentError(
        absl::StrCat(rows.size(), " rows, expected [1, ", options_.max_rows, "]"));
  }
  absl::flat_hash_set<SlotId> written;
  for (const StepRow& row : rows) {
    TANDEM_RETURN_IF_ERROR(CheckRow(row));
    if (row.choice != nullptr) TANDEM_RETURN_IF_ERROR(CheckChoice(row));
    if (row.features != nullptr) TANDEM_RETURN_IF_ERROR(CheckFeatures(*row.features));
    const SlotId slot = Slot(row.context, row.context.length() - 1);
    if (!written.insert(slot).second) {
      return absl::InvalidArgumentError(absl::StrCat("two rows write slot ", slot));
    }
  }
  for (const StepRow& row : rows) {
    for (uint32_t position = 0; position + 1 < row.context.length(); ++position) {
      const SlotId slot = Slot(row.context, position);
      if (slots_[slot].has_value() || written.contains(slot)) continue;
      return absl::InvalidArgumentError(absl::StrCat("position ", position, " of a context of ",
                                                     row.context.length(), " tokens is slot ", slot,
                                                     ", which was never written"));
    }
  }

  // A row reads only what rows at earlier positions write.
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [rows](size_t a, size_t b) {
    return rows[a].context.length() < rows[b].context.length();
  });
  // Whatever stood in a slot before is gone for every row, as it is when a layer writes all its keys first.
  for (SlotId slot : written) slots_[slot] = HashCombine(kEmptyState, slot);
  for (size_t index : order) {
    const StepRow& row = rows[index];
    uint64_t seen = kEmptyState;
    for (uint32_t position = 0; position + 1 < row.context.length(); ++position) {
      seen = Attend(seen, *slots_[Slot(row.context, position)]);
    }
    const uint64_t state = KeysAndValues(seen, row.token, row.adapter);
    slots_[Slot(row.context, row.context.length() - 1)] = state;
    if (row.logits != nullptr) {
      WriteLogits(state, absl::MakeSpan(row.logits, static_cast<size_t>(options_.vocab_size)));
      ++num_logits_;
    }
    if (row.features != nullptr) {
      WriteFeatures(state, *row.features);
      ++num_feature_rows_;
    }
    if (row.choice != nullptr) {
      std::vector<float> logits(static_cast<size_t>(options_.vocab_size));
      WriteLogits(state, absl::MakeSpan(logits));
      *row.choice->token = ReferenceAnswer(*row.choice, absl::MakeSpan(logits));
      ++num_choices_;
    }
  }
  ++num_steps_;
  num_rows_ += rows.size();
  return absl::OkStatus();
}

absl::Status FakeEngine::CopyKv(absl::Span<const KvCopy> copies) {
  for (const KvCopy& copy : copies) {
    if (copy.from >= slots_.size() || copy.to >= slots_.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("copy from slot ", copy.from, " to ", copy.to, ", expected below ", slots_.size()));
    }
  }
  for (const KvCopy& copy : copies) slots_[copy.to] = slots_[copy.from];
  return absl::OkStatus();
}

void FakeEngine::WriteLogits(uint64_t state, absl::Span<float> logits) const {
  for (TokenId token = 0; token < options_.vocab_size; ++token) {
    const double uniform = static_cast<double>(Rank(options_.seed, state, token)) * 0x1p-53;
    logits[token] = options_.sharpness * static_cast<float>(-std::log1p(-uniform));
  }
  if (options_.agreement < 0) return;
  const TokenId own = BestToken(options_.seed, state, options_.vocab_size);
  const TokenId other = BestToken(options_.agree_with_seed, state, options_.vocab_size);
  const bool agree = Uniform(HashCombine(HashCombine(options_.seed, ~state), 1)) < options_.agreement;
  if (agree) {
    std::swap(logits[own], logits[other]);
  } else if (own == other) {
    std::swap(logits[own], logits[BestToken(options_.seed, state, options_.vocab_size, own)]);
  }
}

uint64_t FakeEngine::StateAfter(absl::Span<const TokenId> tokens, AdapterId adapter) {
  assert(!tokens.empty());
  uint64_t seen = kEmptyState;
  uint64_t state = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) seen = Attend(seen, state);
    state = KeysAndValues(seen, tokens[i], adapter);
  }
  return state;
}

void FakeEngine::WriteFeatures(uint64_t state, const FeatureRequest& request) {
  constexpr uint32_t kNormed = UINT32_MAX;
  for (uint32_t i = 0; i < request.num_states(); ++i) {
    const uint32_t which = i < request.layers.size() ? request.layers[i] : kNormed;
    for (int32_t j = 0; j < kHiddenSize; ++j) {
      const uint64_t hash = HashCombine(HashCombine(state, which), static_cast<uint64_t>(j));
      request.states[i * kHiddenSize + static_cast<uint32_t>(j)] =
          static_cast<float>(2.0 * Uniform(hash) - 1.0);
    }
  }
}

std::vector<float> FakeEngine::ReferenceLogits(absl::Span<const TokenId> tokens, AdapterId adapter) const {
  std::vector<float> logits(static_cast<size_t>(options_.vocab_size));
  WriteLogits(StateAfter(tokens, adapter), absl::MakeSpan(logits));
  return logits;
}

std::vector<float> FakeEngine::ReferenceState(absl::Span<const TokenId> tokens) const {
  return ReferenceFeatures(tokens, {}, /*final_norm=*/true);
}

std::vector<float> FakeEngine::ReferenceFeatures(absl::Span<const TokenId> tokens,
                                                 absl::Span<const uint32_t> layers, bool final_norm) const {
  FeatureRequest request{.layers = layers, .final_norm = final_norm};
  std::vector<float> states(size_t{request.num_states()} * kHiddenSize);
  request.states = states.data();
  WriteFeatures(StateAfter(tokens), request);
  return states;
}

TokenId FakeEngine::ReferenceChoice(absl::Span<const TokenId> tokens, AdapterId adapter) const {
  const std::vector<float> logits = ReferenceLogits(tokens, adapter);
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace tandem
