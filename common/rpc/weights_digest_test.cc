#include "common/rpc/weights_digest.h"

#include <string>

#include "absl/strings/escaping.h"
#include "common/base/temporary_folder.h"
#include "common/config/token_digest.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

// A safetensors file of one BF16 tensor of one number.
std::string OneTensor(const std::string& name, char first_byte) {
  const std::string header = "{\"" + name + "\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[0,2]}}";
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(header.size());
  return bytes + header + first_byte + '\0';
}

std::string Digest(const std::string& bytes) {
  const Sha256Digest digest = Sha256(bytes);
  return std::string(reinterpret_cast<const char*>(digest.data()), digest.size());
}

TEST(WeightsDigestTest, IsThatOfConfigurationAndWeights) {
  const TemporaryFolder folder;
  folder.Write("config.json", "{}");
  folder.Write("model.safetensors", OneTensor("a", 1));
  EXPECT_EQ(WeightsDigest(folder.path()).value(), Digest(Digest("{}") + Digest(OneTensor("a", 1))));
  folder.Write("model.safetensors", OneTensor("a", 2));
  EXPECT_EQ(WeightsDigest(folder.path()).value(), Digest(Digest("{}") + Digest(OneTensor("a", 2))));
  folder.Write("config.json", "[]");
  EXPECT_EQ(WeightsDigest(folder.path()).value(), Digest(Digest("[]") + Digest(OneTensor("a", 2))));
}

TEST(WeightsDigestTest, ShardsCountByFileName) {
  const TemporaryFolder folder;
  folder.Write("config.json", "{}");
  folder.Write("model.safetensors.index.json",
               R"({"weight_map": {"b": "x1.safetensors", "a": "x2.safetensors"}})");
  folder.Write("x1.safetensors", OneTensor("b", 1));
  folder.Write("x2.safetensors", OneTensor("a", 2));
  EXPECT_EQ(WeightsDigest(folder.path()).value(),
            Digest(Digest("{}") + Digest(OneTensor("b", 1)) + Digest(OneTensor("a", 2))));
}

TEST(WeightsDigestTest, EndsWhenTold) {
  const TemporaryFolder folder;
  folder.Write("config.json", "{}");
  folder.Write("model.safetensors", OneTensor("a", 1));
  EXPECT_EQ(WeightsDigest(folder.path(), [] { return true; }).status().code(), absl::StatusCode::kCancelled);
  const absl::Status missing = WeightsDigest(folder.path() + "/nothing").status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("nothing"));
}

}  // namespace
}  // namespace tandem
