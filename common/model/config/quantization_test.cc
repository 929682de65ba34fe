#include "common/model/config/quantization.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/model/config/model_config.h"
#include "common/model/testing/quantized_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr absl::StatusCode kNoConfiguration = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kNotRead = absl::StatusCode::kUnimplemented;

struct BadQuantization {
  const char* name;
  const char* model;
  json changes;  // Of quantization_config.
  absl::StatusCode code;
  const char* message;
};

class QuantizationRefusalTest : public testing::TestWithParam<BadQuantization> {};

TEST_P(QuantizationRefusalTest, NamesFieldFoundAndSupported) {
  json config = QuantizedGolden(GetParam().model)["config"];
  for (const auto& [field, value] : GetParam().changes.items()) {
    config["quantization_config"][field] = value;
  }
  const absl::Status status = ParseModelConfig(config.dump(), "folder/config.json").status();
  EXPECT_EQ(status.code(), GetParam().code) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("folder/config.json: field quantization_config.", GetParam().message)));
}

json Method(const char* name) {
  return {{"quant_method", name}};
}

// One group of compressed-tensors, whose weights are these.
json Group(json weights) {
  return {{"config_groups", {{"group_0", {{"weights", std::move(weights)}}}}}};
}

INSTANTIATE_TEST_SUITE_P(
    All, QuantizationRefusalTest,
    testing::Values(
        BadQuantization{
            "BitsAndBytes", "awq", Method("bitsandbytes"), kNotRead,
            "quant_method: found \"bitsandbytes\", supported: awq, gptq, compressed-tensors, fp8"},
        BadQuantization{"Hqq", "awq", Method("hqq"), kNotRead, "quant_method: found \"hqq\", supported: awq"},
        BadQuantization{"Aqlm", "awq", Method("aqlm"), kNotRead, "quant_method: found \"aqlm\""},
        BadQuantization{"Eetq", "awq", Method("eetq"), kNotRead, "quant_method: found \"eetq\""},
        BadQuantization{"Quanto", "awq", Method("quanto"), kNotRead, "quant_method: found \"quanto\""},
        BadQuantization{
            "NoMethod", "awq", {{"quant_method", nullptr}}, kNotRead, "quant_method: found nothing"},
        BadQuantization{
            "MethodIsANumber", "awq", {{"quant_method", 4}}, kNoConfiguration, "quant_method: found 4"},
        BadQuantization{"AwqBits", "awq", {{"bits", 3}}, kNotRead, "bits: found 3, supported: 4"},
        BadQuantization{
            "AwqNoBits", "awq", {{"bits", nullptr}}, kNoConfiguration, "bits: found nothing, expected"},
        BadQuantization{
            "AwqGemv", "awq", {{"version", "gemv"}}, kNotRead, "version: found \"gemv\", supported: gemm"},
        BadQuantization{"AwqMarlin",
                        "awq",
                        {{"version", nullptr}, {"format", "marlin"}},
                        kNotRead,
                        "format: found \"marlin\", supported: gemm"},
        BadQuantization{
            "AwqExllama", "awq", {{"version", "exllama"}}, kNotRead, "version: found \"exllama\""},
        BadQuantization{"AwqNoZeroPoint",
                        "awq",
                        {{"zero_point", false}},
                        kNotRead,
                        "zero_point: found false, supported: true"},
        BadQuantization{"LlmAwq",
                        "awq",
                        {{"backend", "llm-awq"}},
                        kNotRead,
                        "backend: found \"llm-awq\", supported: files in the layout of autoawq"},
        BadQuantization{"AwqGroupOfNone",
                        "awq",
                        {{"group_size", 0}},
                        kNoConfiguration,
                        "group_size: found 0, expected -1 or a whole number"},
        BadQuantization{
            "AwqNegativeGroup", "awq", {{"group_size", -2}}, kNoConfiguration, "group_size: found -2"},
        BadQuantization{"AwqNames",
                        "awq",
                        {{"modules_to_not_convert", {1}}},
                        kNoConfiguration,
                        "modules_to_not_convert: found [1], expected a list of names"},
        BadQuantization{"GptqBits", "gptq-4-bit", {{"bits", 3}}, kNotRead, "bits: found 3, supported: 4, 8"},
        BadQuantization{"GptqMarlin",
                        "gptq-4-bit",
                        {{"checkpoint_format", "marlin"}},
                        kNotRead,
                        "checkpoint_format: found \"marlin\", supported: gptq, gptq_v2"},
        BadQuantization{"GptqIsMarlin",
                        "gptq-4-bit",
                        {{"is_marlin_format", true}},
                        kNotRead,
                        "is_marlin_format: found true, supported: false"},
        BadQuantization{"GptqWords",
                        "gptq-4-bit",
                        {{"pack_dtype", "int16"}},
                        kNotRead,
                        "pack_dtype: found \"int16\", supported: int32"},
        BadQuantization{"GptqDynamic",
                        "gptq-4-bit",
                        {{"dynamic", {{"+:.*down.*", {{"bits", 8}}}}}},
                        kNotRead,
                        "dynamic: found"},
        BadQuantization{"GptqSymIsANumber", "gptq-4-bit", {{"sym", 1}}, kNoConfiguration, "sym: found 1"},
        BadQuantization{
            "Marlin24",
            "packed-4-bit",
            {{"format", "marlin-24"}},
            kNotRead,
            "format: found \"marlin-24\", supported: float-quantized, int-quantized, naive-quantized, "
            "pack-quantized"},
        BadQuantization{"NoFormat", "packed-4-bit", {{"format", nullptr}}, kNotRead, "format: found nothing"},
        BadQuantization{"Sparse",
                        "packed-4-bit",
                        {{"sparsity_config", {{"format", "sparse-24-bitmask"}}}},
                        kNotRead,
                        "sparsity_config: found"},
        BadQuantization{"Transformed",
                        "packed-4-bit",
                        {{"transform_config", {{"config_groups", {{"u", 1}}}}}},
                        kNotRead,
                        "transform_config: found"},
        BadQuantization{"NoGroups",
                        "packed-4-bit",
                        {{"config_groups", json::object()}},
                        kNoConfiguration,
                        "config_groups: found an object of 0 fields, expected an object of groups"},
        BadQuantization{"GroupIsAList",
                        "packed-4-bit",
                        {{"config_groups", {{"g", {1}}}}},
                        kNoConfiguration,
                        "config_groups: found"},
        BadQuantization{"NoWeights", "packed-4-bit", Group(nullptr), kNoConfiguration,
                        "config_groups.group_0.weights: found nothing, expected an object"},
        BadQuantization{"PackedBits", "packed-4-bit", Group({{"num_bits", 3}}), kNotRead,
                        "config_groups.group_0.weights.num_bits: found 3, supported: 4, 8"},
        BadQuantization{"PackedFloats", "packed-4-bit", Group({{"num_bits", 4}, {"type", "float"}}), kNotRead,
                        "config_groups.group_0.weights.type: found \"float\", supported: int"},
        BadQuantization{"Int4Plain", "int8-channel", Group({{"num_bits", 4}, {"type", "int"}}), kNotRead,
                        "config_groups.group_0.weights.num_bits: found 4, supported: 8"},
        BadQuantization{
            "Strategy", "int8-channel", Group({{"strategy", "token"}}), kNotRead,
            "config_groups.group_0.weights.strategy: found \"token\", supported: tensor, channel, group"},
        BadQuantization{"GroupWithoutSize", "int8-channel", Group({{"strategy", "group"}}), kNoConfiguration,
                        "config_groups.group_0.weights.group_size: found nothing"},
        BadQuantization{"BlocksWithoutSizes", "float-blocks",
                        Group({{"type", "float"}, {"strategy", "block"}, {"block_structure", {16}}}),
                        kNoConfiguration,
                        "config_groups.group_0.weights.block_structure: found [16], expected a list of two"},
        BadQuantization{"FloatsWithZeroPoints", "float-channel",
                        Group({{"type", "float"}, {"symmetric", false}}), kNotRead,
                        "config_groups.group_0.weights.symmetric: found false, supported: true"},
        BadQuantization{"PackedTensorZeroPoints", "packed-4-bit",
                        Group({{"num_bits", 4}, {"strategy", "tensor"}, {"symmetric", false}}), kNotRead,
                        "config_groups.group_0.weights.symmetric: found false"},
        BadQuantization{"OrderOfPlain", "int8-channel",
                        Group({{"strategy", "group"}, {"group_size", 16}, {"actorder", "group"}}), kNotRead,
                        "config_groups.group_0.weights.actorder: found \"group\", supported: weight"},
        BadQuantization{"GroupsThatDiffer",
                        "packed-4-bit",
                        {{"config_groups",
                          {{"a", {{"weights", {{"num_bits", 4}, {"strategy", "channel"}}}}},
                           {"b", {{"weights", {{"num_bits", 8}, {"strategy", "channel"}}}}}}}},
                        kNotRead,
                        "config_groups.b.weights: found"},
        BadQuantization{
            "FormatOfAGroup",
            "packed-4-bit",
            {{"config_groups", {{"a", {{"format", "int-quantized"}, {"weights", {{"num_bits", 4}}}}}}}},
            kNotRead,
            "config_groups.a.format: found \"int-quantized\", supported: pack-quantized"},
        BadQuantization{
            "Fp8Kind", "fp8-blocks", {{"fmt", "e5m2"}}, kNotRead, "fmt: found \"e5m2\", supported: e4m3"},
        BadQuantization{"Fp4Experts",
                        "fp8-blocks",
                        {{"expert_dtype", "fp4"}},
                        kNotRead,
                        "expert_dtype: found \"fp4\", supported: fp8"},
        BadQuantization{"Fp8Block",
                        "fp8-blocks",
                        {{"weight_block_size", {128, 0}}},
                        kNoConfiguration,
                        "weight_block_size: found [128,0], expected a list of two whole numbers from 1"},
        BadQuantization{"Fp8BlockOfText",
                        "fp8-blocks",
                        {{"weight_block_size", {"128", 128}}},
                        kNoConfiguration,
                        "weight_block_size: found"}),
    [](const auto& instance) { return instance.param.name; });

TEST(QuantizationRefusalTest, OtherFieldsAreNamedToo) {
  json config = QuantizedGolden("awq")["config"];
  config["quantization_config"] = "awq";
  EXPECT_THAT(std::string(ParseModelConfig(config.dump(), "c.json").status().message()),
              HasSubstr("c.json: field quantization_config: found \"awq\", expected an object or null"));
}

TEST(QuantizationRefusalTest, TransposedMatricesAreNamed) {
  json config = {{"architectures", {"GPT2LMHeadModel"}},
                 {"model_type", "gpt2"},
                 {"n_embd", 8},
                 {"n_layer", 1},
                 {"n_head", 2},
                 {"n_positions", 64},
                 {"vocab_size", 10},
                 {"quantization_config", QuantizedGolden("gptq-4-bit")["config"]["quantization_config"]}};
  const absl::Status transposed = ParseModelConfig(config.dump(), "c.json").status();
  EXPECT_EQ(transposed.code(), kNotRead);
  EXPECT_THAT(
      std::string(transposed.message()),
      HasSubstr("quantization_config.quant_method: found \"gptq\", supported: none for a GPT2LMHeadModel"));
}

}  // namespace
}  // namespace tandem
