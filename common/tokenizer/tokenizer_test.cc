#include "common/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <time.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/tokenizer/regex.h"
#include "common/tokenizer/streaming_decoder.h"
#include "common/tokenizer/unicode/unicode.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

const char kTestData[] = TANDEM_SOURCE_DIR "/common/tokenizer/testdata/";

std::shared_ptr<const Tokenizer> LoadKind(const std::string& kind) {
  absl::StatusOr<std::shared_ptr<const Tokenizer>> tokenizer = Tokenizer::Load(absl::StrCat(kTestData, kind));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

TEST(TokenizerTest, ADefinitionIsAFoldersOwn) {
  const std::string definition =
      ReadFile(absl::StrCat(kTestData, "demo/tokenizer.json"), size_t{1} << 24).value();
  const auto parsed = Tokenizer::Parse(definition, "somewhere");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const auto loaded = LoadKind("demo");
  EXPECT_EQ((*parsed)->Fingerprint(loaded->vocab_size()), loaded->Fingerprint(loaded->vocab_size()));
  EXPECT_EQ((*parsed)->Decode({5, 300, 17}, false), loaded->Decode({5, 300, 17}, false));
  EXPECT_THAT(std::string(Tokenizer::Parse("{}", "somewhere").status().message()), HasSubstr("somewhere"));
}

// A folder of its own for every test.
class FolderTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = absl::StrCat(testing::TempDir(), "/tandem_", info->test_suite_name(), "_", info->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& name, const std::string& contents) {
    std::ofstream(absl::StrCat(folder_, "/", name), std::ios::binary) << contents;
  }
  absl::StatusOr<std::shared_ptr<const Tokenizer>> LoadDefinition(const json& definition) {
    Write("tokenizer.json", definition.dump());
    return Tokenizer::Load(folder_);
  }
  std::string LoadError(const json& definition) {
    const absl::Status status = LoadDefinition(definition).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr("tokenizer.json"));
    return status.ToString();
  }

  std::string folder_;
};

// A, B, AB and two special tokens, over plain characters.
json TinyDefinition() {
  return json::parse(R"({
    "added_tokens": [{"id": 3, "content": "<s>", "special": true},
                     {"id": 4, "content": "</s>", "special": true}],
    "normalizer": null, "pre_tokenizer": null, "post_processor": null,
    "decoder": {"type": "Fuse"},
    "model": {"type": "BPE", "vocab": {"A": 0, "B": 1, "AB": 2}, "merges": ["A B"]}
  })");
}

using HostileDefinitionTest = FolderTest;

TEST_F(HostileDefinitionTest, AcceptsTheTinyDefinition) {
  const auto tokenizer = LoadDefinition(TinyDefinition());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(*(*tokenizer)->Encode("ABxA<s>", {}), ElementsAre(2, 0, 3));
}

TEST_F(HostileDefinitionTest, NamesFileAndPath) {
  const struct {
    const char* pointer;
    json value;
    const char* message;
  } kCases[] = {
      {"/model/vocab/A", -1, "$.model.vocab['A']: expected an integer between 0 and 16777215"},
      {"/model/vocab/A", 1 << 24, "$.model.vocab['A']: expected an integer between 0"},
      {"/model/vocab/A", uint64_t{1} << 63, "$.model.vocab['A']: expected an integer between 0"},
      {"/model/vocab/A", 1, "is given to two tokens"},
      {"/model/vocab/A", 1.5, "$.model.vocab['A']: expected an integer id"},
      {"/model/vocab/A", "0", "$.model.vocab['A']: expected an integer id"},
      {"/model/vocab", json::array(), "$.model.vocab: expected an object"},
      {"/model/merges/0", "A C", "$.model.merges[0]: token 'C' is not in the vocabulary"},
      {"/model/merges/0", "B A", "$.model.merges[0]: token 'BA' is not in the vocabulary"},
      {"/model/merges/0", "AB", "$.model.merges[0]: expected two tokens"},
      {"/model/merges/0", "A B A", "$.model.merges[0]: expected two tokens"},
      {"/model/merges/0", json::array({"A"}), "$.model.merges[0]: expected two tokens"},
      {"/model/merges/0", json::array({"A", 1}), "$.model.merges[0]: expected two tokens"},
      {"/model/merges", "A B", "$.model.merges: expected an array"},
      {"/model/merges", nullptr, "$.model: member 'merges' is missing"},
      {"/model/type", "WordPiece", "$.model.type: model type 'WordPiece' is not supported"},
      {"/model/type", "Unigram", "$.model.vocab: expected an array of contents and scores"},
      {"/model/type", 3, "$.model.type: expected a string, found number"},
      {"/model/dropout", 0.1, "$.model.dropout: dropout"},
      {"/model/end_of_word_suffix", 3, "$.model.end_of_word_suffix: expected a string"},
      {"/model/end_of_word_suffix", std::string(300, 'x'), "$.model.end_of_word_suffix: longer than 256"},
      {"/model/continuing_subword_prefix", "##", "$.model.merges[0]: the second token is shorter than"},
      {"/model/byte_fallback", "yes", "$.model.byte_fallback: expected a boolean"},
      {"/model", 7, "$.model: expected an object, found number"},
      {"/decoder", nullptr, "$: member 'decoder' is missing"},
      {"/decoder/type", "WordPiece", "$.decoder: decoder type 'WordPiece' is not supported"},
      {"/normalizer", json{{"type", "Nmt"}}, "$.normalizer: normalizer type 'Nmt' is not supported"},
      {"/normalizer", json{{"type", "Sequence"}, {"normalizers", {{{"type", "X"}}}}},
       "$.normalizer.normalizers[0]: normalizer type 'X'"},
      {"/normalizer", json{{"type", "Replace"}, {"pattern", {{"Regex", "(a"}}}, {"content", ""}},
       "$.normalizer.pattern.Regex: malformed regular expression: missing closing parenthesis"},
      {"/normalizer", json{{"type", "Replace"}, {"pattern", {{"Regex", "(a)\\1"}}}, {"content", ""}},
       "$.normalizer.pattern.Regex: regular expression uses \\1, which is not supported"},
      {"/normalizer", json{{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", ""}},
       "$.normalizer.pattern.String: an empty pattern"},
      {"/pre_tokenizer", json{{"type", "Bert"}},
       "$.pre_tokenizer: pre-tokenizer type 'Bert' is not supported"},
      {"/pre_tokenizer", json{{"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", "Odd"}},
       "$.pre_tokenizer.behavior: split behaviour 'Odd'"},
      {"/post_processor", json{{"type", "Odd"}}, "$.post_processor: post-processor type 'Odd'"},
      {"/post_processor", json{{"type", "BertProcessing"}}, "$.post_processor: member 'cls' is missing"},
      {"/post_processor", json{{"type", "RobertaProcessing"}, {"cls", {"<s>", 99}}, {"sep", {"</s>", 4}}},
       "$.post_processor: no token has id 99"},
      {"/post_processor",
       json::parse(R"({"type": "TemplateProcessing", "special_tokens": {"x": {"ids": [99]}},
                       "single": [{"SpecialToken": {"id": "x"}}, {"Sequence": {"id": "A"}}]})"),
       "$.post_processor: no token has id 99"},
      {"/post_processor", json::parse(R"({"type": "TemplateProcessing", "special_tokens": {},
                       "single": [{"SpecialToken": {"id": "x"}}]})"),
       "$.post_processor.special_tokens: member 'x' is missing"},
      {"/added_tokens/0/id", 1, "$.added_tokens[0]: id 1 is '<s>' here and 'B' in the model's vocabulary"},
      {"/added_tokens/0/id", 4, "$.added_tokens[1]: id 4 is given to two tokens"},
      {"/added_tokens/0/id", -4, "$.added_tokens[0].id: expected an integer between"},
      {"/added_tokens/0/content", "A", "$.added_tokens[0]: 'A' has id 3 here and 0"},
      {"/added_tokens/0/content", std::string(2000, 'x'), "$.added_tokens[0].content: longer than 1024"},
      {"/added_tokens/1/content", "<s>", "$.added_tokens[1]: '<s>' is added twice"},
      {"/added_tokens/0", "x", "$.added_tokens[0]: expected an object, found string"},
      {"/added_tokens", "x", "$.added_tokens: expected an array, found string"},
  };
  for (const auto& test_case : kCases) {
    json definition = TinyDefinition();
    definition[json::json_pointer(test_case.pointer)] = test_case.value;
    EXPECT_THAT(LoadError(definition), HasSubstr(test_case.message)) << test_case.pointer;
  }
}

TEST_F(HostileDefinitionTest, RefusesDeepNesting) {
  Write("tokenizer.json", std::string(1 << 20, '['));
  EXPECT_THAT(std::string(Tokenizer::Load(folder_).status().message()),
              HasSubstr("nested deeper than 64 levels"));
  json definition = TinyDefinition();
  json step = {{"type", "Digits"}};
  for (int i = 0; i < 4; ++i) step = {{"type", "Sequence"}, {"pretokenizers", json(6, step)}};
  definition["pre_tokenizer"] = step;
  EXPECT_THAT(LoadError(definition), HasSubstr("more than 64 steps in all"));
}

TEST_F(HostileDefinitionTest, RefusesEveryTruncation) {
  const std::string whole = TinyDefinition().dump();
  for (size_t length = 0; length < whole.size(); ++length) {
    Write("tokenizer.json", whole.substr(0, length));
    const absl::Status status = Tokenizer::Load(folder_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << length;
    EXPECT_THAT(std::string(status.message()), HasSubstr("tokenizer.json: not JSON"));
  }
}

// A parser may take a zero byte for the end, and what follows for nothing.
TEST_F(HostileDefinitionTest, RefusesWhatFollowsAZeroByte) {
  Write("tokenizer.json", absl::StrCat(TinyDefinition().dump(), std::string(1, '\0'), "rest"));
  EXPECT_THAT(std::string(Tokenizer::Load(folder_).status().message()), HasSubstr("is zero"));
}

TEST_F(HostileDefinitionTest, SurvivesMangledBytes) {
  const std::string whole = *ReadFile(absl::StrCat(kTestData, "llama2/tokenizer.json"), 1 << 20);
  std::mt19937 random(3);
  size_t num_refused = 0;
  for (int i = 0; i < 200; ++i) {
    std::string mangled = whole;
    for (int j = 0; j < 3; ++j) mangled[random() % mangled.size()] = static_cast<char>(random() % 256);
    Write("tokenizer.json", mangled);
    const auto tokenizer = Tokenizer::Load(folder_);
    if (!tokenizer.ok()) {
      ++num_refused;
      continue;
    }
    const absl::StatusOr<TokenIds> ids = (*tokenizer)->Encode("Hello <s> wörld 世界", {});
    if (ids.ok()) (*tokenizer)->Decode(*ids, false);
  }
  EXPECT_GT(num_refused, 50);
}

TEST_F(HostileDefinitionTest, TakesOddByteTokensAsText) {
  json definition = TinyDefinition();
  definition["model"]["byte_fallback"] = true;
  definition["decoder"] = {{"type", "ByteFallback"}};
  definition["model"]["vocab"]["<0x-1>"] = 5;
  definition["model"]["vocab"]["<0xGG>"] = 6;
  definition["model"]["vocab"]["<0x43>"] = 7;
  const auto tokenizer = LoadDefinition(definition);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->Decode({5, 6, 7}, false), "<0x-1><0xGG>C");
  EXPECT_THAT(*(*tokenizer)->Encode("C", {}), ElementsAre(7));
}

TEST_F(HostileDefinitionTest, ReportsAMissingFolderAndFile) {
  EXPECT_EQ(Tokenizer::Load(folder_).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(Tokenizer::Load(folder_).status().message()), HasSubstr("tokenizer.json"));
}

TEST_F(HostileDefinitionTest, ReportsAPatternThatBacktracksWithoutEnd) {
  json definition = TinyDefinition();
  definition["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"Regex", "(A|A|AA)+$"}}}, {"behavior", "Isolated"}, {"invert", false}};
  const auto tokenizer = LoadDefinition(definition);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const absl::Status status = (*tokenizer)->Encode(std::string(64, 'A') + "B", {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
}

TEST_F(HostileDefinitionTest, RefusesOddUnigramModels) {
  const struct {
    json vocab;
    json unknown;
    const char* message;
  } kCases[] = {
      {json::array({json::array({"a", -1.0}), json::array({"a", -2.0})}), 0,
       "$.model.vocab[1]: 'a' occurs twice"},
      {json::array({json::array({"a", "b"})}), 0, "$.model.vocab[0]: expected a content and a score"},
      {json::array({"a"}), 0, "$.model.vocab[0]: expected a content and a score"},
      {json::array({json::array({"a", -1.0})}), 1, "$.model.unk_id: expected an integer between 0 and 0"},
      {json::array(), 0, "$.model.unk_id: expected an integer"},
  };
  for (const auto& test_case : kCases) {
    json definition = TinyDefinition();
    definition["added_tokens"] = json::array();
    definition["model"] = {{"type", "Unigram"}, {"vocab", test_case.vocab}, {"unk_id", test_case.unknown}};
    EXPECT_THAT(LoadError(definition), HasSubstr(test_case.message));
  }
}

TEST_F(HostileDefinitionTest, NeedsAnUnknownTokenOnlyWhereOneIsUsed) {
  json definition = TinyDefinition();
  definition["added_tokens"] = json::array();
  definition["model"] = {{"type", "Unigram"}, {"vocab", json::array({json::array({"a", -1.0})})}};
  const auto tokenizer = LoadDefinition(definition);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(*(*tokenizer)->Encode("aa", {}), ElementsAre(0, 0));
  EXPECT_EQ((*tokenizer)->Encode("ab", {}).status().code(), absl::StatusCode::kFailedPrecondition);
}

using ConfigTest = FolderTest;

// Phi-3's tokenizer.json asks for a BOS, its configuration for none; transformers heeds the latter.
TEST_F(ConfigTest, TheClassOfTheTokenizerDecidesWhoFrames) {
  json definition = TinyDefinition();
  definition["post_processor"] = json::parse(
      R"({"type": "TemplateProcessing", "special_tokens": {"<s>": {"ids": [3]}},
          "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]})");
  const auto encode = [&](const std::string& config) {
    Write("tokenizer_config.json", config);
    const auto tokenizer = LoadDefinition(definition);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return tokenizer.ok() ? *(*tokenizer)->Encode("A", {}) : TokenIds();
  };
  const std::string tokens = R"("bos_token": "<s>", "eos_token": "</s>")";
  EXPECT_THAT(encode("{" + tokens + R"(, "tokenizer_class": "LlamaTokenizer", "add_bos_token": false})"),
              ElementsAre(0));
  EXPECT_THAT(encode("{" + tokens + R"(, "tokenizer_class": "LlamaTokenizerFast", "add_bos_token": true,
                                       "add_eos_token": true})"),
              ElementsAre(3, 0, 4));
  EXPECT_THAT(encode("{" + tokens + R"(, "tokenizer_class": "LlamaTokenizer"})"), ElementsAre(3, 0));
  EXPECT_THAT(encode("{" + tokens + R"(, "tokenizer_class": "GPT2Tokenizer", "add_bos_token": false})"),
              ElementsAre(3, 0));
}

// A special token that the normalizer rewrites is one still, and never part of the text.
TEST_F(ConfigTest, LeavesOutNormalizedSpecialTokens) {
  json definition = TinyDefinition();
  definition["normalizer"] = {{"type", "Prepend"}, {"prepend", "_"}};
  definition["added_tokens"][0]["normalized"] = true;
  const auto tokenizer = LoadDefinition(definition);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->Decode({0, 3, 1}, /*skip_special=*/false), "A_<s>B");
  EXPECT_EQ((*tokenizer)->Decode({0, 3, 1}, /*skip_special=*/true), "AB");
}

TEST_F(ConfigTest, FramesByAddBosToken) {
  Write("tokenizer_config.json",
        R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "add_bos_token": true,
            "add_eos_token": true})");
  const auto loaded = LoadDefinition(TinyDefinition());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const Tokenizer& tokenizer = **loaded;
  EXPECT_EQ(tokenizer.bos(), 3);
  EXPECT_EQ(tokenizer.eos(), 4);
  EXPECT_THAT(*tokenizer.Encode("A", {}), ElementsAre(3, 0, 4));
  EXPECT_THAT(*tokenizer.Encode("", {}), ElementsAre(3, 4));
  EXPECT_THAT(*tokenizer.Encode("<s>A", {}), ElementsAre(3, 0, 4)) << "BOS must not be doubled";
  EXPECT_THAT(*tokenizer.Encode("A", {true, false}), ElementsAre(0));
  EXPECT_THAT(*tokenizer.Encode("<s>A", {false, true}), ElementsAre(3, 0, 4))
      << "no special token in the text";
}

TEST_F(ConfigTest, LeavesTheFrameToThePostProcessor) {
  Write("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": true})");
  json definition = TinyDefinition();
  definition["post_processor"] = json::parse(
      R"({"type": "TemplateProcessing", "special_tokens": {"</s>": {"ids": [4]}},
          "single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "</s>"}}]})");
  const auto tokenizer = LoadDefinition(definition);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(*(*tokenizer)->Encode("A", {}), ElementsAre(0, 4));
}

TEST_F(ConfigTest, NamesWhatIsWrong) {
  const struct {
    const char* config;
    const char* message;
  } kCases[] = {
      {R"({"bos_token": 3})", "tokenizer_config.json: $.bos_token: expected a string"},
      {R"({"bos_token": {"x": 3}})", "tokenizer_config.json: $.bos_token: member 'content' is missing"},
      {R"({"add_bos_token": true})", "tokenizer_config.json: $: add_bos_token is set"},
      {R"({"add_bos_token": 1})", "tokenizer_config.json: $.add_bos_token: expected a boolean"},
      {R"({"chat_template": 1})", "tokenizer_config.json: $.chat_template: expected a string"},
      {R"({"chat_template": [{"template": ""}]})", "$.chat_template[0]: member 'name' is missing"},
      {R"([])", "tokenizer_config.json: $: expected an object"},
      {R"({"bos)", "tokenizer_config.json: not JSON"},
  };
  for (const auto& test_case : kCases) {
    Write("tokenizer_config.json", test_case.config);
    const absl::Status status = LoadDefinition(TinyDefinition()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << test_case.config;
    EXPECT_THAT(std::string(status.message()), HasSubstr(test_case.message));
  }
}

TEST_F(ConfigTest, FindsTheChatTemplate) {
  const std::vector<ChatMessage> messages = {{"user", "hi"}};
  EXPECT_EQ((*LoadDefinition(TinyDefinition()))->ApplyChatTemplate(messages, {}).status().code(),
            absl::StatusCode::kNotFound);
  Write("tokenizer_config.json",
        R"({"bos_token": "<s>", "chat_template": [{"name": "tool_use", "template": "tools"},
            {"name": "default", "template": "{{ bos_token }}{{ messages[0].content }}"}]})");
  EXPECT_EQ(*(*LoadDefinition(TinyDefinition()))->ApplyChatTemplate(messages, {}), "<s>hi");
  Write("chat_template.jinja", "file {{ messages[0].role }}\n");
  EXPECT_EQ(*(*LoadDefinition(TinyDefinition()))->ApplyChatTemplate(messages, {}), "file user");
  Write("chat_template.jinja", "{{ broken");
  const auto tokenizer = LoadDefinition(TinyDefinition());
  ASSERT_TRUE(tokenizer.ok()) << "a broken template must not keep the model from completing text";
  EXPECT_THAT(std::string((*tokenizer)->ApplyChatTemplate(messages, {}).status().message()),
              HasSubstr("chat template: line 1"));
}

TEST(TokenizerTest, RendersTheDemoChat) {
  const auto tokenizer = LoadKind("demo");
  const absl::StatusOr<std::string> text = tokenizer->ApplyChatTemplate({{"user", " Hi "}}, {});
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, "<|bos|><|user|>\nHi<|end|>\n<|assistant|>\n");
  const absl::StatusOr<TokenIds> ids = tokenizer->Encode(*text, {});
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ((*ids)[0], *tokenizer->bos());
  EXPECT_NE((*ids)[1], *tokenizer->bos());
}

TEST(TokenizerTest, NamesTheOffsetOfInvalidUtf8) {
  const auto tokenizer = LoadKind("demo");
  for (const std::string& text :
       {std::string("abc\xff"), std::string("abc\xe4\xb8"), std::string("abc\xed\xa0\x80"),
        std::string("abc\xc0\x80"), std::string("abc\xf4\x90\x80\x80")}) {
    const absl::Status status = tokenizer->Encode(text, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("at byte 3"));
  }
}

TEST(TokenizerTest, GivesBytesOfEveryToken) {
  const auto tokenizer = LoadKind("demo");
  EXPECT_EQ(tokenizer->vocab_size(), 4096);
  EXPECT_EQ(tokenizer->TokenBytes(3041), "Hello");
  EXPECT_EQ(tokenizer->TokenBytes(*tokenizer->FindToken("<|user|>")), "<|user|>");
  EXPECT_TRUE(tokenizer->IsSpecial(*tokenizer->FindToken("<|user|>")));
  EXPECT_FALSE(tokenizer->IsSpecial(3041));
  EXPECT_FALSE(tokenizer->FindToken("no such token").has_value());
  for (TokenId outside : {-1, 4096, INT32_MAX, INT32_MIN}) {
    EXPECT_FALSE(tokenizer->HasToken(outside));
    EXPECT_FALSE(tokenizer->IsSpecial(outside));
    EXPECT_EQ(tokenizer->TokenBytes(outside), "");
    EXPECT_EQ(tokenizer->Decode({3041, outside}, false), "Hello");
  }
}

TEST_F(ConfigTest, FingerprintTellsVocabulariesApart) {
  const auto fingerprint = [this](const json& definition, int32_t width) {
    return (*LoadDefinition(definition))->Fingerprint(width);
  };
  const json base = TinyDefinition();
  EXPECT_EQ(fingerprint(base, 8), fingerprint(base, 8));
  EXPECT_NE(fingerprint(base, 8), fingerprint(base, 9));
  json changed = base;
  changed["added_tokens"][1]["content"] = "</S>";
  EXPECT_NE(fingerprint(base, 8), fingerprint(changed, 8));
  EXPECT_NE(fingerprint(base, 5), fingerprint(changed, 5));
  changed = base;
  changed["added_tokens"][1]["special"] = false;
  EXPECT_NE(fingerprint(base, 8), fingerprint(changed, 8)) << "special or not must count";
  changed = base;
  std::swap(changed["model"]["vocab"]["A"], changed["model"]["vocab"]["B"]);
  EXPECT_NE(fingerprint(base, 8), fingerprint(changed, 8));
  changed = base;
  changed["added_tokens"][1]["id"] = 7;
  EXPECT_NE(fingerprint(base, 8), fingerprint(changed, 8));
  // Part of the wire protocol: it may never change.
  EXPECT_EQ(fingerprint(base, 8), 13122251167349191569u);
}

// What a stream of the tokens is, by their bytes.
std::string Streamed(const Tokenizer& tokenizer, const TokenIds& ids, bool skip_special) {
  std::string bytes;
  bool is_first = true;
  for (TokenId id : ids) {
    if (skip_special && tokenizer.IsSpecial(id)) continue;
    const absl::string_view of_token = is_first ? tokenizer.FirstTokenBytes(id) : tokenizer.TokenBytes(id);
    is_first = is_first && !tokenizer.HasToken(id);
    bytes.append(of_token.data(), of_token.size());
  }
  std::string text;
  for (absl::string_view rest = bytes; !rest.empty();) {
    const Utf8Unit unit = ReadUtf8(rest);
    const bool valid = unit.kind == Utf8Unit::Kind::kCharacter;
    text += valid ? std::string(rest.substr(0, unit.length)) : std::string(kReplacementCharacter);
    rest.remove_prefix(unit.length);
  }
  const TokenDecoder::LeadingStrip& strip = tokenizer.leading_strip();
  for (int i = 0; i < strip.max_count && text.rfind(strip.character, 0) == 0; ++i)
    text.erase(0, strip.character.size());
  return text;
}

TEST(StreamingDecoderTest, AddsUpToItsBytesForAnyTokens) {
  std::mt19937 random(11);
  for (const char* kind : {"gpt2", "llama2", "mistral", "unknown", "demo"}) {
    const auto tokenizer = LoadKind(kind);
    for (int round = 0; round < 300; ++round) {
      TokenIds ids;
      // The low ids of the SentencePiece kinds are byte tokens: many broken characters.
      const int32_t range = round % 2 == 0 ? tokenizer->vocab_size() : std::min(260, tokenizer->vocab_size());
      for (size_t i = random() % 20; i > 0; --i) ids.push_back(static_cast<TokenId>(random() % range));
      StreamingDecoder decoder(tokenizer, round % 3 == 0);
      std::string text;
      for (size_t i = 0; i < ids.size();) {
        const size_t count = std::min<size_t>(1 + random() % 3, ids.size() - i);
        const std::string piece = decoder.Push(absl::MakeConstSpan(ids).subspan(i, count));
        EXPECT_FALSE(FindInvalidUtf8(piece).has_value());
        EXPECT_LE(decoder.num_pending_bytes(), 3);
        text += piece;
        i += count;
      }
      text += decoder.Flush();
      EXPECT_EQ(text, Streamed(*tokenizer, ids, round % 3 == 0));
      // But for runs of byte tokens, of which only llama2 and mistral have any.
      const bool has_runs = tokenizer->FindToken("<0x00>").has_value();
      if (!has_runs) {
        EXPECT_EQ(text, tokenizer->Decode(ids, round % 3 == 0));
      }
    }
  }
}

TEST(StreamingDecoderTest, KeepsHalfACharacterBack) {
  const auto tokenizer = LoadKind("llama2");
  const auto byte = [&](const char* name) { return tokenizer->FindToken(name).value(); };
  StreamingDecoder decoder(tokenizer, false);
  EXPECT_EQ(decoder.Push(byte("<0xF0>")), "");
  EXPECT_EQ(decoder.Push(byte("<0x9F>")), "");
  StreamingDecoder copy = decoder;
  EXPECT_EQ(decoder.Push({byte("<0x91>"), byte("<0x8D>")}), "\xF0\x9F\x91\x8D");
  EXPECT_EQ(decoder.Flush(), "");
  EXPECT_EQ(copy.num_pending_bytes(), 2);
  EXPECT_EQ(copy.Push(byte("<0x41>")),
            "\xEF\xBF\xBD"
            "A");
  EXPECT_EQ(copy.Push(byte("<0xE4>")), "");
  EXPECT_EQ(copy.Flush(), "\xEF\xBF\xBD");
}

TEST(StreamingDecoderTest, DropsTheLeadingSpaceOnce) {
  const auto tokenizer = LoadKind("llama2");
  const TokenId space = tokenizer->FindToken("\xE2\x96\x81").value();
  StreamingDecoder decoder(tokenizer, true);
  EXPECT_EQ(decoder.Push(*tokenizer->FindToken("<s>")), "");
  EXPECT_EQ(decoder.Push(space), "");
  EXPECT_EQ(decoder.Push(space), " ");
}

TEST(StreamingDecoderTest, KeepsTheLeadingSpaceOfAContinuation) {
  const auto tokenizer = LoadKind("llama2");
  const TokenId space = tokenizer->FindToken("\xE2\x96\x81").value();
  StreamingDecoder decoder(tokenizer, /*skip_special=*/true, /*continuation=*/true);
  EXPECT_EQ(decoder.Push(space), " ");
  EXPECT_EQ(decoder.Flush(), "");
  EXPECT_EQ(decoder.Push(space), " ");
}

// Quadratic behaviour on these would take hours.
TEST(SpeedTest, TakesLongWordsInTime) {
  constexpr size_t kSize = 1 << 20;
  std::string marks = "a";
  std::string digits;
  while (marks.size() < kSize) marks += "\xCC\x81\xCC\xA3";  // above, below: every pair is out of order
  for (size_t i = 0; i < kSize; ++i) digits += static_cast<char>('0' + i % 10);
  const std::string kTexts[] = {
      std::string(kSize, 'a'),      std::string(kSize, ' '), std::string(kSize, '\n'), marks, digits,
      std::string(kSize, ' ') + "x"};
  for (const char* kind : {"gpt2", "qwen2", "mistral", "demo"}) {
    const auto tokenizer = LoadKind(kind);
    for (const std::string& text : kTexts) {
      const absl::StatusOr<TokenIds> ids = tokenizer->Encode(text, {true, false});
      ASSERT_TRUE(ids.ok()) << kind << ": " << ids.status();
      // NFC changes the text; Metaspace does not put a space before one, and the decoder takes it for its
      // own.
      const std::string decoded = tokenizer->Decode(*ids, false);
      EXPECT_TRUE(decoded == text || " " + decoded == text || std::string(kind) == "qwen2") << kind;
    }
  }
}

// What a pattern is searched for ends with what is made of it.
TEST(LimitTest, SearchesNoFurtherThanIsTaken) {
  const absl::StatusOr<Regex> words = Regex::Compile("[a-z]+");
  ASSERT_TRUE(words.ok()) << words.status();
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "word ";
  int taken = 0;
  const absl::Status status = words->ForEachMatch(text, [&](size_t, size_t) {
    return ++taken < 10 ? absl::OkStatus() : absl::OutOfRangeError("enough");
  });
  EXPECT_TRUE(absl::IsOutOfRange(status)) << status;
  EXPECT_EQ(taken, 10);
}

double ThreadSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// A text of a mebibyte that is refused costs little of what it would cost to make tokens of it, whether it is
// one word or many. The processor's time of this thread, so that others' load does not count.
TEST(LimitTest, RefusingCostsLittle) {
  constexpr size_t kSize = 1 << 20;
  std::mt19937_64 random(1);
  std::string words;
  while (words.size() < kSize) {
    for (size_t i = 0, length = 1 + random() % 9; i < length; ++i)
      words += static_cast<char>('a' + random() % 26);
    words += ' ';
  }
  for (const char* kind : {"gpt2", "llama2", "llama3", "qwen2", "mistral", "demo"}) {
    const auto tokenizer = LoadKind(kind);
    const auto seconds = [&](size_t limit) {
      const double begin = ThreadSeconds();
      const absl::StatusOr<TokenIds> ids = tokenizer->Encode(words, {.max_tokens = limit});
      EXPECT_EQ(ids.ok(), limit > kSize) << kind << ": " << ids.status();
      return ThreadSeconds() - begin;
    };
    const double whole = seconds(std::numeric_limits<size_t>::max());
    const double refused = seconds(1024);
    std::cout << kind << ": " << whole << " s whole, " << refused << " s refused\n";
    EXPECT_LT(refused, 0.5 * whole) << kind;
  }
}

}  // namespace
}  // namespace tandem
