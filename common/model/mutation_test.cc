// Spoils a valid model folder in seeded random ways: whatever happens to the bytes, loading gives a model or
// an error, never a crash. Most useful under the address and undefined-behaviour sanitizers.

#include <random>
#include <string>
#include <vector>

#include "common/model/model.h"
#include "common/model/model_folder_fixture.h"
#include "common/model/tensor_convert.h"
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

// Touches every byte of every tensor.
double SumOfWeights(const Model& model) {
  double sum = 0;
  const auto add = [&sum](const TensorView& view) {
    if (!view.exists()) return;
    std::vector<float> values(view.num_elements());
    ConvertToFloat(view, absl::MakeSpan(values));
    for (float value : values) sum += value;
  };
  for (const TensorView* view : {&model.embedding(), &model.output(), &model.final_norm()}) add(*view);
  for (const LayerWeights& layer : model.layers()) {
    for (const TensorView* view : {&layer.input_norm, &layer.query, &layer.key, &layer.value,
                                   &layer.attention_out, &layer.post_attention_norm, &layer.gate, &layer.up,
                                   &layer.down, &layer.query_bias, &layer.query_norm, &layer.gate_bias}) {
      add(*view);
    }
  }
  return sum;
}

struct Outcome {
  int loaded = 0;
  int refused = 0;
};

// Loads `count` folders in which the file `name` is mutated.
Outcome LoadMutated(const TemporaryFolder& folder, const std::string& name, const std::string& valid,
                    int count, uint64_t seed) {
  Outcome outcome;
  Random random(seed);
  double sum = 0;
  for (int i = 0; i < count; ++i) {
    folder.Write(name, Mutated(valid, random));
    const auto model = Model::Load(folder.path());
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
  EXPECT_EQ(Model::Load(folder.path()).status(), absl::OkStatus());
  // The sum may be anything, NaN included; using it keeps the reads from being dropped.
  ::testing::Test::RecordProperty("sum", std::to_string(sum));
  return outcome;
}

TEST(MutationTest, SpoiltWeightsNeverCrash) {
  const TemporaryFolder folder;
  folder.Write("config.json", SmallConfig().dump());
  const std::string weights = SafetensorsBytes(SmallTensors());
  const Outcome outcome = LoadMutated(folder, "model.safetensors", weights, 10'000, 1);
  // Changes in the data still load, most others do not: the loop reaches both sides.
  EXPECT_GT(outcome.loaded, 500);
  EXPECT_GT(outcome.refused, 5000);
}

TEST(MutationTest, SpoiltConfigurationsNeverCrash) {
  const TemporaryFolder folder;
  folder.Write("config.json", SmallConfig().dump());
  folder.Write("model.safetensors", SafetensorsBytes(SmallTensors()));
  const Outcome outcome = LoadMutated(folder, "config.json", SmallConfig().dump(), 8'000, 2);
  EXPECT_GT(outcome.loaded, 100);
  EXPECT_GT(outcome.refused, 4000);
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

}  // namespace
}  // namespace tandem
