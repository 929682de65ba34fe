#include "common/engine/cpu/kv_store.h"

#include <vector>

#include "common/engine/cpu/kernel_table.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

ModelConfig Config() {
  ModelConfig config;
  config.num_layers = 2;
  config.num_kv_heads = 3;
  config.num_heads = 3;
  config.head_dim = 6;
  return config;
}

constexpr uint32_t kNumBlocks = 4;

std::vector<float> Numbers(float first) {
  std::vector<float> numbers(3 * 6);
  for (float& number : numbers) number = first++;
  return numbers;
}

// One token's keys (or values) as attention finds them, heads one after the other.
std::vector<float> Read(const KvStore& store, uint32_t layer, SlotId slot, bool values) {
  std::vector<float> numbers;
  for (uint32_t head = 0; head < 3; ++head) {
    AttentionArgs args;
    store.Locate(layer, head, &args);
    const uint32_t block = slot / kBlockTokens;
    const uint32_t offset = slot % kBlockTokens;
    for (uint32_t d = 0; d < 6; ++d) {
      numbers.push_back(values ? args.values[block * args.value_block_stride + offset * args.value_stride + d]
                               : args.keys[block * args.key_block_stride + d * kLanes + offset]);
    }
  }
  return numbers;
}

TEST(KvStore, EverySlotIsItsOwn) {
  const auto team = ThreadTeam::Create(2).value();
  auto store = KvStore::Create(Config(), kNumBlocks, team.get());
  ASSERT_TRUE(store.ok()) << store.status();
  const auto first = [](uint32_t layer, SlotId slot) {
    return static_cast<float>((layer * 64 + slot) * 100);
  };
  for (uint32_t layer = 0; layer < 2; ++layer) {
    for (SlotId slot = 0; slot < kNumBlocks * kBlockTokens; ++slot) {
      store->Write(layer, slot, Numbers(first(layer, slot)).data(), Numbers(first(layer, slot) + 50).data());
    }
  }
  for (uint32_t layer = 0; layer < 2; ++layer) {
    for (SlotId slot = 0; slot < kNumBlocks * kBlockTokens; ++slot) {
      EXPECT_EQ(Read(*store, layer, slot, false), Numbers(first(layer, slot)));
      EXPECT_EQ(Read(*store, layer, slot, true), Numbers(first(layer, slot) + 50));
    }
  }
}

TEST(KvStore, CopiesATokenInEveryLayer) {
  const auto team = ThreadTeam::Create(2).value();
  auto store = KvStore::Create(Config(), kNumBlocks, team.get());
  ASSERT_TRUE(store.ok()) << store.status();
  for (uint32_t layer = 0; layer < 2; ++layer) {
    store->Write(layer, 63, Numbers(100.0f * layer).data(), Numbers(100.0f * layer + 50).data());
  }
  store->Copy(63, 5);
  store->Copy(5, 5);
  for (uint32_t layer = 0; layer < 2; ++layer) {
    EXPECT_EQ(Read(*store, layer, 5, false), Numbers(100.0f * layer));
    EXPECT_EQ(Read(*store, layer, 5, true), Numbers(100.0f * layer + 50));
    EXPECT_EQ(Read(*store, layer, 4, false), std::vector<float>(18));
    EXPECT_EQ(Read(*store, layer, 6, true), std::vector<float>(18));
  }
}

TEST(KvStore, RefusesSizesOutOfRange) {
  const auto team = ThreadTeam::Create(1).value();
  EXPECT_EQ(KvStore::BytesPerBlock(Config()), uint64_t{2} * 3 * kBlockTokens * (6 + 16) * 4);
  EXPECT_EQ(KvStore::Create(Config(), 0, team.get()).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(KvStore::Create(Config(), UINT32_MAX / kBlockTokens + 1, team.get()).status().code(),
            absl::StatusCode::kInvalidArgument);
  ModelConfig huge = Config();
  huge.num_layers = huge.num_kv_heads = huge.head_dim = INT32_MAX;
  EXPECT_EQ(KvStore::BytesPerBlock(huge), std::nullopt);
  EXPECT_EQ(KvStore::Create(huge, 1, team.get()).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tandem
