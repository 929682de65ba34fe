// tokenizer.json with tokenizer_config.json, and texts through what they describe.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/tokenizer/streaming_decoder.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/unicode/unicode.h"
#include "nlohmann/json.hpp"
#include "tests/fuzz/fuzz_target.h"

namespace tandem::fuzz {
namespace {

constexpr absl::string_view kTokenizerTexts =
    "Hello <s> w\xc3\xb6rld \xe4\xb8\x96\xe7\x95\x8c 123\n\n  <|eot|>";

void TryTokenizer(const std::shared_ptr<const Tokenizer>& tokenizer, absl::string_view text) {
  for (const bool parse_special : {true, false}) {
    const absl::StatusOr<TokenIds> ids = tokenizer->Encode(text, {.parse_special = parse_special});
    if (!ids.ok()) continue;
    for (const TokenId token : *ids) Require(tokenizer->HasToken(token), "tokens of the vocabulary");
    const std::string decoded = tokenizer->Decode(*ids, parse_special);
    Require(!FindInvalidUtf8(decoded).has_value(), "UTF-8");
    StreamingDecoder stream(tokenizer, parse_special);
    const std::string streamed = absl::StrCat(stream.Push(*ids), stream.Flush());
    Require(!FindInvalidUtf8(streamed).has_value(), "UTF-8 of streams");
  }
  for (TokenId token = 0; token < std::min(tokenizer->vocab_size(), 300); ++token)
    tokenizer->TokenBytes(token);
  tokenizer->Fingerprint(std::min(tokenizer->vocab_size() + 1, 1000));
}

bool RunTokenizer(absl::string_view input) {
  InputReader reader(input);
  ScratchFile("tokenizer.json", reader.Part());
  ScratchFile("tokenizer_config.json", reader.Part());
  const std::string folder = ScratchFolder();
  const auto tokenizer = Tokenizer::Load(folder);
  if (!tokenizer.ok()) return Refused(tokenizer.status(), folder);
  TryTokenizer(*tokenizer, reader.Rest());
  TryTokenizer(*tokenizer, kTokenizerTexts);
  if (const auto prompt =
          (*tokenizer)->ApplyChatTemplate(std::vector<ChatMessage>{{"user", "Hello"}}, {.max_steps = 10'000});
      prompt.ok()) {
    Require(prompt->size() <= size_t{1} << 20, "a prompt within the bounds");
  }
  return true;
}

// A tokenizer of the tests with the first tokens and merges of its model alone.
std::string SmallTokenizer(const std::string& kind, size_t num_tokens) {
  nlohmann::json definition = nlohmann::json::parse(
      RepositoryFile(absl::StrCat("common/tokenizer/testdata/", kind, "/tokenizer.json")));
  nlohmann::json& model = definition["model"];
  if (model["vocab"].is_array()) {  // Unigram.
    if (model["vocab"].size() > num_tokens)
      model["vocab"].erase(model["vocab"].begin() + num_tokens, model["vocab"].end());
    return definition.dump();
  }
  nlohmann::json vocab = nlohmann::json::object();
  for (const auto& [content, id] : model["vocab"].items()) {
    if (id.get<size_t>() < num_tokens) vocab[content] = id;
  }
  nlohmann::json merges = nlohmann::json::array();
  for (const nlohmann::json& merge : model["merges"]) {
    const std::string text =
        merge.is_string() ? merge.get<std::string>()
                          : absl::StrCat(merge[0].get<std::string>(), " ", merge[1].get<std::string>());
    const size_t blank = text.find(' ', 1);
    const std::string left = text.substr(0, blank), right = text.substr(blank + 1);
    if (vocab.contains(left) && vocab.contains(right) && vocab.contains(left + right))
      merges.push_back(merge);
  }
  model["vocab"] = std::move(vocab);
  model["merges"] = std::move(merges);
  return definition.dump();
}

// Of tokenizers that differ in what they are made of, and small: what is tried is how they are read.
std::vector<std::string> TokenizerSeeds() {
  const std::string config = RepositoryFile("common/tokenizer/testdata/demo/tokenizer_config.json");
  std::vector<std::string> seeds;
  for (const char* const kind :
       {"gpt2", "gpt2_prefix_space", "llama2", "llama3", "mistral", "qwen2", "unknown"}) {
    seeds.push_back(Parts({SmallTokenizer(kind, 280), "{}", "Hello  w\xc3\xb6rld's 1234"}));
  }
  seeds.push_back(Parts({SmallTokenizer("demo", 270), config, "<|user|> Hi"}));
  const char kTiny[] = R"({"added_tokens": [{"id": 3, "content": "<s>", "special": true},
    {"id": 4, "content": "</s>", "special": true}], "decoder": {"type": "Fuse"},)";
  seeds.push_back(Parts(
      {absl::StrCat(kTiny,
                    R"("model": {"type": "BPE", "vocab": {"A": 0, "B": 1, "AB": 2}, "merges": ["A B"]}})"),
       R"({"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}", "bos_token": "<s>"})",
       "ABBA"}));
  seeds.push_back(Parts({absl::StrCat(kTiny, R"("model": {"type": "Unigram", "unk_id": 0,
    "vocab": [["A", -1.5], ["B", -2], ["AB", -2.5]]}})"),
                         R"({"add_bos_token": true, "tokenizer_class": "LlamaTokenizer"})", "ABC"}));
  // Normalizers, pre-tokenizers and decoders of the tests, in a small tokenizer of each kind that they are
  // tested in.
  const auto add = [&seeds](const std::string& base, const nlohmann::json& parts) {
    nlohmann::json definition = nlohmann::json::parse(SmallTokenizer(base, 262));
    for (const char* const part : {"normalizer", "pre_tokenizer", "post_processor", "decoder"}) {
      if (parts.contains(part)) definition[part] = parts[part];
    }
    seeds.push_back(Parts({definition.dump(), "{}", "AB a\xcc\x88 12"}));
  };
  const nlohmann::json features =
      nlohmann::json::parse(RepositoryFile("common/tokenizer/testdata/features.json")).at("features");
  for (size_t i = 0; i < features.size(); i += 3)
    add(features[i].value("base", "gpt2"), features[i].at("parts"));
  const nlohmann::json components =
      nlohmann::json::parse(RepositoryFile("common/tokenizer/testdata/components.json")).at("variants");
  for (size_t i = 0; i < components.size(); i += 3) add("gpt2", components[i]);
  return seeds;
}

const Registration kTokenizer(
    {.name = "tokenizer", .run = RunTokenizer, .seeds = TokenizerSeeds, .spoilt = 4000});

}  // namespace
}  // namespace tandem::fuzz
