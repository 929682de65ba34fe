// Compares every kind of tokenizer with what the Hugging Face `tokenizers` library gave for 2,000 strings;
// testdata/make_golden.py makes the files.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/file.h"
#include "common/tokenizer/streaming_decoder.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/unicode/unicode.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

const char kGoldenData[] = TANDEM_SOURCE_DIR "/common/tokenizer/testdata/";

nlohmann::json ReadJson(const std::string& name) {
  const absl::StatusOr<std::string> text = ReadFile(absl::StrCat(kGoldenData, name), 16 << 20);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.ok() ? nlohmann::json::parse(*text) : nlohmann::json();
}

TokenIds ParseIds(const std::string& text) {
  TokenIds ids;
  for (absl::string_view part : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    TokenId id = -1;
    EXPECT_TRUE(absl::SimpleAtoi(part, &id));
    ids.push_back(id);
  }
  return ids;
}

class GoldenTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    absl::StatusOr<std::shared_ptr<const Tokenizer>> tokenizer =
        Tokenizer::Load(absl::StrCat(kGoldenData, GetParam()));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
    strings_ = ReadJson("strings.json").get<std::vector<std::string>>();
    golden_ = ReadJson(absl::StrCat(GetParam(), "/golden.json"));
    for (const auto& ids : golden_.at("ids")) ids_.push_back(ParseIds(ids.get<std::string>()));
    ASSERT_GE(strings_.size(), 2000);
    ASSERT_EQ(ids_.size(), strings_.size());
  }

  TokenIds Encode(const std::string& text, bool parse_special, bool add_special_tokens) {
    Tokenizer::EncodeOptions options;
    options.parse_special = parse_special;
    options.add_special_tokens = add_special_tokens;
    const absl::StatusOr<TokenIds> ids = tokenizer_->Encode(text, options);
    EXPECT_TRUE(ids.ok()) << ids.status();
    return ids.ok() ? *ids : TokenIds();
  }

  // The expected text of string `index`: the golden file lists it only where it differs from the string.
  std::string ExpectedText(size_t index, bool skip_special) {
    const auto it = golden_.at("decoded").find(absl::StrCat(index));
    if (it == golden_.at("decoded").end()) return strings_[index];
    return (skip_special ? it->back() : it->front()).get<std::string>();
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<std::string> strings_;
  std::vector<TokenIds> ids_;
  nlohmann::json golden_;
};

TEST_P(GoldenTest, EncodesAsHuggingFace) {
  for (size_t i = 0; i < strings_.size(); ++i) {
    EXPECT_EQ(Encode(strings_[i], true, false), ids_[i]) << "string " << i << ": '" << strings_[i] << "'";
  }
}

// Where the work ends early must not show: what fits is the same, and what does not is refused.
TEST_P(GoldenTest, ALimitRefusesOnlyWhatIsLonger) {
  for (const bool framed : {false, true}) {
    for (size_t i = 0; i < strings_.size(); ++i) {
      const TokenIds whole = Encode(strings_[i], true, framed);
      for (size_t limit = 0; limit <= whole.size() + 2; limit += 1 + limit / 8) {
        const absl::StatusOr<TokenIds> limited = tokenizer_->Encode(
            strings_[i], {.parse_special = true, .add_special_tokens = framed, .max_tokens = limit});
        if (limit >= whole.size()) {
          ASSERT_TRUE(limited.ok()) << "string " << i << ", limit " << limit << ": " << limited.status();
          EXPECT_EQ(*limited, whole) << "string " << i << ", limit " << limit;
        } else {
          EXPECT_EQ(limited.status().code(), absl::StatusCode::kOutOfRange)
              << "string " << i << ", limit " << limit;
        }
      }
      const absl::StatusOr<TokenIds> fits = tokenizer_->Encode(
          strings_[i], {.parse_special = true, .add_special_tokens = framed, .max_tokens = whole.size()});
      ASSERT_TRUE(fits.ok()) << "string " << i << ": " << fits.status();
      EXPECT_EQ(*fits, whole);
    }
  }
}

TEST_P(GoldenTest, EncodesSpecialTokensAsText) {
  for (size_t i = 0; i < strings_.size(); ++i) {
    const auto it = golden_.at("special_as_text").find(absl::StrCat(i));
    const bool same = it == golden_.at("special_as_text").end();
    EXPECT_EQ(Encode(strings_[i], false, false), same ? ids_[i] : ParseIds(it->get<std::string>()))
        << "string " << i << ": '" << strings_[i] << "'";
  }
}

TEST_P(GoldenTest, FramesAsThePostProcessorSays) {
  const bool is_demo = std::string(GetParam()) == "demo";
  size_t num_checked = 0;
  for (const auto& [key, value] : golden_.at("framed").items()) {
    size_t index = 0;
    ASSERT_TRUE(absl::SimpleAtoi(key, &index));
    TokenIds expected = value.get<TokenIds>();
    // The library does not read tokenizer_config.json, where the demo models ask for BOS.
    if (is_demo && (expected.empty() || expected[0] != tokenizer_->bos())) {
      expected.insert(expected.begin(), tokenizer_->bos().value());
    }
    // Unlike the library, we never put two BOS in front.
    if (expected.size() > 1 && expected != ids_[index] && expected[0] == expected[1]) {
      expected.erase(expected.begin());
    }
    EXPECT_EQ(Encode(strings_[index], true, true), expected) << "string " << index;
    ++num_checked;
  }
  EXPECT_GE(num_checked, 50);
}

TEST_P(GoldenTest, DecodesAsHuggingFace) {
  for (size_t i = 0; i < strings_.size(); ++i) {
    EXPECT_EQ(tokenizer_->Decode(ids_[i], false), ExpectedText(i, false)) << "string " << i;
    EXPECT_EQ(tokenizer_->Decode(ids_[i], true), ExpectedText(i, true)) << "string " << i;
  }
}

TEST_P(GoldenTest, StreamsWhatItDecodes) {
  for (size_t i = 0; i < strings_.size(); ++i) {
    const bool skip_special = i % 2 == 0;
    StreamingDecoder decoder(tokenizer_, skip_special);
    std::string text;
    for (TokenId token : ids_[i]) {
      const std::string piece = decoder.Push(token);
      EXPECT_FALSE(FindInvalidUtf8(piece).has_value());
      text += piece;
    }
    text += decoder.Flush();
    EXPECT_EQ(text, ExpectedText(i, skip_special)) << "string " << i;
  }
}

TEST(ComponentTest, WorksAsInHuggingFace) {
  const nlohmann::json golden = ReadJson("components.json");
  const std::string folder = absl::StrCat(testing::TempDir(), "/tandem_tokenizer_components");
  std::filesystem::create_directories(folder);
  const std::vector<std::string> texts = golden.at("texts");
  for (const nlohmann::json& variant : golden.at("variants")) {
    nlohmann::json definition = ReadJson("gpt2/tokenizer.json");
    for (const char* component : {"normalizer", "pre_tokenizer"}) {
      if (variant.contains(component)) definition[component] = variant[component];
    }
    std::ofstream(folder + "/tokenizer.json") << definition;
    const auto tokenizer = Tokenizer::Load(folder);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    const std::vector<std::string> ids = variant.at("ids");
    ASSERT_EQ(ids.size(), texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      const absl::StatusOr<TokenIds> encoded = (*tokenizer)->Encode(texts[i], {});
      ASSERT_TRUE(encoded.ok()) << encoded.status();
      EXPECT_EQ(*encoded, ParseIds(ids[i])) << "'" << texts[i] << "'";
    }
  }
  EXPECT_GE(golden.at("variants").size(), 20);
  std::filesystem::remove_all(folder);
}

// Every feature of testdata/make_features.py: the ids of its texts, and the texts of its ids.
TEST(FeatureTest, WorksAsInHuggingFace) {
  const nlohmann::json golden = ReadJson("features.json");
  const std::string folder = absl::StrCat(testing::TempDir(), "/tandem_tokenizer_features");
  std::filesystem::create_directories(folder);
  const std::vector<std::string> texts = golden.at("texts");
  for (const nlohmann::json& feature : golden.at("features")) {
    nlohmann::json definition =
        ReadJson(absl::StrCat(feature.at("base").get<std::string>(), "/tokenizer.json"));
    const nlohmann::json& parts = feature.at("parts");
    definition.update(parts);
    const std::string name = parts.contains("model") ? "a model" : parts.dump();
    std::ofstream(folder + "/tokenizer.json") << definition;
    const auto tokenizer = Tokenizer::Load(folder);
    ASSERT_TRUE(tokenizer.ok()) << name << ": " << tokenizer.status();
    const std::vector<std::string> ids = feature.at("ids");
    ASSERT_EQ(ids.size(), texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      const absl::StatusOr<TokenIds> encoded = (*tokenizer)->Encode(texts[i], {});
      ASSERT_TRUE(encoded.ok()) << name << ": " << encoded.status();
      EXPECT_EQ(*encoded, ParseIds(ids[i])) << name << ": '" << texts[i] << "'";
    }
    for (const nlohmann::json& decoded : feature.value("decoded", nlohmann::json::array())) {
      EXPECT_EQ((*tokenizer)->Decode(ParseIds(decoded.at(0)), /*skip_special=*/true),
                decoded.at(1).get<std::string>())
          << name << ": " << decoded.at(0);
    }
  }
  EXPECT_GE(golden.at("features").size(), 60);
  std::filesystem::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(Kinds, GoldenTest,
                         testing::Values("gpt2", "gpt2_prefix_space", "llama3", "qwen2", "llama2", "mistral",
                                         "unknown", "demo"),
                         [](const auto& param_info) { return std::string(param_info.param); });

}  // namespace
}  // namespace tandem
