// Keys that a GGUF file must have, each refused by its name where it is missing, and those that have
// defaults.

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/gguf/testing/gguf_writer.h"
#include "common/model/gguf_config.h"
#include "common/model/testing/model_folder_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

using Keys = std::vector<std::pair<std::string, double>>;

// Numbers of a file of the architecture; those with a fraction are floats.
const Keys kDense = {{"context_length", 64},      {"embedding_length", 8},
                     {"block_count", 1},          {"feed_forward_length", 6},
                     {"attention.head_count", 2}, {"attention.layer_norm_rms_epsilon", 1e-5}};

absl::StatusOr<ModelConfig> Read(const std::string& architecture, const Keys& keys,
                                 const std::string& without = "") {
  GgufWriter writer;
  writer.AddString("general.architecture", architecture);
  for (const auto& [key, value] : keys) {
    if (key == without) continue;
    const std::string name = absl::StrCat(architecture, ".", key);
    if (value == static_cast<double>(static_cast<uint32_t>(value))) {
      writer.AddUint32(name, static_cast<uint32_t>(value));
    } else {
      writer.AddFloat(name, static_cast<float>(value));
    }
  }
  const std::string numbers(10 * 8 * sizeof(float), '\0');
  writer.AddTensor("token_embd.weight", {10, 8}, /*type=*/0, numbers);
  const TemporaryFolder folder;
  folder.Write("model.gguf", writer.Bytes());
  return ReadGgufConfig(absl::StrCat(folder.path(), "/model.gguf"));
}

void ExpectEachIsMissed(const std::string& architecture, const Keys& keys,
                        const std::vector<std::string>& required) {
  const absl::StatusOr<ModelConfig> whole = Read(architecture, keys);
  ASSERT_TRUE(whole.ok()) << architecture << ": " << whole.status();
  for (const std::string& key : required) {
    const absl::Status status = Read(architecture, keys, key).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << architecture << " without " << key << ": " << status;
    EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("key ", architecture, ".", key, ": found nothing")));
  }
}

TEST(GgufRequiredKeysTest, AreMissedByName) {
  std::vector<std::string> all;
  for (const auto& [key, value] : kDense) all.push_back(key);
  for (const char* architecture : {"llama", "mistral", "qwen2", "qwen3"})
    ExpectEachIsMissed(architecture, kDense, all);
  Keys experts = kDense;
  experts.insert(experts.end(),
                 {{"expert_count", 4}, {"expert_used_count", 2}, {"expert_feed_forward_length", 6}});
  ExpectEachIsMissed("qwen3moe", experts,
                     {"expert_used_count", "context_length", "attention.layer_norm_rms_epsilon"});
  Keys latent = kDense;
  latent.insert(latent.end(), {{"attention.head_count_kv", 1},
                               {"expert_count", 4},
                               {"expert_used_count", 2},
                               {"expert_feed_forward_length", 6},
                               {"expert_shared_count", 1},
                               {"leading_dense_block_count", 0},
                               {"attention.kv_lora_rank", 4},
                               {"attention.key_length", 6},
                               {"attention.value_length", 4},
                               {"rope.dimension_count", 2}});
  ExpectEachIsMissed(
      "deepseek2", latent,
      {"expert_used_count", "expert_feed_forward_length", "expert_shared_count", "leading_dense_block_count",
       "attention.kv_lora_rank", "rope.dimension_count", "attention.key_length", "attention.value_length"});
}

TEST(GgufRequiredKeysTest, OthersHaveTheFormatsDefaults) {
  const absl::StatusOr<ModelConfig> config = Read("llama", kDense);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->num_kv_heads, 2);
  EXPECT_EQ(config->head_dim, 4);
  EXPECT_EQ(config->rope_theta, 10000.0);
}

TEST(GgufRequiredKeysTest, AreNumbers) {
  GgufWriter writer;
  writer.AddString("general.architecture", "llama");
  writer.AddString("llama.context_length", "long");
  const TemporaryFolder folder;
  folder.Write("model.gguf", writer.Bytes());
  EXPECT_THAT(ReadGgufConfig(absl::StrCat(folder.path(), "/model.gguf")).status().message(),
              HasSubstr("key llama.context_length: found \"long\", expected a number"));
}

}  // namespace
}  // namespace tandem
