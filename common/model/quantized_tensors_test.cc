// Quantised checkpoints (testdata/quantized): the numbers are those of other implementations, and what is
// refused, and with which words.

#include "common/model/quantized_tensors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/model/model.h"
#include "common/model/quantized_grid.h"
#include "common/model/tensor_convert.h"
#include "common/model/testing/quantized_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

uint64_t DigestOf(const std::vector<float>& numbers) {
  uint64_t sum = 0;
  for (size_t i = 0; i < numbers.size(); ++i) sum += (2 * i + 1) * std::bit_cast<uint32_t>(numbers[i]);
  return sum;
}

std::vector<float> AllNumbers(const TensorView& tensor) {
  std::vector<float> numbers(static_cast<size_t>(tensor.num_elements()));
  ConvertToFloat(tensor, absl::MakeSpan(numbers));
  return numbers;
}

std::unique_ptr<TensorSource> OpenTensors(const json& golden, const TemporaryFolder& folder) {
  WriteQuantizedModel(golden, folder);
  const auto config = ParseModelConfig(golden.at("config").dump(), folder.path());
  EXPECT_EQ(config.status(), absl::OkStatus());
  auto files = WeightFiles::Open(folder.path());
  EXPECT_EQ(files.status(), absl::OkStatus());
  return MakeQuantizedTensors(*std::move(files), config.value().quantization.value(), "embed_tokens.weight");
}

class QuantizedTensorsTest : public testing::TestWithParam<std::string> {};

TEST_P(QuantizedTensorsTest, HasTheNumbersOfOtherImplementations) {
  const json golden = QuantizedGolden(GetParam());
  const TemporaryFolder folder;
  const std::unique_ptr<TensorSource> tensors = OpenTensors(golden, folder);
  ASSERT_GE(golden.at("matrices").size(), 4u);
  for (const auto& [name, expected] : golden.at("matrices").items()) {
    SCOPED_TRACE(name);
    const auto shape = expected.at("shape").get<std::vector<int64_t>>();
    EXPECT_TRUE(tensors->Contains(name));
    const absl::StatusOr<TensorView> matrix = tensors->Take(name, shape);
    ASSERT_TRUE(matrix.ok()) << matrix.status();
    ASSERT_EQ(matrix->dtype, TensorView::DType::kQuantized);
    std::vector<float> row(static_cast<size_t>(shape[1]));
    ConvertRowsToFloat(*matrix, 0, 1, absl::MakeSpan(row));
    EXPECT_EQ(row, expected.at("row").get<std::vector<float>>());
    const std::vector<float> numbers = AllNumbers(*matrix);
    EXPECT_EQ(absl::StrCat(DigestOf(numbers)), expected.at("digest").get<std::string>());
    // Parts have the same rows, wherever they begin.
    const int64_t half = shape[0] / 2, begin = half - 3, count = shape[0] - begin - 1;
    const std::vector<float> rows = AllNumbers(RowsOf(RowsOf(*matrix, 1, shape[0] - 1), begin - 1, count));
    EXPECT_TRUE(std::equal(rows.begin(), rows.end(), numbers.begin() + begin * shape[1]));
    const std::vector<float> groups = AllNumbers(RowsOfGroups(*matrix, half, 1, 2));
    ASSERT_EQ(groups.size(), static_cast<size_t>(4 * shape[1]));
    EXPECT_TRUE(
        std::equal(groups.begin() + 2 * shape[1], groups.end(), numbers.begin() + (half + 1) * shape[1]));
    // A half of it counts as half of the bytes.
    EXPECT_NEAR(static_cast<double>(matrix->num_bytes()),
                2.0 * static_cast<double>(matrix->bytes_of(half * shape[1])), 2.0);
    EXPECT_GT(matrix->num_bytes(), static_cast<uint64_t>(shape[0] * shape[1] / 2));
  }
}

TEST_P(QuantizedTensorsTest, LoadsAsAModelWhoseMatricesCanBeLetGoAndReadAgain) {
  const TemporaryFolder folder;
  WriteQuantizedModel(QuantizedGolden(GetParam()), folder);
  const auto model = Model::Load(folder.path());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->embedding().dtype, TensorView::DType::kF16);
  const TensorView& matrix = (*model)->layers().front().query;
  const std::vector<float> before = AllNumbers(matrix);
  (*model)->Release(matrix);
  EXPECT_EQ(AllNumbers(matrix), before);
  EXPECT_LT((*model)->weight_bytes(), 4 * (*model)->num_parameters());
}

INSTANTIATE_TEST_SUITE_P(All, QuantizedTensorsTest, testing::ValuesIn(QuantizedModelNames()),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(QuantizedMatrixTest, EveryFloat8IsExact) {
  for (uint32_t bits = 0; bits < 256; ++bits) {
    const float found = Float8ToFloat(static_cast<uint8_t>(bits));
    EXPECT_EQ(std::signbit(found), bits >= 128 && (bits & 0x7f) != 0x7f) << bits;
    const uint32_t exponent = bits >> 3 & 0xf, mantissa = bits & 7;
    if (exponent == 15 && mantissa == 7) {
      EXPECT_TRUE(std::isnan(found)) << bits;
      continue;
    }
    const double magnitude = exponent == 0
                                 ? mantissa / 8.0 * std::pow(2.0, -6)
                                 : (1 + mantissa / 8.0) * std::pow(2.0, static_cast<int>(exponent) - 7);
    EXPECT_EQ(std::abs(static_cast<double>(found)), magnitude) << bits;
  }
}

// A symmetric checkpoint's zero points say so in either way that writers have, whatever it calls itself.
TEST(QuantizedTensorsTest, SymmetricZeroPointsMayBeWrittenInTwoWays) {
  json golden = QuantizedGolden("gptq-symmetric");
  const std::string name = "model.layers.0.self_attn.q_proj.weight";
  for (json& tensor : golden["tensors"]) {
    if (tensor[0].get<std::string>().ends_with(".qzeros"))
      tensor[3] = {{"constant", -2004318072}};  // 0x88888888
  }
  const TemporaryFolder folder;
  const auto tensors = OpenTensors(golden, folder);
  const json& expected = golden["matrices"][name];
  const auto matrix = tensors->Take(name, expected["shape"].get<std::vector<int64_t>>());
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  EXPECT_EQ(absl::StrCat(DigestOf(AllNumbers(*matrix))), expected["digest"].get<std::string>());
}

// compressed-tensors writes -1 where it has not reordered inputs, and zero points though all are zero.
TEST(QuantizedTensorsTest, PartsThatSayNothingAreRead) {
  json golden = QuantizedGolden("packed-4-bit");
  for (const char* const of : {"self_attn.q_proj", "mlp.up_proj"}) {
    golden["tensors"].push_back(
        {absl::StrCat("model.layers.0.", of, ".weight_g_idx"), "I32", {32}, {{"constant", -1}}});
  }
  const TemporaryFolder packed;
  WriteQuantizedModel(golden, packed);
  EXPECT_EQ(Model::Load(packed.path()).status(), absl::OkStatus());

  golden = QuantizedGolden("int8-channel");
  golden["tensors"].push_back(
      {"model.layers.0.mlp.up_proj.weight_zero_point", "I8", {48, 1}, {{"constant", 0}}});
  golden["tensors"].push_back({"model.layers.0.self_attn.k_scale", "F32", {1}, {{"constant", 1}}});
  const TemporaryFolder plain;
  WriteQuantizedModel(golden, plain);
  EXPECT_EQ(Model::Load(plain.path()).status(), absl::OkStatus());
}

constexpr absl::StatusCode kWrong = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kNotThere = absl::StatusCode::kUnimplemented;

struct BadTensors {
  const char* name;
  const char* model;
  const char* tensor;
  const char* type = nullptr;  // What changes of it; removed where nothing does.
  json shape;
  json how;
  const char* message;
};

class QuantizedTensorsRefusalTest : public testing::TestWithParam<BadTensors> {};

TEST_P(QuantizedTensorsRefusalTest, NamesFileTensorFoundAndExpected) {
  const BadTensors& bad = GetParam();
  json golden = QuantizedGolden(bad.model);
  const std::string name = absl::StrCat("model.layers.0.", bad.tensor);
  if (bad.type == nullptr && bad.shape.is_null() && bad.how.is_null()) {
    json kept = json::array();
    for (const json& tensor : golden["tensors"]) {
      if (tensor[0] != name) kept.push_back(tensor);
    }
    ASSERT_EQ(kept.size() + 1, golden["tensors"].size());
    golden["tensors"] = kept;
  } else {
    json& tensor = QuantizedTensorEntry(golden, name);
    if (bad.type != nullptr) tensor[1] = bad.type;
    if (!bad.shape.is_null()) tensor[2] = bad.shape;
    if (!bad.how.is_null()) tensor[3] = bad.how;
  }
  const TemporaryFolder folder;
  WriteQuantizedModel(golden, folder);
  const absl::Status status = Model::Load(folder.path()).status();
  EXPECT_EQ(status.code(), kWrong) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat(folder.path(), "/model.safetensors: tensor \"", name)));
  EXPECT_THAT(std::string(status.message()), HasSubstr(bad.message));
}

const json kAny = {{"constant", 1}};

INSTANTIATE_TEST_SUITE_P(
    All, QuantizedTensorsRefusalTest,
    testing::Values(
        BadTensors{"AwqShape",
                   "awq",
                   "mlp.up_proj.qweight",
                   "I32",
                   {6, 32},
                   kAny,
                   "qweight\": I32 [6, 32], expected I32 [32, 6]"},
        BadTensors{"AwqType",
                   "awq",
                   "mlp.up_proj.qweight",
                   "F32",
                   {32, 6},
                   kAny,
                   "F32 [32, 6], expected I32 [32, 6]"},
        BadTensors{"AwqNoZeros", "awq", "mlp.up_proj.qzeros", nullptr, nullptr, nullptr,
                   "qzeros\" is missing, expected I32 [2, 6]"},
        BadTensors{"AwqScales",
                   "awq",
                   "mlp.up_proj.scales",
                   "F16",
                   {1, 48},
                   kAny,
                   "F16 [1, 48], expected F32, F16 or BF16 [2, 48]"},
        BadTensors{"AwqScaleType",
                   "awq",
                   "mlp.up_proj.scales",
                   "I32",
                   {2, 48},
                   kAny,
                   "I32 [2, 48], expected F32, F16 or BF16 [2, 48]"},
        BadTensors{"GptqShape",
                   "gptq-4-bit",
                   "mlp.down_proj.qweight",
                   "I32",
                   {48, 4},
                   kAny,
                   "I32 [48, 4], expected I32 [6, 32]"},
        BadTensors{"GptqNoIndex", "gptq-4-bit", "mlp.down_proj.g_idx", nullptr, nullptr, nullptr,
                   "g_idx\" is missing, expected I32 [48]"},
        BadTensors{"GptqIndexBeyond",
                   "gptq-4-bit",
                   "mlp.down_proj.g_idx",
                   "I32",
                   {48},
                   {{"constant", 3}},
                   "g_idx\": 3 at 0, expected a group from 0 to 2"},
        BadTensors{"GptqIndexBelow",
                   "gptq-4-bit",
                   "mlp.down_proj.g_idx",
                   "I32",
                   {48},
                   {{"constant", -2}},
                   "g_idx\": -2 at 0, expected a group from 0 to 2"},
        BadTensors{"GptqIndexOfAnotherSize",
                   "gptq-4-bit",
                   "mlp.down_proj.g_idx",
                   "I32",
                   {47},
                   kAny,
                   "I32 [47], expected I32 [48]"},
        BadTensors{
            "GptqNotSymmetric",
            "gptq-symmetric",
            "mlp.down_proj.qzeros",
            "I32",
            {1, 4},
            {{"constant", 0x66666666}},
            "qzeros\": expected 7 for all zero points, or for all of them 8, as quantization_config.sym is"},
        BadTensors{"GptqBias",
                   "gptq-symmetric",
                   "mlp.down_proj.bias",
                   "F16",
                   {32},
                   kAny,
                   "bias\": expected only the tensors of the LlamaForCausalLM"},
        BadTensors{"PackedShape",
                   "packed-4-bit",
                   "mlp.down_proj.weight_packed",
                   "I32",
                   {32, 5},
                   kAny,
                   "I32 [32, 5], expected I32 [32, 6]"},
        BadTensors{"PackedShapeTensor",
                   "packed-4-bit",
                   "mlp.down_proj.weight_shape",
                   "I64",
                   {2},
                   {{"values", {32, 47}}},
                   "weight_shape\": [32, 47], expected [32, 48] as in config.json"},
        BadTensors{"PackedShapeType",
                   "packed-4-bit",
                   "mlp.down_proj.weight_shape",
                   "F32",
                   {2},
                   kAny,
                   "weight_shape\": F32 [2], expected I64 [2]"},
        BadTensors{"PackedZeros", "packed-zero-points", "mlp.down_proj.weight_zero_point", nullptr, nullptr,
                   nullptr, "weight_zero_point\" is missing, expected I32 [4, 11]"},
        BadTensors{"PackedScales",
                   "packed-4-bit",
                   "mlp.down_proj.weight_scale",
                   "F16",
                   {32},
                   kAny,
                   "F16 [32], expected F32, F16 or BF16 [32, 3]"},
        BadTensors{"Int8Type",
                   "int8-channel",
                   "mlp.down_proj.weight",
                   "U8",
                   {32, 48},
                   kAny,
                   "U8 [32, 48], expected I8 [32, 48]"},
        BadTensors{"Int8NoScale", "int8-channel", "mlp.down_proj.weight_scale", nullptr, nullptr, nullptr,
                   "weight_scale\" is missing, expected F32, F16 or BF16 [32, 1]"},
        BadTensors{"Float8Type",
                   "fp8-tensor",
                   "mlp.down_proj.weight",
                   "F8_E5M2",
                   {32, 48},
                   kAny,
                   "F8_E5M2 [32, 48], expected F8_E4M3 [32, 48]"},
        BadTensors{"Float8Scale",
                   "fp8-tensor",
                   "mlp.down_proj.weight_scale",
                   "F32",
                   {2},
                   kAny,
                   "F32 [2], expected F32, F16 or BF16 [1, 1]"},
        BadTensors{"Float8ScaleType",
                   "fp8-tensor",
                   "mlp.down_proj.weight_scale",
                   "F8_E8M0",
                   {1},
                   kAny,
                   "F8_E8M0 [1], expected F32, F16 or BF16 [1, 1]"},
        BadTensors{"Float8Blocks",
                   "fp8-blocks",
                   "mlp.experts.1.up_proj.weight_scale_inv",
                   "BF16",
                   {1, 2},
                   kAny,
                   "BF16 [1, 2], expected F32, F16 or BF16 [2, 2]"}),
    [](const auto& instance) { return instance.param.name; });

TEST(QuantizedTensorsTest, ZeroPointsOfSymmetricIntegersAreZero) {
  json golden = QuantizedGolden("int8-channel");
  golden["tensors"].push_back(
      {"model.layers.0.mlp.up_proj.weight_zero_point", "I8", {48, 1}, {{"constant", 1}}});
  const TemporaryFolder folder;
  WriteQuantizedModel(golden, folder);
  EXPECT_THAT(
      std::string(Model::Load(folder.path()).status().message()),
      HasSubstr("model.layers.0.mlp.up_proj.weight_zero_point\": expected zeros, as `symmetric` is true"));
}

TEST(QuantizedTensorsTest, SizesThatDoNotFillWordsAreRefused) {
  json golden = QuantizedGolden("awq");
  golden["config"]["intermediate_size"] = 44;
  const TemporaryFolder folder;
  WriteQuantizedModel(golden, folder);
  EXPECT_THAT(std::string(Model::Load(folder.path()).status().message()),
              HasSubstr("mlp.gate_proj.qweight\": expected with a number of outputs that 8 divides, not 44"));
  golden = QuantizedGolden("gptq-4-bit");
  golden["config"]["hidden_size"] = 36;
  golden["config"]["head_dim"] = 8;
  QuantizedTensorEntry(golden, "model.embed_tokens.weight")[2] = {64, 36};
  QuantizedTensorEntry(golden, "model.norm.weight")[2] = {36};
  const TemporaryFolder other;
  WriteQuantizedModel(golden, other);
  EXPECT_THAT(std::string(Model::Load(other.path()).status().message()),
              HasSubstr("lm_head.qweight\": expected with a number of inputs that 8 divides, not 36"));
}

TEST(QuantizedTensorsTest, DraftHeadsAreRefused) {
  // A Llama's folder that has the projection of an EAGLE head.
  json golden = QuantizedGolden("awq");
  golden["tensors"].push_back({"fc.weight", "BF16", {32, 64}, kAny});
  const TemporaryFolder folder;
  WriteQuantizedModel(golden, folder);
  const absl::Status head = Model::Load(folder.path()).status();
  EXPECT_EQ(head.code(), kNotThere);
  EXPECT_THAT(
      std::string(head.message()),
      HasSubstr("config.json: field quantization_config.quant_method: found \"awq\", supported for a draft "
                "head: none"));
}

// The embedding's rows are read one by one.
TEST(QuantizedTensorsTest, TheEmbeddingIsNotQuantised) {
  json golden = QuantizedGolden("packed-4-bit");
  json& embedding = QuantizedTensorEntry(golden, "model.embed_tokens.weight");
  embedding = {"model.embed_tokens.weight_packed", "I32", {64, 4}, kAny};
  const TemporaryFolder folder;
  WriteQuantizedModel(golden, folder);
  EXPECT_THAT(std::string(Model::Load(folder.path()).status().message()),
              HasSubstr("tensor \"model.embed_tokens.weight\" is missing, expected with shape [64, 32]"));
}

}  // namespace
}  // namespace tandem
