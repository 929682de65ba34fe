#include "common/config/sealed_bytes.h"

#include "common/config/token_digest.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tandem/v1/routing.pb.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

v1::LearnedRouting Message() {
  v1::LearnedRouting message;
  message.set_format_version(1);
  message.add_models()->set_model("m");
  return message;
}

TEST(SealedBytesTest, GivesTheMessageBack) {
  const std::string message = Message().SerializeAsString();
  EXPECT_EQ(Unseal(Seal(message)).value(), message);
  EXPECT_EQ(Unseal(Seal("")).value(), "");
  EXPECT_EQ(Unseal(message).value(), message) << "without a seal";
  EXPECT_EQ(Unseal("").value(), "");
}

TEST(SealedBytesTest, VersionsWithoutSealsSkipIt) {
  v1::LearnedRouting read;
  ASSERT_TRUE(read.ParseFromString(Seal(Message().SerializeAsString())));
  ASSERT_EQ(read.models_size(), 1);
  EXPECT_EQ(read.models(0).model(), "m");
  EXPECT_EQ(v1::LearnedRouting::descriptor()->FindFieldByNumber(kSealField), nullptr);
}

// Every length and every bit. Three bytes and the mark say that there is a seal at all: what has them changed
// is a message with an odd first field, which is as whole as before.
TEST(SealedBytesTest, DamageIsFound) {
  const std::string message = Message().SerializeAsString();
  const std::string sealed = Seal(message);
  constexpr size_t kMark = 11;
  for (size_t size = kMark; size < sealed.size(); ++size) {
    EXPECT_EQ(Unseal(sealed.substr(0, size)).status().code(), absl::StatusCode::kDataLoss) << size;
  }
  for (size_t bit = 8 * kMark; bit < 8 * sealed.size(); ++bit) {
    std::string flipped = sealed;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_EQ(Unseal(flipped).status().code(), absl::StatusCode::kDataLoss) << bit;
  }
  EXPECT_EQ(Unseal(sealed + "x").status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(Unseal(sealed.substr(0, sealed.size() - 2)).status().message()),
              HasSubstr("5 bytes of 7, so it was cut short"));
}

}  // namespace
}  // namespace tandem
