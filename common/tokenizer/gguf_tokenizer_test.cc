#include "common/tokenizer/gguf_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/temporary_folder.h"
#include "common/gguf/testing/gguf_writer.h"
#include "common/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const char kFolder[] = TANDEM_SOURCE_DIR "/common/tokenizer/testdata/";

nlohmann::json ReadTestFile(const std::string& name) {
  const absl::StatusOr<std::string> text = ReadFile(absl::StrCat(kFolder, name), 16 << 20);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.ok() ? nlohmann::json::parse(*text) : nlohmann::json();
}

// The demo models' tokenizer as llama.cpp's converter writes it.
GgufWriter DemoTokenizer() {
  const nlohmann::json definition = ReadTestFile("demo/tokenizer.json");
  const nlohmann::json config = ReadTestFile("demo/tokenizer_config.json");
  std::vector<std::string> tokens(4096);
  std::vector<int32_t> kinds(tokens.size(), 1);
  for (const auto& [content, id] : definition["model"]["vocab"].items()) tokens[id.get<size_t>()] = content;
  for (const nlohmann::json& token : definition["added_tokens"]) {
    tokens[token["id"].get<size_t>()] = token["content"];
    kinds[token["id"].get<size_t>()] = token["special"] ? 3 : 4;
  }
  std::vector<std::string> merges;
  for (const nlohmann::json& merge : definition["model"]["merges"]) {
    merges.push_back(merge.is_string()
                         ? merge.get<std::string>()
                         : absl::StrCat(merge[0].get<std::string>(), " ", merge[1].get<std::string>()));
  }
  const auto id_of = [&](const char* name) {
    const nlohmann::json& token = config[name];
    const std::string content = token.is_string() ? token : token["content"];
    return static_cast<uint32_t>(std::find(tokens.begin(), tokens.end(), content) - tokens.begin());
  };
  GgufWriter writer;
  writer.AddString("tokenizer.ggml.model", "gpt2");
  writer.AddString("tokenizer.ggml.pre", "llama-bpe");
  writer.AddStrings("tokenizer.ggml.tokens", tokens);
  writer.AddInts("tokenizer.ggml.token_type", kinds);
  writer.AddStrings("tokenizer.ggml.merges", merges);
  writer.AddUint32("tokenizer.ggml.bos_token_id", id_of("bos_token"));
  writer.AddUint32("tokenizer.ggml.eos_token_id", id_of("eos_token"));
  writer.AddString("tokenizer.chat_template", config["chat_template"].get<std::string>());
  return writer;
}

TEST(GgufTokenizerTest, IsThatOfTheFolder) {
  const TemporaryFolder folder;
  const auto from_file = Tokenizer::Load(folder.Write("demo.gguf", DemoTokenizer().Bytes()));
  ASSERT_TRUE(from_file.ok()) << from_file.status();
  const auto from_folder = Tokenizer::Load(absl::StrCat(kFolder, "demo"));
  ASSERT_TRUE(from_folder.ok()) << from_folder.status();
  EXPECT_EQ((*from_file)->Fingerprint(4096), (*from_folder)->Fingerprint(4096));
  EXPECT_EQ((*from_file)->bos(), (*from_folder)->bos());
  EXPECT_EQ((*from_file)->eos(), (*from_folder)->eos());
  EXPECT_EQ((*from_file)->chat_template_source(), (*from_folder)->chat_template_source());
  for (const std::string text : ReadTestFile("strings.json")) {
    EXPECT_EQ(*(*from_file)->Encode(text, {}), *(*from_folder)->Encode(text, {})) << text;
  }
}

// A word merges where the whole is a token, the one of the highest score first; other bytes are byte tokens.
TEST(GgufTokenizerTest, MergesBySentencePiecesScores) {
  const std::string blank = "\xE2\x96\x81";
  GgufWriter writer;
  writer.AddString("tokenizer.ggml.model", "llama");
  writer.AddStrings("tokenizer.ggml.tokens", {"<unk>", "<s>", "</s>", "<0xC3>", "<0xA9>", blank, "a", "b",
                                              "c", "ab", "bc", blank + "a"});
  writer.AddInts("tokenizer.ggml.token_type", {2, 3, 3, 6, 6, 1, 1, 1, 1, 1, 1, 1});
  writer.AddFloats("tokenizer.ggml.scores", {0, 0, 0, 0, 0, -9, -9, -9, -9, -3, -2, -1});
  writer.AddUint32("tokenizer.ggml.bos_token_id", 1);
  const TemporaryFolder folder;
  const auto tokenizer = Tokenizer::Load(folder.Write("spm.gguf", writer.Bytes()));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(*(*tokenizer)->Encode("abc", {}), ElementsAre(1, 11, 10));
  EXPECT_THAT(*(*tokenizer)->Encode("babc", {}), ElementsAre(1, 5, 7, 6, 10));
  EXPECT_THAT(*(*tokenizer)->Encode("b\xC3\xA9</s>", {}), ElementsAre(1, 5, 7, 3, 4, 2));
  EXPECT_EQ((*tokenizer)->Decode({1, 11, 10, 3, 4}, /*skip_special=*/true), "abc\xC3\xA9");
}

// As Gemma's converter writes them: no space in front, tokens of several spaces that text is searched for,
// and control tokens that text does not become.
TEST(GgufTokenizerTest, ReadsSentencePieceAsTheFileSays) {
  const std::string blank = "\xE2\x96\x81";
  GgufWriter writer;
  writer.AddString("tokenizer.ggml.model", "llama");
  writer.AddStrings("tokenizer.ggml.tokens", {"<unk>", "<s>", "<0x7A>", "  ", "\n\n", blank, "a", "<", "s",
                                              ">", "s>", "\n", blank + "a"});
  writer.AddInts("tokenizer.ggml.token_type", {3, 3, 6, 4, 4, 1, 1, 1, 1, 1, 1, 1, 1});
  writer.AddFloats("tokenizer.ggml.scores", {0, 0, 0, -1000, -1000, -9, -9, -9, -9, -9, -2, -9, -1});
  writer.AddUint32("tokenizer.ggml.bos_token_id", 1);
  writer.AddUint32("tokenizer.ggml.unknown_token_id", 0);
  writer.AddBool("tokenizer.ggml.add_space_prefix", false);
  const TemporaryFolder folder;
  const auto tokenizer = Tokenizer::Load(folder.Write("spm.gguf", writer.Bytes()));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(*(*tokenizer)->Encode("a a  a\n\n\n", {}), ElementsAre(1, 6, 12, 3, 6, 4, 11));
  EXPECT_EQ((*tokenizer)->Decode({1, 6, 12, 3, 6, 4, 11}, /*skip_special=*/true), "a a  a\n\n\n");
  // A byte, and a character without one.
  EXPECT_THAT(*(*tokenizer)->Encode("zq", {}), ElementsAre(1, 2, 0));
  EXPECT_THAT(*(*tokenizer)->Encode("<s>", {.parse_special = true}), ElementsAre(1));
  EXPECT_THAT(*(*tokenizer)->Encode("<s>", {.parse_special = false}), ElementsAre(1, 7, 10));
}

TEST(GgufTokenizerTest, ReadsUnigram) {
  const std::string blank = "\xE2\x96\x81";
  GgufWriter writer;
  writer.AddString("tokenizer.ggml.model", "t5");
  writer.AddStrings("tokenizer.ggml.tokens", {"<unk>", blank, "a", "b", "ab", blank + "ab", "b" + blank});
  writer.AddInts("tokenizer.ggml.token_type", {2, 1, 1, 1, 1, 1, 1});
  writer.AddFloats("tokenizer.ggml.scores", {0, -2, -3, -3, -4, -5.5f, -1});
  writer.AddBool("tokenizer.ggml.remove_extra_whitespaces", true);
  const TemporaryFolder folder;
  const auto tokenizer = Tokenizer::Load(folder.Write("unigram.gguf", writer.Bytes()));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  // By the sum of scores: -5.5 for one token, -6 for a blank and "ab".
  EXPECT_THAT(*(*tokenizer)->Encode("  ab   ba ", {}), ElementsAre(5, 1, 3, 2));
  EXPECT_THAT(*(*tokenizer)->Encode("c", {}), ElementsAre(1, 0));
  EXPECT_EQ((*tokenizer)->Decode({5, 1, 3, 2}, true), "ab ba");
}

TEST(GgufTokenizerTest, RefusesByKey) {
  const TemporaryFolder folder;
  const auto error_of = [&](const GgufWriter& writer) {
    return std::string(Tokenizer::Load(folder.Write("t.gguf", writer.Bytes())).status().message());
  };
  GgufWriter kind;
  kind.AddString("tokenizer.ggml.model", "bert");
  EXPECT_THAT(error_of(kind), HasSubstr("key tokenizer.ggml.model: found bert, supported: gpt2, llama, t5"));
  GgufWriter pre;
  pre.AddString("tokenizer.ggml.model", "gpt2");
  pre.AddString("tokenizer.ggml.pre", "gemma4");
  pre.AddStrings("tokenizer.ggml.tokens", {"a"});
  EXPECT_THAT(error_of(pre), HasSubstr("key tokenizer.ggml.pre: found gemma4, supported: default, gpt-2, "));
  GgufWriter merges;
  merges.AddString("tokenizer.ggml.model", "gpt2");
  merges.AddString("tokenizer.ggml.pre", "gpt-2");
  merges.AddStrings("tokenizer.ggml.tokens", {"a"});
  EXPECT_THAT(error_of(merges), HasSubstr("key tokenizer.ggml.merges: expected an array of strings"));
  GgufWriter table;
  table.AddString("tokenizer.ggml.model", "t5");
  table.AddStrings("tokenizer.ggml.tokens", {"a"});
  table.AddFloats("tokenizer.ggml.scores", {0});
  table.AddInts("tokenizer.ggml.precompiled_charsmap", {1});
  EXPECT_THAT(error_of(table),
              HasSubstr("key tokenizer.ggml.precompiled_charsmap: found a table, supported: none"));
  GgufWriter twice;
  twice.AddString("tokenizer.ggml.model", "gpt2");
  twice.AddStrings("tokenizer.ggml.tokens", {"a", "a"});
  EXPECT_THAT(error_of(twice), HasSubstr("\"a\" occurs twice"));
  GgufWriter bytes;
  bytes.AddString("tokenizer.ggml.model", "llama");
  bytes.AddStrings("tokenizer.ggml.tokens", {"\xFF"});
  EXPECT_THAT(error_of(bytes), HasSubstr("key tokenizer.ggml.tokens: expected an array of strings"));
}

}  // namespace
}  // namespace tandem
