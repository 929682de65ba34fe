// Spoils a valid model folder in seeded random ways: whatever happens to the bytes, loading gives a model or
// an error, never a crash. Most useful under the address and undefined-behaviour sanitizers.

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/model/model.h"
#include "common/model/tensor_convert.h"
#include "common/model/testing/family_fixture.h"
#include "common/model/testing/lora_fixture.h"
#include "common/model/testing/model_folder_fixture.h"
#include "common/model/testing/quantized_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

using Random = std::mt19937_64;

size_t Below(Random& random, size_t bound) {
  return static_cast<size_t>(random() % bound);
}

// One to four changes: a flipped bit, a new byte, a byte that matters to JSON, a cut, a removed or repeated
// piece.
std::string Mutated(std::string bytes, Random& random) {
  constexpr char kStructure[] = "{}[]\",:-.0123456789eE";
  const size_t num_changes = 1 + Below(random, 4);
  for (size_t i = 0; i < num_changes && !bytes.empty(); ++i) {
    const size_t at = Below(random, bytes.size());
    const size_t length = std::min(bytes.size() - at, 1 + Below(random, 16));
    switch (Below(random, 8)) {
      case 0:
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << Below(random, 8)));
        break;
      case 2:
        bytes[at] = static_cast<char>(random());
        break;
      case 3:
      case 4:
        bytes[at] = kStructure[Below(random, sizeof(kStructure) - 1)];
        break;
      case 5:
        bytes.resize(at);
        break;
      case 6:
        bytes.erase(at, length);
        break;
      case 7:
        bytes.insert(at, bytes.substr(at, length));
        break;
    }
  }
  return bytes;
}

// A model, or where it has one its next-token module.
absl::StatusOr<std::shared_ptr<const Model>> LoadAll(const std::string& folder) {
  absl::StatusOr<std::shared_ptr<const Model>> model = Model::Load(folder);
  if (!model.ok() || (*model)->config().num_next_token_modules == 0) return model;
  return Model::LoadHead(folder, *model);
}

struct Outcome {
  int loaded = 0;
  int refused = 0;
};

// Loads `count` folders in which the file `name` is mutated, in its first bytes.
Outcome LoadMutated(const TemporaryFolder& folder, const std::string& name, const std::string& valid,
                    int count, uint64_t seed, size_t mutable_bytes = SIZE_MAX) {
  Outcome outcome;
  Random random(seed);
  double sum = 0;
  for (int i = 0; i < count; ++i) {
    const size_t num_mutable = std::min(mutable_bytes, valid.size());
    folder.Write(name, Mutated(valid.substr(0, num_mutable), random) + valid.substr(num_mutable));
    const auto model = LoadAll(folder.path());
    if (model.ok()) {
      sum += SumOfWeights(**model);
      ++outcome.loaded;
    } else {
      EXPECT_THAT(std::string(model.status().message()), HasSubstr(folder.path()));
      EXPECT_LT(model.status().message().size(), 2000u);
      ++outcome.refused;
    }
  }
  folder.Write(name, valid);
  EXPECT_EQ(LoadAll(folder.path()).status(), absl::OkStatus());
  // The sum may be anything, NaN included; using it keeps the reads from being dropped.
  ::testing::Test::RecordProperty("sum", std::to_string(sum));
  return outcome;
}

TEST(MutationTest, SpoiltWeightsNeverCrash) {
  const TemporaryFolder folder;
  folder.Write("config.json", SmallConfig().dump());
  const std::string weights = SafetensorsBytes(SmallTensors());
  const Outcome outcome = LoadMutated(folder, "model.safetensors", weights, 4'000, 1);
  // Changes in the data still load, most others do not: the loop reaches both sides.
  EXPECT_GT(outcome.loaded, 200);
  EXPECT_GT(outcome.refused, 2000);
}

TEST(MutationTest, SpoiltConfigurationsNeverCrash) {
  const TemporaryFolder folder;
  folder.Write("config.json", SmallConfig().dump());
  folder.Write("model.safetensors", SafetensorsBytes(SmallTensors()));
  const Outcome outcome = LoadMutated(folder, "config.json", SmallConfig().dump(), 4'000, 2);
  EXPECT_GT(outcome.loaded, 50);
  EXPECT_GT(outcome.refused, 2000);
}

TEST(MutationTest, SpoiltIndexesNeverCrash) {
  const TemporaryFolder folder;
  folder.Write("config.json", SmallConfig().dump());
  folder.Write("s.safetensors", SafetensorsBytes(SmallTensors()));
  nlohmann::json index;
  for (const auto& [name, shape] : SmallTensors()) index["weight_map"][name] = "s.safetensors";
  folder.Write("model.safetensors.index.json", index.dump());
  const Outcome outcome = LoadMutated(folder, "model.safetensors.index.json", index.dump(), 2'000, 3);
  EXPECT_GT(outcome.refused, 1500);
}

TEST(MutationTest, SpoiltHeadsNeverCrash) {
  struct Files {
    const char* folder;
    const char* weights = "model.safetensors";
  };
  for (const Files& files :
       {Files{"eagle3-specforge"}, Files{"eagle31-speculators"}, Files{"eagle31-specforge"},
        Files{"eagle3-modelopt-final"}, Files{"eagle3-deep-llama"}, Files{"eagle1"}, Files{"medusa-vllm"},
        Files{"mimo"}, Files{"medusa", "medusa_lm_head.safetensors"}, Files{"dflash-specforge"},
        Files{"dflash-speculators"}, Files{"dspark-deepspec"}}) {
    const TemporaryFolder folder;
    const std::string from =
        absl::StrCat(TANDEM_SOURCE_DIR, "/common/model/testdata/heads/", files.folder, "/");
    std::string config = ReadFile(from + "config.json", 1 << 20).value();
    std::string weights = ReadFile(from + files.weights, 1 << 24).value();
    folder.Write("config.json", config);
    folder.Write(files.weights, weights);
    const Outcome spoilt_config = LoadMutated(folder, "config.json", config, 300, 4);
    EXPECT_GT(spoilt_config.loaded, 5) << files.folder;
    EXPECT_GT(spoilt_config.refused, 100) << files.folder;
    // The header alone: the tensors are most of the file.
    const Outcome spoilt_weights =
        LoadMutated(folder, files.weights, weights, 150, 5, /*mutable_bytes=*/2048);
    EXPECT_GT(spoilt_weights.refused, 75) << files.folder;
  }
}

TEST(MutationTest, SpoiltMixturesNeverCrash) {
  for (const char* const family :
       {"mixtral", "qwen2-moe", "qwen3-moe", "gpt-oss", "deepseek-v2", "deepseek-v3"}) {
    nlohmann::json golden = FamilyGolden(family);
    const std::string config = golden.at("config").dump();
    Random random(6);
    int num_loaded = 0, num_refused = 0;
    double sum = 0;
    for (int i = 0; i < 1000; ++i) {
      const std::string text = Mutated(config, random);
      absl::Status status = ParseModelConfig(text, "folder/config.json").status();
      if (status.ok() && i % 8 == 0) {
        // What is valid by itself may still not be what the tensors are.
        golden["config"] = nlohmann::json::parse(text);
        const auto model = LoadFamilyModel(golden, 1, TensorView::DType::kBF16);
        if (model.ok()) sum += SumOfWeights(**model);
        status = model.status();
      } else if (!status.ok()) {
        EXPECT_THAT(std::string(status.message()), HasSubstr("folder/config.json"));
      }
      ++(status.ok() ? num_loaded : num_refused);
    }
    EXPECT_GT(num_loaded, 20) << family;
    EXPECT_GT(num_refused, 500) << family;
    ::testing::Test::RecordProperty(family, std::to_string(sum));
  }
}

// Their configurations, their headers, and in turn the numbers in small integer tensors, such as the groups
// of inputs, which are where others are read.
TEST(MutationTest, SpoiltQuantizedModelsNeverCrash) {
  for (const std::string& name : QuantizedModelNames()) {
    SCOPED_TRACE(name);
    const nlohmann::json golden = QuantizedGolden(name);
    const TemporaryFolder folder;
    WriteQuantizedModel(golden, folder);
    const std::string text = golden.at("config").dump();
    const Outcome configs = LoadMutated(folder, "config.json", text, 50, 7);
    EXPECT_GT(configs.loaded, 0);
    EXPECT_GT(configs.refused, 20);
    const std::string quantization = golden.at("config").at("quantization_config").dump();
    Random random(8);
    int num_loaded = 0, num_refused = 0;
    double sum = 0;
    for (int i = 0; i < 60; ++i) {
      // Only what says how matrices are kept.
      const size_t at = text.find(quantization);
      ASSERT_NE(at, std::string::npos);
      folder.Write("config.json", absl::StrCat(text.substr(0, at), Mutated(quantization, random),
                                               text.substr(at + quantization.size())));
      const auto model = Model::Load(folder.path());
      if (model.ok()) {
        sum += SumOfWeights(**model);
        ++num_loaded;
      } else {
        EXPECT_THAT(std::string(model.status().message()), HasSubstr(folder.path()));
        EXPECT_LT(model.status().message().size(), 2000u);
        ++num_refused;
      }
    }
    EXPECT_GT(num_loaded, 0);
    EXPECT_GT(num_refused, 20);
    folder.Write("config.json", text);
    const std::string weights = QuantizedWeights(golden);
    const Outcome headers = LoadMutated(folder, "model.safetensors", weights, 30, 9, /*mutable_bytes=*/4096);
    EXPECT_GT(headers.refused, 15);
    // Anywhere: lengths stay as they are, or nearly nothing would load.
    for (int i = 0; i < 30; ++i) {
      std::string spoilt = weights;
      for (int j = 0; j < 200; ++j) spoilt[spoilt.size() - 1 - Below(random, spoilt.size() / 2)] = '\x7f';
      folder.Write("model.safetensors", spoilt);
      const auto model = Model::Load(folder.path());
      if (model.ok()) sum += SumOfWeights(**model);
    }
    ::testing::Test::RecordProperty(name, std::to_string(sum));
  }
}

TEST(MutationTest, SpoiltAdaptersNeverCrash) {
  for (const char* const name : {"llama", "phi3"}) {
    const nlohmann::json golden = AdapterGolden(name);
    const auto model = MakeAdaptedModel(golden);
    ASSERT_NE(model, nullptr);
    for (const char* const file : {"adapter_config.json", "adapter_model.safetensors"}) {
      const TemporaryFolder folder;
      WriteAdapter(golden, 1, folder, TensorView::DType::kBF16);
      const std::string valid = ReadFile(folder.PathOf(file), 1 << 24).value();
      // The header and some numbers: the tensors are most of the file.
      const size_t num_mutable = std::min<size_t>(valid.size(), 4096);
      Random random(7);
      int num_loaded = 0, num_refused = 0;
      double sum = 0;
      for (int i = 0; i < 1000; ++i) {
        folder.Write(file, Mutated(valid.substr(0, num_mutable), random) + valid.substr(num_mutable));
        const auto adapter = LoraAdapter::Load(folder.path(), model->config());
        if (!adapter.ok()) {
          EXPECT_THAT(std::string(adapter.status().message()), HasSubstr(folder.path()));
          EXPECT_LT(adapter.status().message().size(), 2000u);
          ++num_refused;
          continue;
        }
        for (const LoraLayer& layer : (*adapter)->layers()) {
          for (const LoraPair* pair : {&layer.query, &layer.key, &layer.value, &layer.attention_out,
                                       &layer.gate, &layer.up, &layer.down}) {
            if (!pair->exists()) continue;
            for (const TensorView* view : {&pair->a, &pair->b}) {
              std::vector<float> numbers(static_cast<size_t>(view->num_elements()));
              ConvertToFloat(*view, absl::MakeSpan(numbers));
              for (const float number : numbers) sum += number;
            }
          }
        }
        ++num_loaded;
      }
      EXPECT_GT(num_refused, 300) << name << ", " << file;
      if (file == std::string("adapter_config.json")) {
        EXPECT_GT(num_loaded, 20) << name;
      }
      ::testing::Test::RecordProperty(absl::StrCat(name, file), std::to_string(sum));
    }
  }
}

}  // namespace
}  // namespace tandem
