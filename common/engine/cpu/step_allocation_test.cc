// A step of an engine that is running takes no memory from the heap, on any of its threads.

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <numeric>
#include <utility>
#include <vector>

#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/cpu/testing/random_model.h"
#include "common/model/testing/family_fixture.h"
#include "common/model/testing/lora_fixture.h"
#include "gtest/gtest.h"

namespace {

std::atomic<uint64_t> num_allocations{0};

}  // namespace

// The C library's own allocator behind a counter; operator new comes here too. Sanitizers bring their own.
#if defined(__GLIBC__) && !defined(TANDEM_SANITIZED)
#define TANDEM_COUNTS_ALLOCATIONS
extern "C" {
void* __libc_malloc(size_t num_bytes);
void* __libc_calloc(size_t count, size_t num_bytes);
void* __libc_realloc(void* old, size_t num_bytes);
void* __libc_memalign(size_t alignment, size_t num_bytes);

void* malloc(size_t num_bytes) {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(num_bytes);
}
void* calloc(size_t count, size_t num_bytes) {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_calloc(count, num_bytes);
}
void* realloc(void* old, size_t num_bytes) {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_realloc(old, num_bytes);
}
void* aligned_alloc(size_t alignment, size_t num_bytes) {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_memalign(alignment, num_bytes);
}
}
#endif

namespace tandem {
namespace {

// A prompt in one step, one token, and a batch of two trees with some logits wanted.
std::vector<std::vector<StepRow>> MakeSteps(const std::vector<BlockId>& blocks,
                                            const std::vector<SlotId>& slots, std::vector<float>* logits,
                                            size_t vocab_size) {
  std::vector<std::vector<StepRow>> steps(3);
  for (uint32_t i = 0; i < 40; ++i) {
    steps[0].push_back({.token = 1, .context = {.blocks = blocks, .num_committed = i + 1, .tail = {}}});
  }
  steps[1].push_back(
      {.token = 2, .context = {.blocks = blocks, .num_committed = 41, .tail = {}}, .logits = logits->data()});
  for (uint32_t i = 0; i < 12; ++i) {
    steps[2].push_back({.token = 3,
                        .context = {.blocks = blocks,
                                    .num_committed = 30 + i % 2 * 10,
                                    .tail = absl::MakeConstSpan(slots).subspan(i, 1)},
                        .logits = i % 3 == 0 ? nullptr : logits->data() + i * vocab_size});
  }
  return steps;
}

RandomModelOptions SmallModel() {
  RandomModelOptions options;
  options.config.architecture = "LlamaForCausalLM";
  options.config.hidden_size = 48;
  options.config.num_layers = 2;
  options.config.num_heads = 6;
  options.config.num_kv_heads = 2;
  options.config.head_dim = 16;
  options.config.intermediate_size = 64;
  options.config.vocab_size = 131;
  options.config.max_context = 256;
  return options;
}

// With an adapter, where one is given, for some of the rows.
void ExpectNoAllocations(const std::shared_ptr<const Model>& model, const LoraAdapter* adapter = nullptr) {
  for (const auto& [num_threads, weight_type] : {std::pair(1, WeightType::kAsInFile),
                                                 {3, WeightType::kAsInFile},
                                                 {3, WeightType::kInt8},
                                                 {1, WeightType::kInt4}}) {
    auto engine = CreateCpuEngine(
        model, {.num_blocks = 16, .max_rows = 64, .num_threads = num_threads, .weight_type = weight_type});
    ASSERT_TRUE(engine.ok()) << engine.status();
    std::vector<BlockId> blocks(8);
    std::iota(blocks.begin(), blocks.end(), 0);
    std::vector<SlotId> slots(12);
    std::iota(slots.begin(), slots.end(), 10 * kBlockTokens);
    const auto vocab_size = static_cast<size_t>(model->config().vocab_size);
    std::vector<float> logits(12 * vocab_size);
    auto steps = MakeSteps(blocks, slots, &logits, vocab_size);
    if (adapter != nullptr) {
      const absl::StatusOr<AdapterId> id = (*engine)->AddAdapter(*adapter);
      ASSERT_TRUE(id.ok()) << id.status();
      for (auto& rows : steps) {
        for (size_t i = 0; i < rows.size(); i += 2) rows[i].adapter = *id;
      }
    }
    // The counter counts.
    const uint64_t before_new = num_allocations.load();
    void* volatile memory = ::operator new(16);
    ::operator delete(memory);
    EXPECT_GT(num_allocations.load(), before_new);
    for (int round = 0; round < 20; ++round) {
      const uint64_t before = num_allocations.load();
      bool all_ok = true;
      for (const std::vector<StepRow>& rows : steps) all_ok &= (*engine)->Step(rows).ok();
      const uint64_t after = num_allocations.load();
      ASSERT_TRUE(all_ok);
      EXPECT_TRUE(round == 0 || after == before)
          << num_threads << " threads, weights in " << WeightTypeName(weight_type) << ", round " << round;
    }
  }
}

TEST(StepAllocation, OnlyTheFirstStepAllocates) {
#ifndef TANDEM_COUNTS_ALLOCATIONS
  GTEST_SKIP() << "needs the C library's allocator";
#endif
  const auto model = MakeRandomModel(SmallModel());
  ASSERT_NE(model, nullptr);
  ExpectNoAllocations(model);
}

TEST(StepAllocation, OnlyTheFirstStepOfAMixtureAllocates) {
#ifndef TANDEM_COUNTS_ALLOCATIONS
  GTEST_SKIP() << "needs the C library's allocator";
#endif
  ModelConfig config = SmallModel().config;
  config.block.experts = {.num_experts = 5, .num_chosen = 2, .intermediate_size = 24, .shared_size = 40};
  const auto model = Model::Random(config, 1);
  ASSERT_TRUE(model.ok()) << model.status();
  ExpectNoAllocations(*model);
}

TEST(StepAllocation, OnlyTheFirstStepOfLatentAttentionAllocates) {
#ifndef TANDEM_COUNTS_ALLOCATIONS
  GTEST_SKIP() << "needs the C library's allocator";
#endif
  for (const char* const name : {"deepseek-v2-lite", "deepseek-v3"}) {
    const auto model = MakeFamilyModel(name, TensorView::DType::kBF16);
    ASSERT_NE(model, nullptr);
    ExpectNoAllocations(model);
  }
}

TEST(StepAllocation, OnlyTheFirstStepWithAnAdapterAllocates) {
#ifndef TANDEM_COUNTS_ALLOCATIONS
  GTEST_SKIP() << "needs the C library's allocator";
#endif
  const nlohmann::json golden = AdapterGolden("llama");
  const auto model = MakeAdaptedModel(golden, TensorView::DType::kBF16);
  ASSERT_NE(model, nullptr);
  const auto adapter = MakeAdapter(golden, 1, model->config());
  ASSERT_NE(adapter, nullptr);
  ExpectNoAllocations(model, adapter.get());
}

}  // namespace
}  // namespace tandem
