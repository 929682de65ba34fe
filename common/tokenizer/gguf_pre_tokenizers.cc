#include "common/tokenizer/gguf_pre_tokenizers.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tandem {
namespace {

#define TANDEM_CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TANDEM_SPACES R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"
#define TANDEM_REST R"(| ?[^\s\p{L}\p{N}]+[\r\n]*)" TANDEM_SPACES
#define TANDEM_LETTERS R"(|[^\r\n\p{L}\p{N}]?\p{L}+)"
// A word with its capitals in front, and one of capitals; `end` may follow either.
#define TANDEM_CASED(end)                                                               \
  R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)" end \
  R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)" end
#define TANDEM_CASED_REST R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*)" TANDEM_SPACES
#define TANDEM_BLOOM " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
// Characters of a word but not Chinese ones, which Kimi's pattern takes by themselves.
#define TANDEM_NO_HAN(set) R"((?:(?!\p{Han})[)" set R"(]))"
#define TANDEM_KIMI_FRONT TANDEM_NO_HAN(R"(\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M})")
#define TANDEM_KIMI_BACK TANDEM_NO_HAN(R"(\p{Ll}\p{Lm}\p{Lo}\p{M})")

constexpr char kGpt2Words[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr char kDigit[] = R"(\p{N})";
constexpr char kLlama3Pattern[] = TANDEM_CONTRACTIONS TANDEM_LETTERS R"(|\p{N}{1,3})" TANDEM_REST;
constexpr char kQwen2Pattern[] = TANDEM_CONTRACTIONS TANDEM_LETTERS R"(|\p{N})" TANDEM_REST;

constexpr const char* kGpt2[] = {kGpt2Words};
constexpr const char* kDigitsThenGpt2[] = {kDigit, kGpt2Words};
constexpr const char* kLlama3[] = {kLlama3Pattern};
constexpr const char* kQwen2[] = {kQwen2Pattern};
constexpr const char* kQwen35[] = {
    TANDEM_CONTRACTIONS
    R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)" TANDEM_SPACES};
constexpr const char* kDefault[] = {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2Words, R"(\p{N}+)", "[0-9][0-9][0-9]"};
constexpr const char* kFalcon[] = {R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2Words, "[0-9][0-9][0-9]"};
constexpr const char* kDeepSeekCoder[] = {"[\r\n]", R"(\s?\p{L}+)", R"(\s?\p{P}+)",
                                          "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", kDigit};
constexpr const char* kDeepSeekV3[] = {
    R"(\p{N}{1,3})", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*)" TANDEM_SPACES};
constexpr const char* kGpt4o[] = {TANDEM_CASED(TANDEM_CONTRACTIONS "?") R"(|\p{N}{1,3})" TANDEM_CASED_REST};
constexpr const char* kTekken[] = {TANDEM_CASED("") R"(|\p{N})" TANDEM_CASED_REST};
constexpr const char* kBloom[] = {TANDEM_BLOOM};
constexpr const char* kViking[] = {TANDEM_BLOOM, kDigit};
constexpr const char* kChameleon[] = {"<sentinel:[0-9]+>",       "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
                                      "([\\t\\n]|    |  )",      kDigit,
                                      R"([\p{P}!-/:-@\[-`{-~])", kGpt2Words};
constexpr const char* kSuperBpe[] = {R"(\p{N}+)", R"((?=(\d{3})+(?!\d)))"};
constexpr const char* kBailing[] = {
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n])"
    R"(|\s+(?!\S)|\s+)"};
constexpr const char* kSeedCoder[] = {TANDEM_CONTRACTIONS TANDEM_LETTERS
                                      R"(|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+)" TANDEM_SPACES};
constexpr const char* kKimi[] = {R"(\p{Han}+|[^\r\n\p{L}\p{N}]?)" TANDEM_KIMI_FRONT "*" TANDEM_KIMI_BACK
                                 "+" TANDEM_CONTRACTIONS R"(?|[^\r\n\p{L}\p{N}]?)" TANDEM_KIMI_FRONT
                                 "+" TANDEM_KIMI_BACK "*" TANDEM_CONTRACTIONS R"(?|\p{N}{1,3})" TANDEM_REST};

constexpr GgufPreTokenizer kPreTokenizers[] = {
    {.name = "default", .patterns = kDefault},
    {.name = "gpt-2", .patterns = kGpt2},
    {.name = "phi-2", .patterns = kGpt2},
    {.name = "mpt", .patterns = kGpt2},
    {.name = "olmo", .patterns = kGpt2},
    {.name = "jais", .patterns = kGpt2},
    {.name = "trillion", .patterns = kGpt2},
    {.name = "gigachat", .patterns = kGpt2},
    {.name = "a.x-4.0", .patterns = kGpt2},
    {.name = "mellum", .patterns = kGpt2},
    {.name = "exaone4", .patterns = kGpt2},
    {.name = "granite-docling", .patterns = kGpt2},
    {.name = "starcoder", .patterns = kDigitsThenGpt2},
    {.name = "refact", .patterns = kDigitsThenGpt2},
    {.name = "command-r", .patterns = kDigitsThenGpt2},
    {.name = "smollm", .patterns = kDigitsThenGpt2},
    {.name = "codeshell", .patterns = kDigitsThenGpt2},
    {.name = "exaone", .patterns = kDigitsThenGpt2},
    {.name = "minerva-7b", .patterns = kDigitsThenGpt2},
    {.name = "llama-bpe", .patterns = kLlama3, .ignores_merges = true, .adds_bos = true},
    {.name = "llama3", .patterns = kLlama3, .ignores_merges = true, .adds_bos = true},
    {.name = "llama-v3", .patterns = kLlama3, .ignores_merges = true, .adds_bos = true},
    {.name = "falcon3", .patterns = kLlama3, .ignores_merges = true, .adds_bos = true},
    {.name = "falcon-h1", .patterns = kLlama3, .ignores_merges = true, .adds_bos = true},
    {.name = "pixtral", .patterns = kLlama3, .ignores_merges = true, .adds_bos = true},
    {.name = "midm-2.0", .patterns = kLlama3, .ignores_merges = true, .adds_bos = true},
    {.name = "lfm2", .patterns = kLlama3, .ignores_merges = true, .adds_bos = true},
    {.name = "dbrx", .patterns = kLlama3},
    {.name = "smaug-bpe", .patterns = kLlama3},
    {.name = "glm4", .patterns = kLlama3},
    {.name = "chatglm-bpe", .patterns = kLlama3},
    {.name = "qwen2", .patterns = kQwen2, .composes = true},
    {.name = "deepseek-r1-qwen", .patterns = kQwen2},
    {.name = "megrez", .patterns = kQwen2},
    {.name = "stablelm2", .patterns = kQwen2},
    {.name = "hunyuan", .patterns = kQwen2},
    {.name = "solar-open", .patterns = kQwen2},
    {.name = "grok-2", .patterns = kQwen2},
    {.name = "qwen35", .patterns = kQwen35, .composes = true},
    {.name = "falcon", .patterns = kFalcon},
    {.name = "deepseek-coder", .patterns = kDeepSeekCoder},
    {.name = "deepseek-v3", .patterns = kDeepSeekV3},
    {.name = "hunyuan-dense", .patterns = kDeepSeekV3},
    {.name = "joyai-llm", .patterns = kDeepSeekV3},
    {.name = "gpt-4o", .patterns = kGpt4o},
    {.name = "llama4", .patterns = kGpt4o},
    {.name = "kanana2", .patterns = kGpt4o},
    {.name = "minimax-m2", .patterns = kGpt4o},
    {.name = "tekken", .patterns = kTekken, .ignores_merges = true, .adds_bos = true},
    {.name = "bloom", .patterns = kBloom},
    {.name = "poro-chat", .patterns = kBloom},
    {.name = "gpt3-finnish", .patterns = kBloom},
    {.name = "viking", .patterns = kViking},
    {.name = "chameleon", .patterns = kChameleon, .adds_bos = true},
    {.name = "superbpe", .patterns = kSuperBpe},
    {.name = "bailingmoe", .patterns = kBailing},
    {.name = "bailingmoe2", .patterns = kBailing},
    {.name = "llada-moe", .patterns = kBailing},
    {.name = "seed-coder", .patterns = kSeedCoder},
    {.name = "kimi-k2", .patterns = kKimi},
};

}  // namespace

const GgufPreTokenizer* FindGgufPreTokenizer(absl::string_view name) {
  const auto* const found =
      std::find_if(std::begin(kPreTokenizers), std::end(kPreTokenizers),
                   [name](const GgufPreTokenizer& known) { return known.name == name; });
  return found == std::end(kPreTokenizers) ? nullptr : found;
}

absl::Span<const GgufPreTokenizer> GgufPreTokenizers() {
  return kPreTokenizers;
}

nlohmann::json DescribePreTokenizer(const GgufPreTokenizer& pre_tokenizer) {
  nlohmann::json steps = nlohmann::json::array();
  // What the format calls byte level splits like GPT-2 by itself.
  const bool ends_in_gpt2 = pre_tokenizer.patterns.back() == kGpt2Words;
  const size_t count = pre_tokenizer.patterns.size() - (ends_in_gpt2 ? 1 : 0);
  for (const char* const pattern : pre_tokenizer.patterns.first(count)) {
    if (pattern == kDigit) {
      steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
      continue;
    }
    steps.push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
  }
  steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", ends_in_gpt2}});
  return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

std::string GgufPreTokenizerNames() {
  const auto append_name = [](std::string* out, const GgufPreTokenizer& known) {
    absl::StrAppend(out, known.name);
  };
  return absl::StrJoin(kPreTokenizers, ", ", append_name);
}

}  // namespace tandem
