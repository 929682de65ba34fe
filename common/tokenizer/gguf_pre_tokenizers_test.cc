#include "common/tokenizer/gguf_pre_tokenizers.h"

#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/tokenizer/byte_alphabet.h"
#include "common/tokenizer/json_view.h"
#include "common/tokenizer/pre_tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

std::vector<std::string> PiecesOf(const PreTokenizer& pre_tokenizer, const std::string& text) {
  std::vector<std::string> pieces;
  const absl::Status status = pre_tokenizer.Split({text, true}, [&](TextPiece piece) {
    pieces.push_back(BytesFromAlphabet(piece.text).value_or("not of the alphabet"));
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  return pieces;
}

// With llama.cpp's own patterns (testdata/make_gguf_splits.py), which differ from those of the models' files
// in spelling.
TEST(GgufPreTokenizersTest, CutLikeLlamaCpp) {
  const std::string path = absl::StrCat(TANDEM_SOURCE_DIR, "/common/tokenizer/testdata/gguf_splits.json");
  const nlohmann::json golden = nlohmann::json::parse(ReadFile(path, 1 << 20).value());
  EXPECT_GE(golden.at("pieces").size(), 18);
  for (const auto& [name, pieces] : golden.at("pieces").items()) {
    const GgufPreTokenizer* const found = FindGgufPreTokenizer(name);
    ASSERT_NE(found, nullptr) << name;
    const auto parsed = ParsePreTokenizer(JsonView::Of(DescribePreTokenizer(*found), name));
    ASSERT_TRUE(parsed.ok()) << name << ": " << parsed.status();
    ASSERT_EQ(pieces.size(), golden.at("texts").size());
    for (size_t i = 0; i < pieces.size(); ++i) {
      EXPECT_EQ(PiecesOf(**parsed, golden.at("texts")[i].get<std::string>()),
                pieces[i].get<std::vector<std::string>>())
          << name << ": " << golden.at("texts")[i];
    }
  }
}

TEST(GgufPreTokenizersTest, AllPatternsAreRead) {
  for (const GgufPreTokenizer& each : GgufPreTokenizers()) {
    const auto parsed = ParsePreTokenizer(JsonView::Of(DescribePreTokenizer(each), std::string(each.name)));
    EXPECT_TRUE(parsed.ok()) << each.name << ": " << parsed.status();
    EXPECT_EQ(FindGgufPreTokenizer(each.name), &each) << each.name << " stands there twice";
  }
}

// The names of llama.cpp's table (src/llama-vocab.cpp, llama_vocab::impl::load) that this one does not have.
TEST(GgufPreTokenizersTest, LacksTheseOfLlamaCpp) {
  const std::pair<const char*, const char*> kLacking[] = {
      {"deepseek-llm",
       "its list of letters cuts through those of Unicode 16, which PCRE2 10.42 does not know"},
      {"jina-es", "for embeddings"},
      {"jina-de", "for embeddings"},
      {"jina-v1-en", "for embeddings"},
      {"jina-v2-es", "for embeddings"},
      {"jina-v2-de", "for embeddings"},
      {"jina-v2-code", "for embeddings"},
      {"jina-v5-nano", "for embeddings"},
      {"roberta-bpe", "for embeddings"},
      {"modern-bert", "for embeddings"},
      {"granite-embed-multi-97m", "for embeddings"},
      {"granite-embed-multi-311m", "for embeddings"},
      {"f2llmv2", "for embeddings"},
      {"whitespace", "for embeddings; tokens are not bytes"},
      {"gemma4", "merges text, not bytes; its architecture is not computed"},
      {"sarvam-moe", "merges text, not bytes; its architecture is not computed"},
      {"afmoe", "groups digits by code; its architecture is not computed"},
      {"youtu", "its architecture is not computed"},
      {"jais-2", "its architecture is not computed"},
      {"exaone-moe", "its architecture is not computed"},
      {"laguna", "its architecture is not computed"},
      {"minicpm5", "its architecture is not computed"},
      {"mellum2", "its architecture is not computed"},
      {"spark2_5", "its architecture is not computed"},
      {"hy_v4", "its architecture is not computed"},
      {"talkie", "its architecture is not computed"},
      {"kormo", "its architecture is not computed"},
      {"ufakzeka", "its architecture is not computed"},
      {"tiny_aya", "its architecture is not computed"},
      {"cohere2moe", "its architecture is not computed"},
  };
  for (const auto& [name, reason] : kLacking) {
    EXPECT_EQ(FindGgufPreTokenizer(name), nullptr) << name << " is there, though " << reason;
  }
  EXPECT_EQ(GgufPreTokenizers().size() + std::size(kLacking), 90u) << "names of llama.cpp's table";
}

}  // namespace
}  // namespace tandem
