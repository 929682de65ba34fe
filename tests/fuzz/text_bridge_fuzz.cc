// What a drafter of another vocabulary makes of a target's tokens, in whatever order and pieces they come,
// and of texts on the way back (ADR 24).

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/tokenizer/text_bridge.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/unicode/unicode.h"
#include "nlohmann/json.hpp"
#include "tests/fuzz/fuzz_target.h"

namespace tandem::fuzz {
namespace {

// Draft model's, target's.
constexpr std::array<std::pair<const char*, const char*>, 5> kBridges = {
    {{"gpt2", "demo"}, {"demo", "gpt2"}, {"llama2", "demo"}, {"demo", "llama2"}, {"qwen2", "mistral"}}};

const TextBridge& Bridge(size_t which) {
  static const auto* const bridges = [] {
    auto* const made = new std::vector<TextBridge>();
    const auto load = [](const char* name) {
      const auto tokenizer =
          Tokenizer::Load(absl::StrCat(TANDEM_SOURCE_DIR, "/common/tokenizer/testdata/", name));
      Require(tokenizer.ok(), tokenizer.status().message());
      return *tokenizer;
    };
    for (const auto& bridge : kBridges) {
      const std::shared_ptr<const Tokenizer> target = load(bridge.second);
      made->emplace_back(load(bridge.first), target, target->vocab_size());
    }
    return made;
  }();
  return (*bridges)[which];
}

// The draft model's tokens are of its vocabulary, and no more of them change than those of the last run of
// text; a text that comes token by token is translated as one that comes at once.
void RequireTranslation(const TextBridge& bridge, const TokenIds& tokens, size_t piece) {
  TranslatedText at_once(&bridge), in_pieces(&bridge);
  at_once.Append(tokens);
  for (size_t i = 0; i < tokens.size(); i += piece) {
    in_pieces.Append(absl::MakeConstSpan(tokens).subspan(i, piece));
    Require(!in_pieces.tokens().empty(), "at least one token to draft behind");
    Require(in_pieces.pending().size() < 4, "less than a character without a token");
  }
  for (const TokenId token : in_pieces.tokens()) {
    Require(bridge.draft().HasToken(token), "tokens of the draft model's vocabulary");
  }
  Require(at_once.pending().size() < 4, "less than a character without a token");
  Require(at_once.tokens().size() <= 64 * (tokens.size() + 1), "tokens in proportion");
  Require(in_pieces.tokens().size() <= 64 * (tokens.size() + 1), "tokens in proportion");
}

// What goes back are the target's tokens, and make a beginning of exactly that text.
void RequireWayBack(const TextBridge& bridge, const TokenIds& before, absl::string_view text) {
  size_t end = 0;
  std::string made;
  for (const TextBridge::PlacedToken& placed : bridge.ToTarget(before, text)) {
    Require(bridge.target().HasToken(placed.token) && placed.token < bridge.target_width(),
            "tokens of the target");
    Require(placed.end >= end && placed.end <= text.size(), "ends that go up, within the text");
    end = placed.end;
    absl::StrAppend(&made, bridge.target().TokenBytes(placed.token));
  }
  Require(made == text.substr(0, end), "the text itself");
}

bool RunTextBridge(absl::string_view input) {
  InputReader reader(input);
  const TextBridge& bridge = Bridge(reader.Below(kBridges.size()));
  const size_t piece = 1 + reader.Below(7);
  const absl::string_view numbers = reader.LongBytes();
  TokenIds any;
  for (size_t i = 0; i + 1 < std::min<size_t>(numbers.size(), 400); i += 2) {
    const TokenId id = static_cast<uint8_t>(numbers[i]) | static_cast<uint8_t>(numbers[i + 1]) << 8;
    if (bridge.target().HasToken(id)) any.push_back(id);
  }
  RequireTranslation(bridge, any, piece);
  const absl::string_view text = reader.Rest();
  RequireWayBack(bridge, any, text);
  if (FindInvalidUtf8(text).has_value()) return false;
  const absl::StatusOr<TokenIds> ids =
      bridge.target().Encode(text, {.parse_special = true, .add_special_tokens = false});
  Require(ids.ok(), "text encoded");
  RequireTranslation(bridge, *ids, piece);
  RequireWayBack(bridge, *ids, text);
  return true;
}

std::vector<std::string> TextBridgeSeeds() {
  const nlohmann::json strings =
      nlohmann::json::parse(RepositoryFile("common/tokenizer/testdata/strings.json"));
  std::vector<std::string> seeds;
  for (size_t i = 0; i < strings.size(); i += 40) {
    const std::string text = strings[i];
    if (text.size() > 200) continue;
    seeds.push_back(absl::StrCat(std::string{static_cast<char>(i / 40), static_cast<char>(i / 7)},
                                 WithLongLength(text.substr(0, text.size() / 2)), text));
  }
  return seeds;
}

const Registration kTextBridge(
    {.name = "text_bridge", .run = RunTextBridge, .seeds = TextBridgeSeeds, .spoilt = 2000});

}  // namespace
}  // namespace tandem::fuzz
