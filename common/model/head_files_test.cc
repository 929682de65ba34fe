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

INSTANTIATE_TEST_SUITE_P(All, HeadFormatTest,
                         testing::Values(HeadFormat{"eagle3-specforge", "model.safetensors", {"t2d"}},
                                         HeadFormat{"eagle3-specforge-normed"},
                                         HeadFormat{"eagle3-speculators-qwen3", "model.safetensors", {"t2d"}},
                                         HeadFormat{"eagle3-speculators-normed"},
                                         // Without `fc.weight` it is a language model like any other.
                                         HeadFormat{"eagle1", "model.safetensors", {"fc.bias", "fc.weight"}},
                                         HeadFormat{"medusa", "medusa_lm_head.safetensors"},
                                         HeadFormat{"medusa-vllm"}, HeadFormat{"mimo"}),
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

TEST(HeadConfigTest, WhatWouldChangeTheOutputIsRefusedByName) {
  struct Case {
    const char* folder;
    const char* at;  // Where the field stands, or nothing.
    const char* field;
    nlohmann::json value;
  };
  const std::vector<Case> cases = {
      {"eagle3-specforge", "", "norm_before_fc", true},
      {"eagle3-specforge", "", "fc_norm", true},
      {"eagle3-specforge", "eagle_config", "use_last_layernorm", false},
      {"eagle3-specforge", "eagle_config", "use_input_layernorm_in_first_layer", false},
      {"eagle3-specforge", "eagle_config", "use_mtp_layernorm", true},
      {"eagle3-specforge", "eagle_config", "use_aux_hidden_state", false},
      {"eagle3-specforge", "eagle_config", "parallel_draft_step", 2},
      {"eagle3-specforge", "", "num_hidden_layers", 2},
      {"eagle3-speculators-llama", "", "norm_before_fc", true},
      {"eagle3-speculators-llama", "", "fc_norm", true},
      {"eagle3-speculators-llama", "", "speculators_model_type", "dflash"},
      {"eagle3-speculators-llama", "transformer_layer_config", "layer_types", {"sliding_attention"}},
      {"medusa-vllm", "", "truncated_vocab_size", 40},
      {"medusa-vllm", "", "logit_scale", 0.5},
      {"medusa-vllm", "", "draft_vocab_size", 40},
      {"mimo", "", "num_nextn_predict_layers", 3},
      {"mimo", "", "use_mrope", true},
      {"mimo", "", "architectures", {"Qwen3NextForCausalLM"}},
  };
  for (const Case& refused : cases) {
    const TemporaryFolder folder;
    const std::string from = FormatFolder(refused.folder) + "/";
    nlohmann::json config = nlohmann::json::parse(ReadFile(from + "config.json", 1 << 20).value());
    (*refused.at == '\0' ? config : config[refused.at])[refused.field] = refused.value;
    folder.Write("config.json", config.dump());
    folder.Write("model.safetensors", ReadFile(from + "model.safetensors", 1 << 24).value());
    const absl::Status status = LoadFormat(folder.path());
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << refused.folder << " " << refused.field;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(folder.path()), HasSubstr(refused.field), HasSubstr("supported")));
  }
}

}  // namespace
}  // namespace tandem
