// DFlash heads' files: every field that is wrong, or that nothing here implements, is named, as are sizes and
// layers that are not the target's.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/temporary_folder.h"
#include "common/model/model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr absl::StatusCode kBadField = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kNotBuilt = absl::StatusCode::kUnimplemented;

// A copy of a head with config.json merged with `patch`, in which null removes a field.
absl::StatusOr<std::shared_ptr<const Model>> LoadPatched(
    absl::string_view name, const Json& patch, const std::shared_ptr<const Model>& target = nullptr) {
  const std::string from = absl::StrCat(TANDEM_SOURCE_DIR, "/common/model/testdata/heads/", name, "/");
  const TemporaryFolder copy;
  Json config = Json::parse(ReadFile(from + "config.json", 1 << 20).value());
  config.merge_patch(patch);
  copy.Write("config.json", config.dump());
  copy.Write("model.safetensors", ReadFile(from + "model.safetensors", 1 << 24).value());
  return Model::LoadHead(copy.path(), target);
}

struct WrongField {
  Json patch;
  absl::StatusCode code;
  const char* message;
};

Json Inner(const char* name, const Json& value) {
  return {{"dflash_config", {{name, value}}}};
}

TEST(BlockFilesTest, NameWhatIsWrongInTheAuthorsForm) {
  Json deep = Inner("target_layer_ids", nullptr);
  deep.update({{"num_hidden_layers", 12},
               {"num_target_layers", 40},
               {"layer_types", nullptr},
               {"use_sliding_window", false}});
  const std::vector<WrongField> cases = {
      {deep, kBadField,
       "field dflash_config.target_layer_ids: absent beside 12 layers, expected a list of up to 8"},
      {{{"block_size", nullptr}}, kBadField, "field dflash_config.block_size: found nothing"},
      {{{"block_size", 1}}, kBadField, "field block_size: found 1, expected"},
      {{{"block_size", 34}}, kBadField, "field block_size: found 34, expected"},
      {{{"block_size", "4"}}, kBadField, "field block_size: found \"4\""},
      {{{"dflash_config", nullptr}}, kBadField, "field dflash_config: found nothing, expected an object"},
      {{{"dflash_config", Json::array()}}, kBadField, "field dflash_config: found"},
      {Inner("mask_token_id", nullptr), kBadField, "field dflash_config.mask_token_id: found nothing"},
      {Inner("mask_token_id", -1), kBadField, "field dflash_config.mask_token_id: found -1"},
      {Inner("mask_token_id", 48), kBadField,
       "field mask_token_id: found 48, expected a token below vocab_size, which is 48"},
      {Inner("target_layer_ids", {2, 1, 5}), kBadField,
       "field dflash_config.target_layer_ids: found [2,1,5]"},
      {Inner("target_layer_ids", {1, 2, 3, 4, 5, 6, 7, 8, 9}), kBadField,
       "field dflash_config.target_layer_ids: found"},
      {Inner("target_layer_ids", {0, 2}), kBadField, "tensor \"fc.weight\""},
      {Inner("use_swa", true), kNotBuilt, "field dflash_config.use_swa: found true, supported: false"},
      {Inner("attention_sink_bias", true), kNotBuilt, "field dflash_config.attention_sink_bias"},
      {Inner("attention_value_scale", 0.5), kNotBuilt, "field dflash_config.attention_value_scale"},
      {Inner("output_multiplier", 0.2), kNotBuilt, "field dflash_config.output_multiplier"},
      {Inner("final_logit_softcapping", 20), kNotBuilt, "field dflash_config.final_logit_softcapping"},
      {Inner("projector_type", "domino"), kNotBuilt,
       "field dflash_config.projector_type: found \"domino\", supported: dflash"},
      {Inner("some_new_thing", 1), kNotBuilt,
       "field dflash_config.some_new_thing: found 1, supported: none: no field of this name is known"},
      {{{"markov_rank", 4}}, kNotBuilt, "field markov_rank"},
      {{{"selector_rank", 256}}, kNotBuilt, "field selector_rank"},
      {{{"is_neox_style", false}}, kNotBuilt, "field is_neox_style"},
      {{{"partial_rotary_factor", 0.5}}, kNotBuilt, "field partial_rotary_factor"},
      {{{"sliding_window", 3}},
       kBadField,
       "field sliding_window: found 3, expected at least block_size, which is 4"},
      {{{"model_type", "gpt_oss"}, {"head_dim", nullptr}},
       kBadField,
       "field head_dim: found nothing, expected a number beside a model_type that is not qwen3"},
      {{{"draft_vocab_size", 49}},
       kBadField,
       "field draft_vocab_size: found 49, expected at most vocab_size"},
      {{{"num_hidden_layers", 2}, {"layer_types", nullptr}, {"use_sliding_window", false}},
       kBadField,
       "field num_hidden_layers: found 2, expected as many layers as the file has"},
      {{{"attention_bias", false}}, kNotBuilt, "field attention_bias: the weights have a tensor"},
      {{{"quantization_config",
         {{"quant_method", "awq"}, {"bits", 4}, {"group_size", 16}, {"version", "gemm"}}}},
       kNotBuilt,
       "field quantization_config.quant_method"},
  };
  for (const WrongField& wrong : cases) {
    const absl::Status status = LoadPatched("dflash-specforge", wrong.patch).status();
    EXPECT_EQ(status.code(), wrong.code) << wrong.patch << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(wrong.message)) << wrong.patch;
  }
}

TEST(BlockFilesTest, NameWhatIsWrongInSpeculatorsForm) {
  const std::vector<WrongField> cases = {
      {{{"block_size", nullptr}}, kBadField, "field block_size: found nothing"},
      {{{"mask_token_id", nullptr}}, kBadField, "field mask_token_id: found nothing"},
      {{{"mask_token_id", 1000}}, kBadField, "field mask_token_id: found 1000, expected a token below"},
      {{{"aux_hidden_state_layer_ids", nullptr}},
       kBadField,
       "field aux_hidden_state_layer_ids: found nothing"},
      {{{"aux_hidden_state_layer_ids", {3, 3}}}, kBadField, "field aux_hidden_state_layer_ids: found"},
      {{{"transformer_layer_config", nullptr}}, kBadField, "field transformer_layer_config: found nothing"},
      {{{"transformer_layer_config", {{"sliding_window", 2}}}}, kBadField, "field sliding_window: found 2"},
      {{{"transformer_layer_config", {{"model_type", "llama"}, {"num_key_value_heads", nullptr}}}},
       kBadField,
       "field transformer_layer_config.num_key_value_heads: found nothing"},
      {{{"speculators_model_type", "xpress"}}, kNotBuilt, "field speculators_model_type: found \"xpress\""},
      {{{"markov_rank", 256}}, kNotBuilt, "field markov_rank"},
      {{{"sample_from_anchor", "yes"}}, kBadField, "field sample_from_anchor: found \"yes\""},
  };
  for (const WrongField& wrong : cases) {
    const absl::Status status = LoadPatched("dflash-speculators", wrong.patch).status();
    EXPECT_EQ(status.code(), wrong.code) << wrong.patch << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(wrong.message)) << wrong.patch;
  }
}

TEST(BlockFilesTest, NameWhatIsWrongInDSparkHeads) {
  const Json proposal = {{"proposal_methods", Json::array({{{"speculative_tokens", 2}}})}};
  const Json many = {{"proposal_methods", Json::array({{{"speculative_tokens", 33}}})}};
  const std::vector<WrongField> speculators = {
      {{{"block_size", 33}, {"sample_from_anchor", nullptr}, {"speculators_config", many}},
       kBadField,
       "field block_size: found 33, expected at most 32 where every slot guesses"},
      {{{"markov_head_type", "gated"}},
       kNotBuilt,
       "field markov_head_type: found \"gated\", supported: vanilla"},
      {{{"markov_rank", -1}}, kBadField, "field markov_rank: found -1"},
      {{{"markov_rank", 0}, {"confidence_head_with_markov", false}},
       kBadField,
       "confidence_head.proj.weight"},
      {{{"markov_rank", 7}}, kBadField, "tensor \"markov_head.markov_w1.weight\""},
      {{{"markov_rank", 0}}, kBadField, "field confidence_head_with_markov: found true, expected false"},
      {{{"enable_confidence_head", false}},
       kNotBuilt,
       "field enable_confidence_head: the weights have a tensor"},
      {{{"sample_from_anchor", nullptr}, {"speculators_config", nullptr}},
       kNotBuilt,
       "field sample_from_anchor"},
      {{{"sample_from_anchor", nullptr}, {"speculators_config", proposal}},
       kNotBuilt,
       "field sample_from_anchor"},
      {{{"speculators_model_type", "dflash"}}, kNotBuilt, "field markov_rank: found 6, supported: none"},
  };
  for (const WrongField& wrong : speculators) {
    const absl::Status status = LoadPatched("dspark-speculators", wrong.patch).status();
    EXPECT_EQ(status.code(), wrong.code) << wrong.patch << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(wrong.message)) << wrong.patch;
  }
  const std::vector<WrongField> deepspec = {
      {{{"dspark_bonus_anchor", true}}, kNotBuilt, "field dspark_bonus_anchor"},
      {{{"markov_head_type", "rnn"}}, kNotBuilt, "field markov_head_type: found \"rnn\""},
      {{{"target_layer_ids", {-1, 3, 5}}}, kBadField, "field target_layer_ids: found [-1,3,5]"},
      {{{"mask_token_id", nullptr}}, kBadField, "field mask_token_id: found nothing"},
      {{{"block_size", 40}}, kBadField, "field block_size: found 40"},
      // SpecForge's architecture, whose code contradicts itself.
      {{{"architectures", Json::array({"DSparkDraftModel"})},
        {"markov_rank", nullptr},
        {"markov_head_type", nullptr},
        {"enable_confidence_head", nullptr},
        {"dflash_config", {{"projector_type", "dspark"}, {"markov_rank", 6}, {"mask_token_id", 46}}}},
       kNotBuilt,
       "field dflash_config.sample_from_anchor"},
  };
  for (const WrongField& wrong : deepspec) {
    const absl::Status status = LoadPatched("dspark-deepspec", wrong.patch).status();
    EXPECT_EQ(status.code(), wrong.code) << wrong.patch << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(wrong.message)) << wrong.patch;
  }
}

// Which position slots guess follows from the number of proposed tokens where no field says it.
TEST(BlockFilesTest, OlderDSparkFilesSayItByWhatTheyPropose) {
  for (const int32_t proposed : {3, 4}) {
    const Json config = {{"proposal_methods", Json::array({{{"speculative_tokens", proposed}}})}};
    const auto head =
        LoadPatched("dspark-speculators", {{"sample_from_anchor", nullptr}, {"speculators_config", config}});
    ASSERT_TRUE(head.ok()) << head.status();
    EXPECT_EQ((*head)->config().head->num_positions, proposed);
    EXPECT_EQ((*head)->config().head->block.guesses_from_anchor, proposed == 4);
  }
}

ModelConfig TargetOf(int32_t num_layers) {
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.hidden_size = 32;
  config.num_layers = num_layers;
  config.num_heads = config.num_kv_heads = 2;
  config.head_dim = 16;
  config.intermediate_size = 16;
  config.vocab_size = 48;
  config.max_context = 64;
  return config;
}

TEST(BlockFilesTest, AreComparedWithTheTarget) {
  const auto fitting = Model::Random(TargetOf(9), 1).value();
  const auto head = LoadPatched("dflash-specforge", Json::object(), fitting);
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_TRUE((*head)->config().head->gives_levels());
  EXPECT_TRUE((*head)->config().head->reads_context());
  const absl::Status layers =
      LoadPatched("dflash-specforge", Json::object(), Model::Random(TargetOf(8), 1).value()).status();
  EXPECT_THAT(std::string(layers.message()),
              HasSubstr("field num_target_layers: found 9, expected the target's 8"));
  const absl::Status beyond =
      LoadPatched("dflash-specforge", {{"num_target_layers", nullptr}}, Model::Random(TargetOf(5), 1).value())
          .status();
  EXPECT_THAT(std::string(beyond.message()),
              AllOf(HasSubstr("field dflash_config.target_layer_ids: names the state after 6 layers"),
                    HasSubstr("at most the 5")));
  const absl::Status states =
      LoadPatched("dflash-speculators", {{"aux_hidden_state_layer_ids", {1, 10}}}, fitting).status();
  EXPECT_THAT(std::string(states.message()),
              HasSubstr("field aux_hidden_state_layer_ids: names the state after 10"));
  ModelConfig scaled = TargetOf(9);
  scaled.block.embedding_scale = 5.0f;
  const absl::Status factor =
      LoadPatched("dflash-specforge", Json::object(), Model::Random(scaled, 1).value()).status();
  EXPECT_EQ(factor.code(), kNotBuilt);
  EXPECT_THAT(std::string(factor.message()), HasSubstr("targets without factors on embeddings"));
}

// The choice of the authors' code, build_target_layer_ids: for the file's layers, from the second to the
// fourth last, rounded to even at halves.
TEST(BlockFilesTest, StatesThatNoFieldNamesAreTheAuthors) {
  const auto states_of = [](int32_t target_layers) {
    const auto head =
        LoadPatched("dflash-specforge",
                    {{"num_target_layers", nullptr}, {"dflash_config", {{"target_layer_ids", nullptr}}}},
                    Model::Random(TargetOf(target_layers), 1).value());
    EXPECT_TRUE(head.ok()) << head.status();
    return head.ok() ? (*head)->config().head->feature_layers : std::vector<uint32_t>();
  };
  // round(1 + k * (n - 4) / 2) for k of 0, 1, 2, and the state behind that layer.
  EXPECT_THAT(states_of(8), ElementsAre(2, 4, 6));
  EXPECT_THAT(states_of(9), ElementsAre(2, 5, 7));   // 3.5 is 4.
  EXPECT_THAT(states_of(11), ElementsAre(2, 5, 9));  // 4.5 is 4.
  const absl::Status alone =
      LoadPatched("dflash-specforge",
                  {{"num_target_layers", nullptr}, {"dflash_config", {{"target_layer_ids", nullptr}}}})
          .status();
  EXPECT_THAT(std::string(alone.message()),
              HasSubstr("field dflash_config.target_layer_ids: absent, expected it"));
}

}  // namespace
}  // namespace tandem
