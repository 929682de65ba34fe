#include "common/engine/cpu/kv_store.h"

#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/temporary_folder.h"
#include "common/engine/cpu/kernel_table.h"
#include "common/engine/kv_choice.h"
#include "common/model/model.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

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
    const char* part =
        values ? args.values + block * args.value_block_bytes : args.keys + block * args.key_block_bytes;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(part) % 64, 0u);
    const float scale = args.format == KvFormat::kInt8 ? reinterpret_cast<const float*>(part)[offset] : 1.0f;
    if (args.format == KvFormat::kInt8) part += kLanes * sizeof(float);
    for (size_t d = 0; d < 6; ++d) {
      const size_t at = values ? offset * args.value_stride + d : d * kLanes + offset;
      numbers.push_back(
          args.format == KvFormat::kF32 ? reinterpret_cast<const float*>(part)[at]
          : args.format == KvFormat::kBf16
              ? std::bit_cast<float>(uint32_t{reinterpret_cast<const uint16_t*>(part)[at]} << 16)
              : static_cast<float>(reinterpret_cast<const int8_t*>(part)[at]) * scale);
    }
  }
  return numbers;
}

class KvStoreOfType : public testing::TestWithParam<KvType> {
 protected:
  // What is read of numbers that were written.
  static std::vector<float> Rounded(std::vector<float> numbers) {
    for (size_t head = 0; head < 3; ++head) {
      float* const of_head = &numbers[head * 6];
      float greatest = 0;
      for (size_t d = 0; d < 6; ++d) greatest = std::max(greatest, std::abs(of_head[d]));
      for (size_t d = 0; d < 6; ++d) {
        if (GetParam() == KvType::kBf16) {
          // Whole numbers below 2^24: to the nearest of 8 bits, ties to even.
          const float unit = std::max(1.0f, std::exp2(std::floor(std::log2(std::max(of_head[d], 1.0f))) - 7));
          of_head[d] = std::nearbyint(of_head[d] / unit) * unit;
        } else if (GetParam() == KvType::kInt8 && greatest > 0) {
          of_head[d] = std::nearbyint(of_head[d] * (127.0f / greatest)) * (greatest / 127.0f);
        }
      }
    }
    return numbers;
  }
};

INSTANTIATE_TEST_SUITE_P(All, KvStoreOfType, testing::Values(KvType::kF32, KvType::kBf16, KvType::kInt8),
                         [](const auto& param_info) { return std::string(KvTypeName(param_info.param)); });

TEST_P(KvStoreOfType, EverySlotIsItsOwn) {
  auto store = KvStore::Create(Config(), GetParam(), kNumBlocks);
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
      EXPECT_EQ(Read(*store, layer, slot, false), Rounded(Numbers(first(layer, slot))));
      EXPECT_EQ(Read(*store, layer, slot, true), Rounded(Numbers(first(layer, slot) + 50)));
    }
  }
}

TEST_P(KvStoreOfType, CopiesATokenInEveryLayer) {
  auto store = KvStore::Create(Config(), GetParam(), kNumBlocks);
  ASSERT_TRUE(store.ok()) << store.status();
  for (uint32_t layer = 0; layer < 2; ++layer) {
    store->Write(layer, 63, Numbers(100.0f * layer).data(), Numbers(100.0f * layer + 50).data());
  }
  store->Copy(63, 5);
  store->Copy(5, 5);
  for (uint32_t layer = 0; layer < 2; ++layer) {
    EXPECT_EQ(Read(*store, layer, 5, false), Rounded(Numbers(100.0f * layer)));
    EXPECT_EQ(Read(*store, layer, 5, true), Rounded(Numbers(100.0f * layer + 50)));
    EXPECT_EQ(Read(*store, layer, 4, false), std::vector<float>(18));
    EXPECT_EQ(Read(*store, layer, 6, true), std::vector<float>(18));
  }
}

TEST(KvStore, WhatIsNotFiniteStaysSo) {
  std::vector<float> numbers = Numbers(1);
  numbers[1] = std::numeric_limits<float>::infinity();
  numbers[8] = std::numeric_limits<float>::quiet_NaN();
  for (const KvType type : {KvType::kF32, KvType::kBf16, KvType::kInt8}) {
    auto store = KvStore::Create(Config(), type, kNumBlocks);
    ASSERT_TRUE(store.ok()) << store.status();
    store->Write(0, 3, numbers.data(), numbers.data());
    for (const bool values : {false, true}) {
      const std::vector<float> read = Read(*store, 0, 3, values);
      EXPECT_FALSE(std::isfinite(read[1])) << KvTypeName(type);
      EXPECT_TRUE(std::isnan(read[8])) << KvTypeName(type);
      EXPECT_EQ(read[17], 18.0f) << KvTypeName(type);
    }
  }
}

// As of latent attention: a value may be shorter than a key.
TEST(KvStore, ValuesHaveASizeOfTheirOwn) {
  ModelConfig config = Config();
  config.num_kv_heads = 1;
  config.block.latent = {.kv_rank = 4, .turned_dim = 2};
  EXPECT_EQ(KvStore::BytesPerBlock(config, KvType::kF32), uint64_t{2} * kBlockTokens * (6 + 16) * 4);
  auto store = KvStore::Create(config, KvType::kF32, kNumBlocks);
  ASSERT_TRUE(store.ok()) << store.status();
  const std::vector<float> numbers = Numbers(1);
  store->Write(1, 18, numbers.data(), numbers.data());
  store->Copy(18, 33);
  AttentionArgs args;
  store->Locate(1, 0, &args);
  const auto* const key = reinterpret_cast<const float*>(args.keys + 2 * args.key_block_bytes) + 1;
  const auto* const value =
      reinterpret_cast<const float*>(args.values + 2 * args.value_block_bytes) + args.value_stride;
  for (size_t d = 0; d < 6; ++d) EXPECT_EQ(key[d * kLanes], numbers[d]);
  for (size_t d = 0; d < 4; ++d) EXPECT_EQ(value[d], numbers[d]);
  EXPECT_EQ(value[4], 0.0f);
}

uint64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t all = 0, resident = 0;
  statm >> all >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// Room for a million tokens takes what the tokens take that are written, in whole huge pages.
TEST(KvStore, RoomIsAddressSpaceUntilItIsUsed) {
  constexpr uint32_t kManyBlocks = 1 << 16;
  constexpr uint64_t kMib = 1 << 20;
  ASSERT_GT(*KvStore::BytesPerBlock(Config(), KvType::kBf16) * kManyBlocks, 256 * kMib);
  const uint64_t before = ResidentBytes();
  auto store = KvStore::Create(Config(), KvType::kBf16, kManyBlocks);
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_LT(ResidentBytes(), before + 8 * kMib);
  const std::vector<float> numbers = Numbers(1);
  const SlotId last = kManyBlocks * kBlockTokens - 1;
  for (uint32_t layer = 0; layer < 2; ++layer) store->Write(layer, last, numbers.data(), numbers.data());
  EXPECT_EQ(Read(*store, 1, last, true), numbers);
  EXPECT_EQ(Read(*store, 1, 7, true), std::vector<float>(numbers.size(), 0.0f));
  EXPECT_LT(ResidentBytes(), before + 24 * kMib);
}

TEST(KvStore, AutoIsBf16) {
  EXPECT_EQ(ResolvedKvType(KvType::kAuto), KvType::kBf16);
  EXPECT_EQ(KvStore::BytesPerBlock(Config(), KvType::kAuto), KvStore::BytesPerBlock(Config(), KvType::kBf16));
}

// As Qwen2.5-0.5B's, of which bfloat16 keeps too little.
TEST(KvType, KeysWithLargeBiasesAreKeptInFloat32) {
  const std::string folder = absl::StrCat(TANDEM_SOURCE_DIR, "/common/model/testdata/tiny-qwen2");
  const auto small = Model::Load(folder);
  ASSERT_TRUE(small.ok()) << small.status();
  EXPECT_GT(GreatestKeyBias(**small), 0.0f);
  EXPECT_LT(GreatestKeyBias(**small), kLargeKeyBias);
  EXPECT_EQ(CpuKvType(**small, KvType::kAuto), KvType::kBf16);
  EXPECT_EQ(CpuKvType(**small, KvType::kInt8), KvType::kInt8);

  const TemporaryFolder copy;
  std::filesystem::copy_file(folder + "/config.json", copy.path() + "/config.json");
  std::string weights = ReadFile(folder + "/model.safetensors", size_t{1} << 24).value();
  uint64_t header_bytes;
  std::memcpy(&header_bytes, weights.data(), sizeof(header_bytes));
  const auto header = nlohmann::json::parse(weights.substr(sizeof(header_bytes), header_bytes));
  const auto at = header.at("model.layers.1.self_attn.k_proj.bias").at("data_offsets").at(0).get<size_t>();
  constexpr uint16_t kMinus9 = 0xc110;  // In bfloat16.
  std::memcpy(weights.data() + sizeof(header_bytes) + header_bytes + at, &kMinus9, sizeof(kMinus9));
  copy.Write("model.safetensors", weights);
  const auto large = Model::Load(copy.path());
  ASSERT_TRUE(large.ok()) << large.status();
  EXPECT_EQ(GreatestKeyBias(**large), 9.0f);
  EXPECT_EQ(CpuKvType(**large, KvType::kAuto), KvType::kF32);
  EXPECT_EQ(CpuKvType(**large, KvType::kBf16), KvType::kBf16);
}

TEST(KvStore, RefusesSizesOutOfRange) {
  EXPECT_EQ(KvStore::BytesPerBlock(Config(), KvType::kF32), uint64_t{2} * 3 * kBlockTokens * (6 + 16) * 4);
  EXPECT_EQ(KvStore::BytesPerBlock(Config(), KvType::kBf16), uint64_t{2} * 3 * kBlockTokens * (6 + 16) * 2);
  // A line of scales each, and whole lines.
  EXPECT_EQ(KvStore::BytesPerBlock(Config(), KvType::kInt8), uint64_t{2} * 3 * (64 + 128 + 64 + 256));
  const auto create = [&](const ModelConfig& config, uint32_t num_blocks) {
    return KvStore::Create(config, KvType::kF32, num_blocks).status().code();
  };
  EXPECT_EQ(create(Config(), 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(create(Config(), UINT32_MAX / kBlockTokens + 1), absl::StatusCode::kInvalidArgument);
  ModelConfig huge = Config();
  huge.num_layers = huge.num_kv_heads = huge.head_dim = INT32_MAX;
  EXPECT_EQ(KvStore::BytesPerBlock(huge, KvType::kF32), std::nullopt);
  EXPECT_EQ(create(huge, 1), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tandem
