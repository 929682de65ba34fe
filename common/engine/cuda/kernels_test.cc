#include "common/engine/cuda/kernels/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "common/engine/cpu/rotary_table.h"
#include "common/engine/cuda/launch_shape.h"
#include "common/engine/cuda/step_plan.h"
#include "common/engine/cuda/testing/host_block.h"
#include "common/engine/cuda/testing/spans.h"
#include "common/speculation/gumbel.h"
#include "common/speculation/target_sampler.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

class KernelsTest : public testing::Test {
 protected:
  uint32_t Below(uint64_t limit) { return static_cast<uint32_t>(random_() % limit); }
  float Normal() { return std::normal_distribution<float>()(random_); }
  std::vector<float> Normals(size_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = Normal();
    return values;
  }

  std::mt19937_64 random_{7};
  HostGrid grid_{11};
};

// --- The emulation itself: a kernel that breaks a rule ends the program ---

struct ReverseKernel {
  DeviceSpan<uint32_t> values;
  bool syncs = true;
  bool leaves_early = false;

  template <typename Block>
  void operator()(Block& block) const {
    const auto shared = block.template Shared<uint32_t>(0, block.num_threads());
    shared[block.thread()] = values[block.thread()];
    if (leaves_early && block.thread() == 3) return;
    if (syncs) block.Sync();
    values[block.thread()] = shared[block.num_threads() - 1 - block.thread()];
  }
};

TEST_F(KernelsTest, EmulationRunsThreadsSideBySide) {
  std::vector<uint32_t> values(96);
  for (uint32_t i = 0; i < 96; ++i) values[i] = i;
  const LaunchShape shape = {.threads = 96, .shared_bytes = 96 * 4};
  grid_.Launch(ReverseKernel{SpanOf(values)}, shape);
  for (uint32_t i = 0; i < 96; ++i) EXPECT_EQ(values[i], 95 - i);
  // Without the barrier, some thread reads a value before it is written.
  grid_.Launch(ReverseKernel{SpanOf(values), false}, shape);
  EXPECT_NE(std::count(values.begin(), values.end(), std::numeric_limits<uint32_t>::max()), 0);
}

using KernelsDeathTest = KernelsTest;

TEST_F(KernelsDeathTest, EmulationSeesWhatAGpuLetsPass) {
  std::vector<uint32_t> values(64);
  const LaunchShape shape = {.threads = 96, .shared_bytes = 96 * 4};
  EXPECT_DEATH(grid_.Launch(ReverseKernel{SpanOf(values)}, shape),
               "element 6[4-9] of memory that holds 64|holds 64");
  values.resize(96);
  EXPECT_DEATH(grid_.Launch(ReverseKernel{SpanOf(values), true, true}, shape), "wait for others that ended");
  EXPECT_DEATH(grid_.Launch(ReverseKernel{SpanOf(values)}, {.threads = 96, .shared_bytes = 8}),
               "memory that holds 8");
}

// --- Numbers ---

TEST_F(KernelsTest, RoundsToBf16AndTakesExponentialsAsTheProcessorDoes) {
  for (int i = 0; i < 100000; ++i) {
    const auto bits = static_cast<uint32_t>(random_());
    const auto value = BitsAs<float>(bits);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(ToFloat(ToBf16(value))));
      continue;
    }
    const float rounded = ToFloat(ToBf16(value));
    const float below = BitsAs<float>(bits & 0xffff0000u);
    const float above = BitsAs<float>((bits & 0xffff0000u) + 0x10000u);
    if (!std::isfinite(above)) continue;
    const double to_below = std::abs(static_cast<double>(value) - below);
    const double to_above = std::abs(static_cast<double>(value) - above);
    ASSERT_EQ(rounded,
              to_below < to_above || (to_below == to_above && (bits & 0x10000u) == 0) ? below : above);
  }
  for (float x = -87.3f; x < 88.0f; x += 0.0137f) {
    ASSERT_NEAR(Exponential(x) / std::exp(static_cast<double>(x)), 1.0, 3e-7) << x;
  }
  EXPECT_EQ(Exponential(0.0f), 1.0f);
  EXPECT_EQ(Exponential(-100.0f), 0.0f);
}

// Words of a step without contexts.
std::vector<uint32_t> PlainWords(uint32_t num_rows, uint32_t max_rows, const std::vector<BlockId>& blocks,
                                 float* wanted_logits) {
  std::vector<StepRow> rows;
  for (uint32_t i = 0; i < num_rows; ++i) {
    rows.push_back({.token = static_cast<TokenId>((i * 5 + 1) % 9),
                    .context = {.blocks = blocks, .num_committed = i + 1},
                    .logits = i % 3 == 1 ? wanted_logits : nullptr});
  }
  std::vector<uint32_t> words;
  WriteStepWords(rows, {.max_rows = max_rows, .rows_per_item = 4}, &words);
  return words;
}

TEST_F(KernelsTest, EmbedsNormalisesAndGates) {
  const std::vector<BlockId> blocks = {0, 1};
  float logits = 0;
  for (uint32_t hidden : {6u, 40u, 515u}) {
    const std::vector<uint32_t> words = PlainWords(5, 6, blocks, &logits);
    const StepWords step = {ConstSpanOf(words), 6};
    std::vector<Bf16> embedding(9 * hidden);
    for (Bf16& value : embedding) value = ToBf16(Normal());
    std::vector<float> state(8 * hidden, 77.0f);
    grid_.Launch(EmbedKernel{step, ConstSpanOf(embedding), SpanOf(state), hidden}, EmbedShape(8, hidden));
    for (uint32_t i = 0; i < hidden; ++i) {
      EXPECT_EQ(state[4 * hidden + i], ToFloat(embedding[(4 * 5 + 1) % 9 * hidden + i]));
      // Beyond the step.
      EXPECT_EQ(state[5 * hidden + i], 77.0f);
    }
    const std::vector<float> addends = Normals(3 * 8 * hidden);
    const std::vector<float> bias = Normals(hidden);
    const std::vector<float> weight = Normals(hidden);
    const std::vector<float> before = state;
    std::vector<Bf16> normed(8 * hidden);
    const Residual residual = {.hidden = SpanOf(state),
                               .addends = ConstSpanOf(addends),
                               .num_addends = 3,
                               .addend_stride = 8 * hidden,
                               .bias = ConstSpanOf(bias),
                               .hidden_size = hidden};
    NormKernel norm = {.step = step,
                       .residual = residual,
                       .norm = {.weight = ConstSpanOf(weight), .bias = {}},
                       .normed = SpanOf(normed),
                       .epsilon = 1e-5f,
                       .features = {}};
    // The wanted rows are 1 and 4: the second of them alone.
    norm.only_wanted = true;
    norm.first_wanted = 1;
    grid_.Launch(norm, NormShape(2, hidden));
    std::vector<double> expected(hidden);
    double squares = 0;
    for (uint32_t i = 0; i < hidden; ++i) {
      const uint32_t at = 4 * hidden + i;
      const float sum = addends[at] + addends[8 * hidden + at] + addends[16 * hidden + at] + bias[i];
      EXPECT_EQ(state[at], before[at] + sum);
      EXPECT_EQ(state[hidden + i], before[hidden + i]);
      expected[i] = state[at];
      squares += expected[i] * expected[i];
    }
    for (uint32_t i = 0; i < hidden; ++i) {
      const double want = weight[i] * expected[i] / std::sqrt(squares / hidden + 1e-5);
      ASSERT_NEAR(ToFloat(normed[i]), want, std::abs(want) / 250 + 1e-6);
    }
    const std::vector<float> gate_up = Normals(8 * 2 * hidden);
    const std::vector<float> gate_bias = Normals(2 * hidden);
    std::vector<Bf16> gated(8 * hidden);
    grid_.Launch(GateKernel{step, ConstSpanOf(gate_up), ConstSpanOf(gate_bias), SpanOf(gated), hidden},
                 GateShape(8, hidden));
    for (uint32_t i = 0; i < hidden; ++i) {
      const double gate = double{gate_up[3 * 2 * hidden + i]} + gate_bias[i];
      const double up = double{gate_up[3 * 2 * hidden + hidden + i]} + gate_bias[hidden + i];
      const double want = gate / (1 + std::exp(-gate)) * up;
      ASSERT_NEAR(ToFloat(gated[3 * hidden + i]), want, std::abs(want) / 250 + 1e-6);
    }
  }
}

// --- Attention ---

TEST_F(KernelsTest, PreparesQueriesKeysAndValues) {
  constexpr uint32_t kHeads = 3, kKvHeads = 1, kDim = 10, kAll = kHeads + 2 * kKvHeads;
  const std::vector<BlockId> blocks = {2, 0};
  const std::vector<uint32_t> words = PlainWords(4, 4, blocks, nullptr);
  ModelConfig config;
  config.head_dim = kDim;
  RotaryTable table = *RotaryTable::Build(config, 8);
  table.ExtendTo(8);
  std::vector<float> rotations(8 * kDim);
  for (uint32_t p = 0; p < 8; ++p) {
    std::fill_n(&rotations[p * kDim], kDim / 2, 1.0f);
    table.Rotate(p, &rotations[p * kDim]);
  }
  for (const bool has_norms : {false, true}) {
    std::vector<float> projected = Normals(8 * kAll * kDim);
    const std::vector<float> before = projected;
    const std::vector<float> bias = Normals(kAll * kDim);
    const std::vector<float> norms[2] = {Normals(has_norms ? kDim : 0), Normals(has_norms ? kDim : 0)};
    std::vector<Bf16> keys(3 * 16 * KvVectorSize(kDim));
    std::vector<Bf16> values(3 * 16 * KvVectorSize(kDim));
    const KvLayout layout = {3, kKvHeads, kDim};
    grid_.Launch(PrepareKernel{{ConstSpanOf(words), 4},
                               SpanOf(projected),
                               ConstSpanOf(bias),
                               ConstSpanOf(norms[0]),
                               ConstSpanOf(norms[1]),
                               ConstSpanOf(rotations),
                               SpanOf(keys),
                               SpanOf(values),
                               layout,
                               kHeads,
                               1e-6f},
                 PrepareShape(8, kAll));
    for (uint32_t row = 0; row < 4; ++row) {
      for (uint32_t head = 0; head < kAll; ++head) {
        std::vector<float> want(kDim);
        float squares = 0;
        for (uint32_t d = 0; d < kDim; ++d) {
          want[d] = before[(row * kAll + head) * kDim + d] + bias[head * kDim + d];
          squares += want[d] * want[d];
        }
        if (has_norms && head < kHeads + kKvHeads) {
          for (uint32_t d = 0; d < kDim; ++d) {
            want[d] *= norms[head < kHeads ? 0 : 1][d] / std::sqrt(squares / kDim + 1e-6f);
          }
        }
        if (head < kHeads + kKvHeads) table.Rotate(row, want.data());
        const size_t slot = 2 * 16 + row;
        for (uint32_t d = 0; d < kDim; ++d) {
          const float got = head < kHeads              ? projected[(row * kAll + head) * kDim + d]
                            : head < kHeads + kKvHeads ? ToFloat(keys[slot * KvVectorSize(kDim) + d])
                                                       : ToFloat(values[slot * KvVectorSize(kDim) + d]);
          ASSERT_NEAR(got, want[d], head < kHeads ? 1e-5 : std::abs(want[d]) / 250 + 1e-6);
        }
      }
    }
    EXPECT_EQ(projected[4 * kAll * kDim], before[4 * kAll * kDim]);
  }
}

TEST_F(KernelsTest, CopiesSlotsInOrder) {
  const KvLayout layout = {3, 2, 6};
  const uint64_t layer_size = 3 * 16 * 2 * KvVectorSize(6);
  std::vector<Bf16> pool(4 * layer_size);
  for (size_t i = 0; i < pool.size(); ++i) pool[i].bits = static_cast<uint16_t>(i);
  std::vector<Bf16> expected = pool;
  // The second copy reads what the first wrote.
  const std::vector<uint32_t> copies = {40, 3, 3, 17, 0, 3, 5, 5};
  for (uint32_t layer = 0; layer < 4; ++layer) {
    for (uint32_t head = 0; head < 2; ++head) {
      for (size_t c = 0; c < copies.size(); c += 2) {
        for (uint32_t d = 0; d < 6; ++d) {
          expected[layer * layer_size + layout.At(copies[c + 1], head) + d] =
              expected[layer * layer_size + layout.At(copies[c], head) + d];
        }
      }
    }
  }
  grid_.Launch(CopyKvKernel{ConstSpanOf(copies), SpanOf(pool), layout, layer_size, 4, 4}, CopyKvShape(48));
  EXPECT_EQ(std::memcmp(pool.data(), expected.data(), pool.size() * sizeof(Bf16)), 0);
}

// --- The seeded choice ---

TEST_F(KernelsTest, NoiseAndWeightsHaveTheBitsOfTheProcessors) {
  for (int i = 0; i < 20000; ++i) {
    const uint64_t seed = random_();
    const auto position = static_cast<uint32_t>(random_());
    const uint32_t token = Below(1 << 22);
    uint32_t bits[4];
    DevicePhilox(seed, position, token / 4, bits);
    ASSERT_EQ(DeviceGumbel(bits[token % 4]), GumbelNoise(seed, position, static_cast<TokenId>(token)));
    const float gap = std::abs(Normal()) * 20;
    ASSERT_EQ(DeviceTokenWeight(gap), TokenWeight(gap));
    ASSERT_EQ(DeviceNaturalLog(gap + 1e-6), NaturalLog(gap + 1e-6));
  }
  EXPECT_EQ(DeviceTokenWeight(INFINITY), TokenWeight(INFINITY));
  EXPECT_EQ(DeviceTokenWeight(0.0f), TokenWeight(0.0f));
}

class ChoiceKernelTest : public KernelsTest {
 protected:
  SamplingParameters AnySampling(int32_t vocab) {
    SamplingParameters sampling;
    sampling.temperature = Below(5) == 0 ? 0.0f : 0.2f + static_cast<float>(Below(20)) / 10;
    if (Below(2) == 0) sampling.top_k = 1 + Below(50);
    if (Below(2) == 0) sampling.top_p = static_cast<float>(1 + Below(100)) / 100;
    if (Below(3) == 0) sampling.min_p = static_cast<float>(Below(101)) / 100;
    if (Below(2) == 0) sampling.repetition_penalty = 0.5f + static_cast<float>(Below(20)) / 10;
    if (Below(2) == 0) sampling.presence_penalty = Normal() / 2;
    if (Below(2) == 0) sampling.frequency_penalty = Normal() / 2;
    for (uint32_t i = Below(6); i > 0; --i) {
      sampling.logit_bias.emplace_back(Below(std::min(vocab, 9)), Below(4) == 0 ? -100.0f : 3 * Normal());
    }
    sampling.seed = random_();
    return sampling;
  }
  TokenIds AnyTokens(size_t count, int32_t vocab) {
    TokenIds tokens(count);
    for (TokenId& token : tokens) token = static_cast<TokenId>(Below(vocab));
    return tokens;
  }
  // With ties, and with what a broken model gives.
  std::vector<float> AnyLogits(int trial, size_t count) {
    std::vector<float> logits(count);
    for (float& logit : logits) {
      logit = trial % 3 == 0 ? static_cast<float>(Below(4)) : 4 * Normal();
      if (trial % 7 == 0 && Below(4) == 0) logit = Below(2) == 0 ? NAN : -INFINITY;
      if (trial % 11 == 0 && Below(40) == 0) logit = INFINITY;
      if (trial == 77) logit = NAN;
    }
    return logits;
  }
};

// As rounds ask for it: rows of a session share what stands before its root and have paths of their own, and
// others between them want logits, which stay as they are.
TEST_F(ChoiceKernelTest, ChoosesWhatTheTargetSamplerChooses) {
  constexpr uint32_t kRows = 6;
  constexpr uint32_t kBucket = 8;
  constexpr uint32_t kLogitRow = 3;
  const std::vector<BlockId> blocks = {0};
  for (int trial = 0; trial < 200; ++trial) {
    const auto vocab = static_cast<int32_t>(trial % 5 == 0 ? 1 + Below(5) : 100 + Below(700));
    const size_t width = static_cast<size_t>(vocab);
    const SamplingParameters samplings[] = {AnySampling(vocab), AnySampling(vocab)};
    std::vector<TargetSampler> samplers;
    std::vector<TokenCount> counts[2];
    for (uint32_t session = 0; session < 2; ++session) {
      samplers.emplace_back(samplings[session], vocab, AnyTokens(Below(20), vocab));
      for (const TokenId token : AnyTokens(Below(20), vocab)) samplers[session].Append(token);
      counts[session] = samplers[session].Counts();
    }
    std::vector<StepRow> rows;
    std::vector<TokenIds> paths;
    std::vector<std::vector<TokenCount>> own_counts(kRows);
    std::vector<SeededChoice> choices(kRows);
    // Few tokens or many, and after the last row none.
    std::vector<std::vector<uint32_t>> allowed(kRows, std::vector<uint32_t>((width + 31) / 32));
    for (uint32_t i = 0; i + 1 < kRows; ++i) {
      for (uint32_t& word : allowed[i]) word = i % 2 == 0 ? Below(8) << Below(29) : ~Below(8);
    }
    TokenId nowhere = 0;
    float place = 0;
    for (uint32_t i = 0; i < kRows; ++i) {
      const uint32_t session = i / 4;
      paths.push_back(AnyTokens(Below(4), vocab));
      own_counts[i] = samplers[session].CountsAfter(paths[i]);
      choices[i] = {&samplings[session], 100 + i, counts[session], own_counts[i], &nowhere};
      if (trial % 3 == 0) choices[i].allowed = allowed[i];
      rows.push_back({.token = 0, .context = {.blocks = blocks, .num_committed = i + 1}});
      if (i == kLogitRow) {
        rows.back().logits = &place;
      } else {
        rows.back().choice = &choices[i];
      }
    }
    std::vector<uint32_t> words;
    WriteStepWords(rows, {.max_rows = kRows + 1}, &words);
    // Logits come first.
    const uint32_t order[kRows] = {kLogitRow, 0, 1, 2, 4, 5};
    std::vector<float> logits = AnyLogits(trial, width * kBucket);
    std::vector<float> on_device = logits;
    std::vector<uint32_t> chosen(kRows + 1, 12345);
    const StepWords step = {ConstSpanOf(words), kRows + 1};
    // At once, or as tiles of which the first has two rows.
    const uint32_t first = trial % 2 == 0 ? 0 : 2;
    if (first > 0) {
      grid_.Launch(ChoiceKernel{step, SpanOf(on_device).Part(0, first * width), SpanOf(chosen), 0,
                                static_cast<uint32_t>(vocab)},
                   ChoiceShape(first, static_cast<uint32_t>(vocab)));
    }
    grid_.Launch(ChoiceKernel{step, SpanOf(on_device).Part(first * width, (kBucket - first) * width),
                              SpanOf(chosen), first, static_cast<uint32_t>(vocab)},
                 ChoiceShape(kBucket - first, static_cast<uint32_t>(vocab)));
    for (uint32_t i = 0; i < kBucket; ++i) {
      const auto own = absl::MakeSpan(logits).subspan(i * width, width);
      if (i == 0 || i >= kRows) {
        EXPECT_EQ(std::memcmp(&on_device[i * width], own.data(), width * sizeof(float)), 0);
        continue;
      }
      for (uint32_t token = 0; trial % 3 == 0 && token < width; ++token) {
        if ((allowed[order[i]][token / 32] >> token % 32 & 1) == 0) own[token] = -INFINITY;
      }
      TargetSampler sampler = samplers[order[i] / 4];
      for (const TokenId token : paths[order[i]]) sampler.Append(token);
      ASSERT_EQ(static_cast<TokenId>(chosen[i]), sampler.Choose(own, 100 + order[i]).token)
          << "trial " << trial << ", row " << order[i];
    }
    EXPECT_EQ(chosen[0], 12345u);
    EXPECT_EQ(chosen[kRows], 12345u);
  }
}

}  // namespace
}  // namespace tandem
