#include "verifier/process/kv_room.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "verifier/process/model_plan.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kGib = uint64_t{1} << 30;

// A model of 1.5 billion numbers on a machine of 16 GiB.
KvRoom Room() {
  return {.context = 32768,
          .token_bytes = 28672,
          .free = FreeMemory{.bytes = 16 * kGib, .of = "the machine"},
          .weight_bytes = kGib};
}

TEST(KvRoomTest, FollowsTheModelsContext) {
  KvRoom room = Room();
  EXPECT_EQ(ChooseKvTokens(room).tokens, kUsualKvTokens);
  EXPECT_EQ(ChooseKvTokens(room).because, "more than the model's context");
  room.context = 131'072;
  EXPECT_EQ(ChooseKvTokens(room).tokens, 131'072u);
  EXPECT_EQ(ChooseKvTokens(room).because, "the model's context");
  room.context = 131'079;
  EXPECT_EQ(ChooseKvTokens(room).tokens, 131'072u) << "whole blocks";
  room.free.reset();
  EXPECT_EQ(ChooseKvTokens(room).most, std::nullopt);
}

TEST(KvRoomTest, NeverTakesMoreThanItsShareOfWhatIsFree) {
  for (const uint64_t free_gib : {2, 3, 8, 64, 1024}) {
    for (const uint64_t context : {2048, 131'072, 10'000'000}) {
      for (const double share : {0.1, 0.5, 1.0}) {
        KvRoom room = Room();
        room.free->bytes = free_gib * kGib;
        room.context = context;
        room.share = share;
        room.promised_bytes = kGib / 2;
        const KvTokens chosen = ChooseKvTokens(room);
        const double left = static_cast<double>(room.free->bytes) - 1.5 * kGib;
        EXPECT_LE(static_cast<double>(chosen.tokens * room.token_bytes), share * left / 2);
        EXPECT_GE(chosen.tokens, kFewestKvTokens);
        if (chosen.tokens < context) EXPECT_THAT(chosen.because, HasSubstr("50 % of the memory"));
      }
    }
  }
}

TEST(KvRoomTest, KeepsTheLeastWhereNothingIsFree) {
  KvRoom room = Room();
  room.weight_bytes = UINT64_MAX;
  room.promised_bytes = UINT64_MAX;
  EXPECT_EQ(ChooseKvTokens(room).tokens, kFewestKvTokens);
  EXPECT_THAT(ChooseKvTokens(room).because, HasSubstr("the machine"));
}

}  // namespace
}  // namespace tandem
