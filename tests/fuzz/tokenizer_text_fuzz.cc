// Texts and tokens that clients send, through tokenizers of every kind.

#include <algorithm>
#include <array>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/tokenizer/streaming_decoder.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/unicode/unicode.h"
#include "nlohmann/json.hpp"
#include "tests/fuzz/fuzz_target.h"

namespace tandem::fuzz {
namespace {

constexpr std::array kTokenizerKinds = {"demo",  "gpt2",   "gpt2_prefix_space", "llama2", "llama3", "mistral",
                                        "qwen2", "unknown"};

const std::shared_ptr<const Tokenizer>& BundledTokenizer(size_t kind) {
  static const auto* const tokenizers = [] {
    auto* const loaded = new std::vector<std::shared_ptr<const Tokenizer>>();
    for (const char* const name : kTokenizerKinds) {
      const auto tokenizer =
          Tokenizer::Load(absl::StrCat(TANDEM_SOURCE_DIR, "/common/tokenizer/testdata/", name));
      Require(tokenizer.ok(), tokenizer.status().message());
      loaded->push_back(*tokenizer);
    }
    return loaded;
  }();
  return (*tokenizers)[kind];
}

// Kinds that keep every byte of a text.
bool IsLossless(absl::string_view kind) {
  return kind == "gpt2" || kind == "llama3";
}

void RequireSameWithLimits(const Tokenizer& tokenizer, absl::string_view text, const TokenIds& ids,
                           Tokenizer::EncodeOptions options, size_t limit) {
  options.max_tokens = limit;
  const absl::StatusOr<TokenIds> limited = tokenizer.Encode(text, options);
  if (limit >= ids.size()) {
    Require(limited.ok() && *limited == ids, "the same tokens with a limit that they keep");
  } else {
    Require(absl::IsOutOfRange(limited.status()), "a limit that is kept");
  }
}

// Tokens in whatever order: decoded whole and piece by piece.
void RequireStreams(const std::shared_ptr<const Tokenizer>& tokenizer, const TokenIds& ids,
                    bool skip_special) {
  const std::string whole = tokenizer->Decode(ids, skip_special);
  Require(!FindInvalidUtf8(whole).has_value(), "UTF-8");
  StreamingDecoder stream(tokenizer, skip_special);
  std::string text;
  for (const TokenId token : ids) {
    text += stream.Push(token);
    Require(stream.num_pending_bytes() <= 3, "at most three bytes kept back");
  }
  text += stream.Flush();
  Require(!FindInvalidUtf8(text).has_value(), "UTF-8 of streams");
  // But for runs of SentencePiece's byte tokens, as the class says.
  if (!tokenizer->FindToken("<0x00>").has_value())
    Require(text == whole, "a stream that adds up to the text");
}

bool RunTokenizerText(absl::string_view input) {
  InputReader reader(input);
  const size_t kind = reader.Below(kTokenizerKinds.size());
  const uint8_t flags = reader.Byte();
  const size_t limit = reader.Byte();
  const std::shared_ptr<const Tokenizer>& tokenizer = BundledTokenizer(kind);
  const absl::string_view text = reader.Rest();
  TokenIds any;
  for (size_t i = 0; i + 1 < std::min<size_t>(text.size(), 200); i += 2) {
    // Holes and ids beyond the vocabulary too.
    any.push_back(static_cast<uint8_t>(text[i]) | (static_cast<uint8_t>(text[i + 1]) & 0x1f) << 8);
  }
  RequireStreams(tokenizer, any, (flags & 4) != 0);
  const Tokenizer::EncodeOptions options = {.parse_special = (flags & 1) != 0,
                                            .add_special_tokens = (flags & 2) != 0};
  const absl::StatusOr<TokenIds> ids = tokenizer->Encode(text, options);
  if (FindInvalidUtf8(text).has_value()) {
    Require(absl::IsInvalidArgument(ids.status()), "text that is not UTF-8 refused");
    return false;
  }
  Require(ids.ok(), "text encoded");
  for (const TokenId token : *ids) Require(tokenizer->HasToken(token), "tokens of the vocabulary");
  RequireStreams(tokenizer, *ids, (flags & 4) != 0);
  if (IsLossless(kTokenizerKinds[kind]) && !options.add_special_tokens) {
    Require(tokenizer->Decode(*ids, false) == text, "the text again");
  }
  RequireSameWithLimits(*tokenizer, text, *ids, options, limit);
  RequireSameWithLimits(*tokenizer, text, *ids, options, ids->size());
  if (!ids->empty()) RequireSameWithLimits(*tokenizer, text, *ids, options, ids->size() - 1);
  return true;
}

std::vector<std::string> TokenizerTextSeeds() {
  const nlohmann::json strings =
      nlohmann::json::parse(RepositoryFile("common/tokenizer/testdata/strings.json"));
  std::vector<std::string> seeds;
  for (size_t i = 0; i < strings.size(); i += 20) {
    const std::string text = strings[i];
    if (text.size() > 300) continue;
    seeds.push_back(absl::StrCat(
        std::string{static_cast<char>(i / 20), static_cast<char>(i / 60), static_cast<char>(i % 13)}, text));
  }
  return seeds;
}

const Registration kTokenizerText(
    {.name = "tokenizer_text", .run = RunTokenizerText, .seeds = TokenizerTextSeeds, .spoilt = 5000});

}  // namespace
}  // namespace tandem::fuzz
