#pragma once

#include <cstdint>

#include "common/engine/cuda/kernels/block.h"
#include "common/engine/cuda/kernels/seeded_noise.h"
#include "common/engine/cuda/kernels/step_words.h"

namespace tandem {

// Makes the seeded choice (law 2) for each wanted row that asks for one. It is always the token of
// TargetSampler::Choose, its CPU reference. The logits of these rows are overwritten, the others stay. Grid
// (rows).
//
// A cut is found digit by digit. Each of eight passes over the vocabulary makes a histogram of the next eight
// bits of (gap, token), counted or weighed in integers. The histogram tells which of 256 parts contains the
// cut. Integer sums do not depend on the order in which threads add.
struct ChoiceKernel {
  static constexpr uint32_t kBins = 256;
  static constexpr uint64_t kFinite = (uint64_t{0x7f7fffff} << 32) | 0x7fffffffu;

  StepWords step;
  DeviceSpan<float> logits;     // [rows, vocab], of the wanted rows from first_wanted on.
  DeviceSpan<uint32_t> chosen;  // [max_rows], of all wanted rows.
  uint32_t first_wanted = 0;
  uint32_t vocab_size = 0;

  // How to choose a row's token, from the step's words.
  struct Row {
    uint64_t seed;
    uint32_t position;
    uint32_t top_k;  // 0, or at least the vocabulary's size: no limit.
    float temperature;
    float top_p;
    float most_gap;
    float repetition_penalty;
    float presence_penalty;
    float frequency_penalty;
    uint32_t at;  // The place of all this in the step's words.
  };

  struct Shared {
    DeviceSpan<uint64_t> bins;   // [kBins]
    DeviceSpan<uint64_t> best;   // [warps]
    DeviceSpan<double> scores;   // [warps]
    DeviceSpan<uint64_t> found;  // [2]: the prefix, and the rest of the target.
  };

  template <typename Block>
  TANDEM_DEVICE void operator()(Block& block) const {
    const uint32_t wanted_index = first_wanted + block.index_x();
    if (wanted_index >= step.num_wanted() || step.choice(wanted_index) == 0) return;
    const Row row = RowAt(step.choice(wanted_index));
    const DeviceSpan<float> own = {logits.data + uint64_t{block.index_x()} * vocab_size, vocab_size};
    const uint32_t warps = block.num_threads() / kWarpThreads;
    Shared shared;
    shared.bins = block.template Shared<uint64_t>(0, kBins);
    shared.best = block.template Shared<uint64_t>(kBins * 8, warps);
    shared.scores = block.template Shared<double>((kBins + warps) * 8, warps);
    shared.found = block.template Shared<uint64_t>((kBins + 2 * warps) * 8, 2);
    Mask(block, row, own);
    Adjust(block, row, own);
    const uint64_t peak = FindPeak(block, shared, own);
    const auto token = ~static_cast<uint32_t>(peak);
    // The greatest logit is -infinity: no token has a chance.
    if (peak >> 32 == OrderOf(-1.0f / 0.0f)) {
      if (block.thread() == 0) chosen[wanted_index] = 0;
      return;
    }
    if (row.temperature == 0.0f) {
      if (block.thread() == 0) chosen[wanted_index] = token;
      return;
    }
    const Gaps gaps = {own, Sanitised(own[token]) + 0.0f, row.temperature};
    uint64_t cut = kFinite;
    if (row.top_k > 0 && row.top_k < vocab_size) cut = FindCut(block, shared, gaps, cut, row.top_k, 0.0f);
    if (row.top_p < 1.0f) cut = FindCut(block, shared, gaps, cut, 0, row.top_p);
    const uint64_t most = uint64_t{BitsAs<uint32_t>(row.most_gap)} << 32 | 0x7fffffffu;
    if (most < cut) cut = most;
    const uint32_t drawn = Draw(block, shared, gaps, cut, row);
    if (block.thread() == 0) chosen[wanted_index] = drawn;
  }

 private:
  struct Gaps {
    DeviceSpan<float> logits;
    float best;
    float temperature;

    TANDEM_DEVICE uint64_t Key(uint32_t token) const {
      const float logit = logits[token];
      const float limited = logit > 3.4028234663852886e38f ? 3.4028234663852886e38f : logit;
      const float distance = best - limited;
      const float gap = (distance >= 0.0f ? distance : 1.0f / 0.0f) / temperature;
      return uint64_t{BitsAs<uint32_t>(gap)} << 32 | token;
    }
  };

  static TANDEM_DEVICE float Sanitised(float logit) {
    const float limited = logit > 3.4028234663852886e38f ? 3.4028234663852886e38f : logit;
    return limited == limited ? limited : -1.0f / 0.0f;
  }
  // Sorts as the floats do; -0 and 0 are equal.
  static TANDEM_DEVICE uint32_t OrderOf(float logit) {
    const auto bits = BitsAs<uint32_t>(Sanitised(logit) + 0.0f);
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  }
  static TANDEM_DEVICE float GapOf(uint64_t key) { return BitsAs<float>(static_cast<uint32_t>(key >> 32)); }

  TANDEM_DEVICE float FloatAt(uint32_t place) const { return BitsAs<float>(step.words[place]); }
  TANDEM_DEVICE Row RowAt(uint32_t at) const {
    Row row;
    row.seed = uint64_t{step.words[at + StepWords::kSeed + 1]} << 32 | step.words[at + StepWords::kSeed];
    row.position = step.words[at + StepWords::kPosition];
    row.top_k = step.words[at + StepWords::kTopK];
    row.temperature = FloatAt(at + StepWords::kTemperature);
    row.top_p = FloatAt(at + StepWords::kTopP);
    row.most_gap = FloatAt(at + StepWords::kMostGap);
    row.repetition_penalty = FloatAt(at + StepWords::kRepetitionPenalty);
    row.presence_penalty = FloatAt(at + StepWords::kPresencePenalty);
    row.frequency_penalty = FloatAt(at + StepWords::kFrequencyPenalty);
    row.at = at;
    return row;
  }

  static TANDEM_DEVICE float Penalised(const Row& row, float logit, uint32_t count) {
    if (row.repetition_penalty != 1.0f) {
      logit = logit > 0.0f ? logit / row.repetition_penalty : logit * row.repetition_penalty;
    }
    if (count > 0) {
      logit -= row.presence_penalty;
      logit -= row.frequency_penalty * static_cast<float>(count);
    }
    return logit;
  }

  // Takes every chance from tokens that the constraint does not allow.
  template <typename Block>
  TANDEM_DEVICE void Mask(Block& block, const Row& row, DeviceSpan<float> own) const {
    const uint32_t allowed_at = step.words[row.at + StepWords::kAllowedAt];
    if (allowed_at == 0) return;
    for (uint32_t token = block.thread(); token < vocab_size; token += block.num_threads()) {
      const uint32_t word = step.words[allowed_at + token / 32];
      if ((word >> token % 32 & 1u) == 0) own[token] = -1.0f / 0.0f;
    }
    block.Sync();
  }

  // A token occurs once, or twice if it has a count of its own; then only its own count is used.
  template <typename Block>
  TANDEM_DEVICE void Penalise(Block& block, const Row& row, DeviceSpan<float> own) const {
    const uint32_t own_at = step.words[row.at + StepWords::kOwnCountsAt];
    const uint32_t num_own = step.words[row.at + StepWords::kNumOwnCounts];
    for (uint32_t i = block.thread(); i < num_own; i += block.num_threads()) {
      float& logit = own[step.words[own_at + 2 * i]];
      logit = Penalised(row, logit, step.words[own_at + 2 * i + 1]);
    }
    const uint32_t counts_at = step.words[row.at + StepWords::kCountsAt];
    const uint32_t num_counts = step.words[row.at + StepWords::kNumCounts];
    for (uint32_t i = block.thread(); i < num_counts; i += block.num_threads()) {
      const uint32_t token = step.words[counts_at + 2 * i];
      bool has_own = false;
      for (uint32_t j = 0; j < num_own && !has_own; ++j) has_own = step.words[own_at + 2 * j] == token;
      if (!has_own) own[token] = Penalised(row, own[token], step.words[counts_at + 2 * i + 1]);
    }
  }

  template <typename Block>
  TANDEM_DEVICE void Adjust(Block& block, const Row& row, DeviceSpan<float> own) const {
    Penalise(block, row, own);
    block.Sync();
    // The thread that has a token's first bias adds all biases of that token.
    const uint32_t biases_at = step.words[row.at + StepWords::kBiasesAt];
    const uint32_t num_biases = step.words[row.at + StepWords::kNumBiases];
    for (uint32_t i = block.thread(); i < num_biases; i += block.num_threads()) {
      const uint32_t token = step.words[biases_at + 2 * i];
      if (i > 0 && step.words[biases_at + 2 * (i - 1)] == token) continue;
      for (uint32_t j = i; j < num_biases && step.words[biases_at + 2 * j] == token; ++j) {
        const float bias = FloatAt(biases_at + 2 * j + 1);
        own[token] = bias <= -100.0f ? -1.0f / 0.0f : own[token] + bias;
      }
    }
    block.Sync();
  }

  // The token with the greatest logit, the lowest among equal ones, as order << 32 | ~token.
  template <typename Block>
  TANDEM_DEVICE uint64_t FindPeak(Block& block, const Shared& shared, DeviceSpan<float> own) const {
    uint64_t best = 0;
    for (uint32_t token = block.thread(); token < vocab_size; token += block.num_threads()) {
      const uint64_t key = uint64_t{OrderOf(own[token])} << 32 | static_cast<uint32_t>(~token);
      if (key > best) best = key;
    }
    for (uint32_t mask = kWarpThreads / 2; mask > 0; mask /= 2) {
      const uint64_t other = block.ShuffleXor(best, mask);
      if (other > best) best = other;
    }
    if (block.thread() % kWarpThreads == 0) shared.best[block.thread() / kWarpThreads] = best;
    block.Sync();
    best = 0;
    for (uint32_t warp = 0; warp < block.num_threads() / kWarpThreads; ++warp) {
      if (shared.best[warp] > best) best = shared.best[warp];
    }
    block.Sync();
    return best;
  }

  // Finds the shortest beginning of the order (gap, token), up to `cut`, that has `count` tokens, or the
  // share `top_p` of the weight if `count` is 0. If there are fewer than `count` tokens up to `cut`, takes
  // all of them. Returns the last key.
  template <typename Block>
  TANDEM_DEVICE uint64_t FindCut(Block& block, const Shared& shared, const Gaps& gaps, uint64_t cut,
                                 uint64_t count, float top_p) const {
    uint64_t prefix = 0;
    uint64_t target = count;
    for (int shift = 56; shift >= 0; shift -= 8) {
      for (uint32_t i = block.thread(); i < kBins; i += block.num_threads()) shared.bins[i] = 0;
      block.Sync();
      for (uint32_t token = block.thread(); token < vocab_size; token += block.num_threads()) {
        const uint64_t key = gaps.Key(token);
        // The first pass has no prefix, and a shift by 64 bits is undefined.
        const bool has_prefix = shift == 56 || key >> (shift + 8) == prefix;
        if (key > cut || !has_prefix) continue;
        const uint64_t measure = count > 0 ? 1 : DeviceTokenWeight(GapOf(key));
        block.AtomicAdd(shared.bins[key >> shift & (kBins - 1)], measure);
      }
      block.Sync();
      if (block.thread() == 0) {
        if (shift == 56 && count == 0) target = Target(shared, top_p);
        uint32_t bin = 0;
        while (bin < kBins && shared.bins[bin] < target) target -= shared.bins[bin++];
        shared.found[0] = bin < kBins ? prefix << 8 | bin : ~uint64_t{0};
        shared.found[1] = target;
      }
      block.Sync();
      prefix = shared.found[0];
      target = shared.found[1];
      block.Sync();
      if (prefix == ~uint64_t{0}) return cut;
    }
    return prefix;
  }

  static TANDEM_DEVICE uint64_t Target(const Shared& shared, float top_p) {
    uint64_t total = 0;
    for (uint32_t bin = 0; bin < kBins; ++bin) total += shared.bins[bin];
    const double share = static_cast<double>(top_p) * static_cast<double>(total);
    // Rounds up by hand: shares are below 2^63.
    auto target = static_cast<uint64_t>(share);
    if (static_cast<double>(target) < share) ++target;
    if (target > total) target = total;
    return target > 0 ? target : 1;
  }

  template <typename Block>
  TANDEM_DEVICE uint32_t Draw(Block& block, const Shared& shared, const Gaps& gaps, uint64_t cut,
                              const Row& row) const {
    double best_score = -1e300;
    uint32_t best = 0xffffffffu;
    for (uint32_t group = block.thread(); group < (vocab_size + 3) / 4; group += block.num_threads()) {
      uint64_t keys[4];
      bool can_win = false;
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t token = 4 * group + i;
        keys[i] = token < vocab_size ? gaps.Key(token) : ~uint64_t{0};
        can_win |= keys[i] <= cut && static_cast<double>(kDeviceMaxGumbel) - GapOf(keys[i]) >= best_score;
      }
      if (!can_win) continue;
      uint32_t bits[4];
      DevicePhilox(row.seed, row.position, group, bits);
      for (uint32_t i = 0; i < 4; ++i) {
        if (keys[i] > cut) continue;
        const double score = static_cast<double>(DeviceGumbel(bits[i])) - static_cast<double>(GapOf(keys[i]));
        if (score > best_score) {
          best_score = score;
          best = 4 * group + i;
        }
      }
    }
    for (uint32_t mask = kWarpThreads / 2; mask > 0; mask /= 2) {
      const double other_score = block.ShuffleXor(best_score, mask);
      const uint32_t other = block.ShuffleXor(best, mask);
      if (other_score > best_score || (other_score == best_score && other < best)) {
        best_score = other_score;
        best = other;
      }
    }
    if (block.thread() % kWarpThreads == 0) {
      shared.scores[block.thread() / kWarpThreads] = best_score;
      shared.best[block.thread() / kWarpThreads] = best;
    }
    block.Sync();
    for (uint32_t warp = 0; warp < block.num_threads() / kWarpThreads; ++warp) {
      const double score = shared.scores[warp];
      const auto token = static_cast<uint32_t>(shared.best[warp]);
      if (score > best_score || (score == best_score && token < best)) {
        best_score = score;
        best = token;
      }
    }
    return best;
  }
};

}  // namespace tandem
