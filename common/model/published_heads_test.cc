// Heads as people publish them: the keys of their config.json, and the names and shapes of their tensors
// (testdata/published_heads.json says where each is from). Each one loads as what it is, or is refused by the
// name of a field. The files have holes in place of numbers.

#include <cstdint>
#include <filesystem>
#include <map>
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

using ::testing::AnyOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;
using Shapes = std::map<std::string, std::vector<int64_t>>;

// Writes a file with these tensors, whose bytes are a hole: all numbers are zero.
void WriteHollow(const TemporaryFolder& folder, const Shapes& shapes) {
  Json header;
  uint64_t end = 0;
  for (const auto& [name, shape] : shapes) {
    const bool is_mask = name == "t2d", is_map = name == "d2t";
    uint64_t size = is_mask ? 1 : is_map ? 8 : 2;
    for (const int64_t n : shape) size *= static_cast<uint64_t>(n);
    header[name] = {{"dtype", is_mask  ? "BOOL"
                              : is_map ? "I64"
                                       : "BF16"},
                    {"shape", shape},
                    {"data_offsets", {end, end + size}}};
    end += size;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(text.size() >> (8 * i)));
  folder.Write("model.safetensors", bytes + text);
  std::filesystem::resize_file(folder.path() + "/model.safetensors", 8 + text.size() + end);
}

// A target of that width, depth and vocabulary, and otherwise as small as can be.
std::shared_ptr<const Model> HollowTarget(const Json& sizes, const TemporaryFolder& folder) {
  const int64_t hidden = sizes.at("hidden_size"), vocab = sizes.at("vocab_size");
  const int32_t layers = sizes.at("num_layers");
  folder.Write("config.json", Json{{"architectures", Json::array({"LlamaForCausalLM"})},
                                   {"hidden_size", hidden},
                                   {"num_hidden_layers", layers},
                                   {"num_attention_heads", 1},
                                   {"head_dim", 2},
                                   {"intermediate_size", 1},
                                   {"vocab_size", vocab},
                                   {"tie_word_embeddings", true}}
                                  .dump());
  Shapes shapes = {{"model.embed_tokens.weight", {vocab, hidden}}, {"model.norm.weight", {hidden}}};
  for (int32_t i = 0; i < layers; ++i) {
    const std::string layer = absl::StrCat("model.layers.", i, ".");
    for (const char* const norm : {"input_layernorm", "post_attention_layernorm"}) {
      shapes[absl::StrCat(layer, norm, ".weight")] = {hidden};
    }
    for (const char* const matrix : {"q", "k", "v"}) {
      shapes[absl::StrCat(layer, "self_attn.", matrix, "_proj.weight")] = {2, hidden};
    }
    shapes[layer + "self_attn.o_proj.weight"] = {hidden, 2};
    shapes[layer + "mlp.gate_proj.weight"] = shapes[layer + "mlp.up_proj.weight"] = {1, hidden};
    shapes[layer + "mlp.down_proj.weight"] = {hidden, 1};
  }
  WriteHollow(folder, shapes);
  auto target = Model::Load(folder.path());
  EXPECT_TRUE(target.ok()) << target.status();
  return target.ok() ? *std::move(target) : nullptr;
}

void ExpectIsAsPublished(const Model& model, const Json& expected) {
  const ModelConfig& config = model.config();
  ASSERT_TRUE(config.head.has_value());
  const HeadConfig& head = *config.head;
  EXPECT_EQ(HeadKindName(head.kind), expected.value("kind", "eagle3"));
  EXPECT_EQ(config.num_layers, expected.at("layers").get<int32_t>());
  EXPECT_EQ(head.feature_layers, expected.at("states").get<std::vector<uint32_t>>());
  EXPECT_EQ(head.feature_final_norm, expected.value("final", false));
  EXPECT_EQ(head.own_state_is_normed, expected.value("normed", false));
  EXPECT_EQ(config.window(0), expected.value("window", 0));
  EXPECT_EQ(head.num_positions, expected.value("positions", 1));
}

TEST(PublishedHeadsTest, LoadOrAreRefusedByField) {
  const Json all = Json::parse(
      ReadFile(absl::StrCat(TANDEM_SOURCE_DIR, "/common/model/testdata/published_heads.json"), 1 << 22)
          .value());
  int num_loaded = 0, num_refused = 0;
  for (const Json& published : all.at("heads")) {
    SCOPED_TRACE(published.at("name").get<std::string>());
    const TemporaryFolder head_folder, target_folder;
    head_folder.Write("config.json", published.at("config").dump());
    WriteHollow(head_folder, published.at("tensors").get<Shapes>());
    const auto target = HollowTarget(published.at("target"), target_folder);
    ASSERT_NE(target, nullptr);
    const auto head = Model::LoadHead(head_folder.path(), target);
    if (published.contains("loads")) {
      ++num_loaded;
      ASSERT_TRUE(head.ok()) << head.status();
      ExpectIsAsPublished(**head, published.at("loads"));
      continue;
    }
    ++num_refused;
    const auto field = published.at("refused").get<std::string>();
    EXPECT_EQ(head.status().code(), absl::StatusCode::kUnimplemented) << head.status();
    EXPECT_THAT(std::string(head.status().message()),
                AnyOf(HasSubstr(absl::StrCat("field ", field)),
                      HasSubstr(absl::StrCat("field transformer_layer_config.", field))));
  }
  EXPECT_GE(num_loaded, 20);
  EXPECT_GE(num_refused, 10);
}

}  // namespace
}  // namespace tandem
