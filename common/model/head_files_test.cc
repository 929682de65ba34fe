// Draft heads of every file format: what their configurations say, and that a tensor which is missing, too
// big or of another shape is named with its file.

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/model/model.h"
#include "common/model/testing/model_folder_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct HeadFormat {
  const char* folder;
  const char* weights = "model.safetensors";
  // Tensors that the file may do without, or whose content does not matter.
  std::vector<std::string> optional = {};
};

void PrintTo(const HeadFormat& format, std::ostream* stream) {
  *stream << format.folder;
}

std::string FormatFolder(const char* name) {
  return absl::StrCat(TANDEM_SOURCE_DIR, "/common/model/testdata/heads/", name);
}

struct FileTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

std::vector<FileTensor> ReadTensors(const std::string& path) {
  const std::string file = ReadFile(path, 1 << 24).value();
  uint64_t size = 0;
  std::memcpy(&size, file.data(), sizeof(size));
  const nlohmann::json header = nlohmann::json::parse(file.substr(8, size));
  std::vector<FileTensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const uint64_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    tensors.push_back({name, entry["dtype"], entry["shape"], file.substr(8 + size + begin, end - begin)});
  }
  return tensors;
}

std::string FileOf(const std::vector<FileTensor>& tensors) {
  nlohmann::json header;
  std::string data;
  for (const FileTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  return SafetensorsBytes(header.dump(), data);
}

// A head of a folder of its own, or the module in a target's.
absl::Status LoadFormat(const std::string& folder) {
  const absl::StatusOr<std::shared_ptr<const Model>> model = Model::Load(folder);
  if (!model.ok() || (*model)->config().head.has_value()) return model.status();
  return Model::LoadHead(folder, *model).status();
}

class HeadFormatTest : public testing::TestWithParam<HeadFormat> {
 protected:
  HeadFormatTest() : tensors_(ReadTensors(FormatFolder(GetParam().folder) + "/" + GetParam().weights)) {
    folder_.Write("config.json", ReadFile(FormatFolder(GetParam().folder) + "/config.json", 1 << 20).value());
  }

  absl::Status LoadWith(const std::vector<FileTensor>& tensors) const {
    folder_.Write(GetParam().weights, FileOf(tensors));
    return LoadFormat(folder_.path());
  }
  bool IsOptional(const std::string& name) const {
    return std::ranges::find(GetParam().optional, name) != GetParam().optional.end();
  }

  const TemporaryFolder folder_;
  const std::vector<FileTensor> tensors_;
};

TEST_P(HeadFormatTest, LoadsAsItIs) {
  EXPECT_EQ(LoadWith(tensors_), absl::OkStatus());
}

TEST_P(HeadFormatTest, NamesATensorThatIsMissing) {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (IsOptional(tensors_[i].name)) continue;
    std::vector<FileTensor> others = tensors_;
    others.erase(others.begin() + static_cast<ptrdiff_t>(i));
    const absl::Status status = LoadWith(others);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << tensors_[i].name;
    // What names the others may follow from this one: then one of them is missing.
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(folder_.path()), HasSubstr("is missing, expected")))
        << tensors_[i].name;
  }
}

TEST_P(HeadFormatTest, NamesATensorOfAnotherShape) {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].name == "t2d") continue;
    const int64_t row_bytes = static_cast<int64_t>(tensors_[i].bytes.size()) / tensors_[i].shape[0];
    for (const bool bigger : {false, true}) {
      std::vector<FileTensor> spoilt = tensors_;
      FileTensor& tensor = spoilt[i];
      if (bigger) {
        ++tensor.shape[0];
        tensor.bytes.append(static_cast<size_t>(row_bytes), '\0');
      } else {
        tensor.shape.push_back(1);
      }
      const absl::Status status = LoadWith(spoilt);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << tensor.name;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr(folder_.path()), HasSubstr(absl::StrCat("\"", tensor.name, "\"")),
                        HasSubstr("expected")));
    }
  }
}

TEST_P(HeadFormatTest, NamesATensorThatNothingDescribes) {
  std::vector<FileTensor> more = tensors_;
  more.push_back(more.front());
  more.back().name = "extra.weight";
  const absl::Status status = LoadWith(more);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("extra.weight"));
}

INSTANTIATE_TEST_SUITE_P(
    All, HeadFormatTest,
    testing::Values(HeadFormat{"eagle3-specforge", "model.safetensors", {"t2d"}},
                    HeadFormat{"eagle3-specforge-normed"},
                    HeadFormat{"eagle3-speculators-qwen3", "model.safetensors", {"t2d"}},
                    HeadFormat{"eagle3-speculators-normed"}, HeadFormat{"eagle31-speculators"},
                    HeadFormat{"eagle31-specforge"}, HeadFormat{"eagle3-modelopt-normed"},
                    HeadFormat{"eagle3-modelopt-final"},
                    // Without these there is one layer, which num_hidden_layers is not.
                    HeadFormat{"eagle3-deep-llama",
                               "model.safetensors",
                               {"layers.1.self_attn.q_proj.weight", "layers.2.self_attn.q_proj.weight"}},
                    // Without `fc.weight` it is a language model like any other.
                    HeadFormat{"eagle1", "model.safetensors", {"fc.bias", "fc.weight"}},
                    HeadFormat{"medusa", "medusa_lm_head.safetensors"}, HeadFormat{"medusa-vllm"},
                    HeadFormat{"mimo"}, HeadFormat{"dflash-specforge"}, HeadFormat{"dflash-speculators"},
                    HeadFormat{"dflash-speculators-anchor"}, HeadFormat{"dspark-speculators"},
                    HeadFormat{"dspark-deepspec"}),
    [](const auto& param_info) {
      std::string name = param_info.param.folder;
      std::erase(name, '-');
      return name;
    });

nlohmann::json MedusaConfig() {
  return {{"medusa_num_heads", 3}, {"medusa_num_layers", 2}, {"base_model_name_or_path", "target"}};
}

TEST(MedusaConfigTest, SizesComeFromTheTargetWhereTheFileHasNone) {
  const TemporaryFolder folder;
  folder.Write("config.json", MedusaConfig().dump());
  folder.Write("medusa_lm_head.safetensors",
               ReadFile(FormatFolder("medusa") + "/medusa_lm_head.safetensors", 1 << 24).value());
  EXPECT_TRUE(Model::IsHead(folder.path()).value());
  const absl::Status alone = Model::Load(folder.path()).status();
  EXPECT_EQ(alone.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(alone.message()),
              AllOf(HasSubstr("field hidden_size: absent"), HasSubstr("--head-target")));

  const auto target = Model::Load(FormatFolder("mimo"));
  ASSERT_TRUE(target.ok()) << target.status();
  const auto heads = Model::LoadHead(folder.path(), *target);
  ASSERT_TRUE(heads.ok()) << heads.status();
  const ModelConfig& config = (*heads)->config();
  EXPECT_EQ(config.hidden_size, 32);
  EXPECT_EQ(config.vocab_size, 48);
  EXPECT_EQ(config.logits_size(), 3u * 48u);
  EXPECT_TRUE(config.head->feature_final_norm);
  EXPECT_EQ(config.head->state_size(), 32u);
  EXPECT_EQ((*heads)->head().positions.size(), 3u);
  EXPECT_EQ((*heads)->head().positions[0].blocks.size(), 2u);

  nlohmann::json other = MedusaConfig();
  other["vocab_size"] = 47;
  folder.Write("config.json", other.dump());
  EXPECT_THAT(std::string(Model::LoadHead(folder.path(), *target).status().message()),
              HasSubstr("field vocab_size: found 47, expected the target's 48"));
  // As many heads as the configuration says, no more.
  other = MedusaConfig();
  other["medusa_num_heads"] = 2;
  folder.Write("config.json", other.dump());
  EXPECT_THAT(std::string(Model::LoadHead(folder.path(), *target).status().message()),
              HasSubstr("tensor \"2.0.linear.bias\": expected only the tensors of the MedusaModel"));
}

TEST(MedusaConfigTest, HeadsMayEndInTheTargetsOutputMatrix) {
  const TemporaryFolder folder;
  nlohmann::json config = MedusaConfig();
  config["original_lm_head"] = true;
  folder.Write("config.json", config.dump());
  std::vector<FileTensor> tensors = ReadTensors(FormatFolder("medusa") + "/medusa_lm_head.safetensors");
  std::erase_if(tensors, [](const FileTensor& tensor) { return tensor.name.ends_with(".2.weight"); });
  // As a part of a bigger model names them.
  for (FileTensor& tensor : tensors) tensor.name = "medusa_head." + tensor.name;
  folder.Write("model.safetensors", FileOf(tensors));
  const auto target = Model::Load(FormatFolder("mimo"));
  ASSERT_TRUE(target.ok()) << target.status();
  const auto heads = Model::LoadHead(folder.path(), *target);
  ASSERT_TRUE(heads.ok()) << heads.status();
  for (const HeadWeights::Position& position : (*heads)->head().positions) {
    EXPECT_EQ(position.output.data, (*target)->output().data);
  }
}

// A field of a head's configuration, at `at` (nothing: in the file itself).
struct FieldCase {
  const char* folder;
  const char* at;
  const char* field;
  nlohmann::json value;
};

// Loads a copy of the head in which the field has that value.
absl::Status LoadWithField(const FieldCase& changed) {
  const TemporaryFolder folder;
  const std::string from = FormatFolder(changed.folder) + "/";
  nlohmann::json config = nlohmann::json::parse(ReadFile(from + "config.json", 1 << 20).value());
  (*changed.at == '\0' ? config : config[changed.at])[changed.field] = changed.value;
  folder.Write("config.json", config.dump());
  folder.Write("model.safetensors", ReadFile(from + "model.safetensors", 1 << 24).value());
  const absl::Status status = LoadFormat(folder.path());
  if (!status.ok()) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(folder.path()));
  }
  return status;
}

TEST(HeadConfigTest, WhatWouldChangeTheOutputIsRefusedByName) {
  const std::vector<FieldCase> cases = {
      {"eagle3-specforge", "eagle_config", "use_last_layernorm", false},
      {"eagle3-specforge", "eagle_config", "use_input_layernorm_in_first_layer", false},
      {"eagle3-specforge", "eagle_config", "use_mtp_layernorm", true},
      {"eagle3-specforge", "eagle_config", "next_layer_regular", false},
      {"eagle3-specforge", "eagle_config", "parallel_draft_step", 2},
      {"eagle3-specforge", "eagle_config", "a_field_of_tomorrow", 1},
      {"eagle3-specforge", "", "kv_lora_rank", 512},
      {"eagle3-specforge", "", "ptd_token_id", 7},
      {"eagle3-specforge", "", "partial_rotary_factor", 0.5},
      {"eagle3-specforge", "", "architectures", nlohmann::json::array({"Eagle3DeepseekV2ForCausalLM"})},
      {"eagle3-specforge", "", "architectures", nlohmann::json::array({"PEagleDraftModel"})},
      {"eagle3-speculators-llama", "", "speculators_model_type", "xpress"},
      {"eagle3-speculators-llama", "", "mask_token_id", 7},
      {"medusa-vllm", "", "truncated_vocab_size", 40},
      {"medusa-vllm", "", "logit_scale", 0.5},
      {"medusa-vllm", "", "draft_vocab_size", 40},
      {"mimo", "", "num_nextn_predict_layers", 3},
      {"mimo", "", "use_mrope", true},
      {"mimo", "", "architectures", nlohmann::json::array({"Qwen3NextForCausalLM"})},
  };
  for (const FieldCase& refused : cases) {
    const absl::Status status = LoadWithField(refused);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << refused.folder << " " << refused.field;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(refused.field), HasSubstr("supported")));
  }
}

TEST(HeadConfigTest, FieldsThatContradictOneAnotherAreNamed) {
  const std::vector<FieldCase> cases = {
      {"eagle31-specforge", "", "norm_before_fc", true},
      {"eagle31-speculators", "", "fc_norm", true},
      {"eagle31-specforge", "eagle_config", "norm_output", false},
      {"eagle3-modelopt-normed", "", "norm_before_fc", false},
      {"eagle3-specforge", "", "num_aux_hidden_states", 4},
      {"eagle3-specforge", "eagle_config", "eagle_aux_hidden_state_layer_ids", {0, 2, 2}},
      {"eagle3-modelopt-final", "eagle_config", "eagle_aux_hidden_state_layer_ids",
       nlohmann::json::array({1})},
      {"eagle3-modelopt-final", "", "target_hidden_size", 40},
      {"eagle3-specforge", "", "num_hidden_layers", 2},
      {"eagle3-deep-llama", "transformer_layer_config", "num_hidden_layers", 4},
      {"eagle3-deep-llama", "transformer_layer_config", "sliding_window", nullptr},
      {"eagle3-deep-llama", "transformer_layer_config", "use_sliding_window", false},
      {"eagle3-specforge", "", "layer_types", nlohmann::json::array({"sliding_attention"})},
  };
  for (const FieldCase& refused : cases) {
    const absl::Status status = LoadWithField(refused);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << refused.folder << " " << refused.field;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("field "), HasSubstr("expected")))
        << refused.field;
  }
  // Norms of states stand in front of a projection, and here there is none.
  EXPECT_THAT(std::string(LoadWithField({"eagle3-modelopt-final", "", "fc_norm", true}).message()),
              HasSubstr("use_aux_hidden_state"));
}

// Weights say more than config.json: by the name of the field that goes with them.
TEST(HeadConfigTest, TensorsOfWhatIsNotReadAreRefusedByTheirField) {
  struct Case {
    const char* folder;
    const char* tensor;
    const char* field;
  };
  for (const Case& extra : {
           Case{"eagle3-specforge", "fc_norm.0.weight", "field fc_norm:"},
           Case{"eagle3-specforge", "model.fc_norm.0.weight", "field fc_norm:"},
           Case{"eagle3-specforge", "input_norm.weight", "field norm_before_fc:"},
           Case{"eagle3-specforge", "mask_hidden", "field ptd_token_id:"},
           Case{"eagle3-specforge", "parallel_draft_heads.0.medusa_layers.0.linear.weight",
                "field eagle_config.parallel_draft_step:"},
           Case{"eagle3-specforge", "midlayer.self_attn.kv_a_proj_with_mqa.weight", "field kv_lora_rank:"},
           Case{"eagle3-specforge", "midlayer.self_attn.q_norm.weight",
                "field transformer_layer_config.model_type:"},
           Case{"eagle3-specforge", "midlayer.self_attn.q_proj.bias", "field attention_bias:"},
           Case{"eagle3-specforge", "midlayer.mlp.down_proj.bias", "field mlp_bias:"},
           Case{"eagle3-specforge", "midlayer.mlp.experts.0.up_proj.weight", "field num_experts:"},
           Case{"eagle3-specforge", "midlayer.self_attn.q_proj.weight_scale", "field quantization_config:"},
           Case{"eagle3-specforge", "markov_head.markov_w1", "field markov_rank:"},
           Case{"eagle3-specforge", "layers.1.mlp.up_proj.weight", "field num_hidden_layers:"},
           Case{"eagle3-modelopt-final", "fc.weight", "field eagle_config.use_aux_hidden_state:"},
           Case{"eagle1", "layers.0.input_layernorm.weight",
                "field eagle_config.use_input_layernorm_in_first_layer:"},
           Case{"eagle1", "norm.weight", "field eagle_config.use_last_layernorm:"},
       }) {
    const TemporaryFolder folder;
    const std::string from = FormatFolder(extra.folder) + "/";
    folder.Write("config.json", ReadFile(from + "config.json", 1 << 20).value());
    std::vector<FileTensor> tensors = ReadTensors(from + "model.safetensors");
    tensors.push_back(tensors.front());
    tensors.back().name = extra.tensor;
    folder.Write("model.safetensors", FileOf(tensors));
    const absl::Status status = LoadFormat(folder.path());
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << extra.tensor;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(extra.field), HasSubstr(extra.tensor), HasSubstr("supported")));
  }
}

TEST(HeadConfigTest, AHeadOfTheAuthorsIsKnownByItsDraftVocabulary) {
  const TemporaryFolder folder;
  const std::string from = FormatFolder("eagle3-specforge") + "/";
  nlohmann::json config = nlohmann::json::parse(ReadFile(from + "config.json", 1 << 20).value());
  config.erase("eagle_config");
  config["architectures"] = nlohmann::json::array({"LlamaForCausalLM"});
  config["eagle_aux_hidden_state_layer_ids"] = {1, 3, 4};
  folder.Write("config.json", config.dump());
  folder.Write("model.safetensors", ReadFile(from + "model.safetensors", 1 << 24).value());
  EXPECT_TRUE(Model::IsHead(folder.path()).value());
  auto head = Model::Load(folder.path());
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_EQ(HeadKindName((*head)->config().head->kind), "eagle3");
  // As nebius says it.
  config["truncated_vocab_size"] = config["draft_vocab_size"];
  config.erase("draft_vocab_size");
  folder.Write("config.json", config.dump());
  head = Model::Load(folder.path());
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_EQ((*head)->head().draft_tokens.size(), 31u);
  config.erase("truncated_vocab_size");
  folder.Write("config.json", config.dump());
  EXPECT_THAT(std::string(Model::Load(folder.path()).status().message()),
              HasSubstr("field draft_vocab_size: absent, expected"));
}

TEST(HeadConfigTest, PicklesAreNotOpened) {
  for (const auto& [pickle, safetensors] : {std::pair{"pytorch_model.bin", "model.safetensors"},
                                            std::pair{"medusa_lm_head.pt", "medusa_lm_head.safetensors"}}) {
    const TemporaryFolder folder;
    folder.Write("config.json", ReadFile(FormatFolder("eagle1") + "/config.json", 1 << 20).value());
    folder.Write(pickle, "cos\nsystem\n(S'true'\ntR.");
    const absl::Status status = Model::Load(folder.path()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(pickle), HasSubstr("weights_only=True"), HasSubstr(safetensors)));
  }
}

}  // namespace
}  // namespace tandem
