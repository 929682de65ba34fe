#include "common/tokenizer/gguf_tokenizer.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/gguf_pre_tokenizers.h"
#include "common/tokenizer/unicode/unicode.h"

namespace tandem {
namespace {

using Json = nlohmann::json;

// The kinds of tokens in the format.
constexpr int64_t kUnknownToken = 2;
constexpr int64_t kControlToken = 3;
constexpr int64_t kUserToken = 4;
constexpr int64_t kByteToken = 6;

constexpr char kBlank[] = "\xE2\x96\x81";
// SentencePiece's merges are found by cutting every token at every place.
constexpr size_t kMaxMergedBytes = 512;

class TokenizerReader {
 public:
  explicit TokenizerReader(const GgufFile& file) : file_(file) {}

  absl::StatusOr<GgufTokenizer> Read() {
    TANDEM_ASSIGN_OR_RETURN(const std::string kind, Text("tokenizer.ggml.model"));
    const bool is_unigram = kind == "t5";
    if (!is_unigram && kind != "llama" && kind != "gpt2") {
      return Refused("tokenizer.ggml.model", kind, "gpt2, llama, t5");
    }
    TANDEM_RETURN_IF_ERROR(ReadTokens());
    TANDEM_RETURN_IF_ERROR(kind == "gpt2" ? DescribeByteLevel()
                           : is_unigram   ? DescribeUnigram()
                                          : DescribeSentencePiece());
    TANDEM_RETURN_IF_ERROR(DescribeFrame());
    return std::move(out_);
  }

 private:
  absl::Status Invalid(absl::string_view key, absl::string_view expected) const {
    return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": key ", key, ": expected ", expected));
  }
  absl::Status Refused(absl::string_view key, absl::string_view found, absl::string_view supported) const {
    return absl::UnimplementedError(absl::StrCat(file_.path(), ": key ", key, ": found ",
                                                 absl::CHexEscape(found.substr(0, 100)),
                                                 ", supported: ", supported));
  }

  const Json* Find(const char* key) const {
    const auto found = file_.metadata().find(key);
    return found == file_.metadata().end() ? nullptr : &*found;
  }
  absl::StatusOr<std::string> Text(const char* key) const {
    const Json* const value = Find(key);
    if (value == nullptr || !value->is_string()) return Invalid(key, "a string");
    return value->get<std::string>();
  }
  absl::StatusOr<bool> Flag(const char* key, bool if_absent) const {
    const Json* const value = Find(key);
    if (value == nullptr) return if_absent;
    if (!value->is_boolean()) return Invalid(key, "a boolean");
    return value->get<bool>();
  }
  // Reads an array as long as the vocabulary, all of whose elements satisfy `fits`.
  template <typename Fits>
  absl::StatusOr<const Json*> List(const char* key, absl::string_view of, Fits fits) const {
    const Json* const value = Find(key);
    if (value == nullptr || !value->is_array() || !std::all_of(value->begin(), value->end(), fits)) {
      return Invalid(key, absl::StrCat("an array of ", of));
    }
    return value;
  }

  absl::Status ReadTokens() {
    TANDEM_ASSIGN_OR_RETURN(
        const Json* const tokens, List("tokenizer.ggml.tokens", "strings", [](const Json& text) {
          return text.is_string() && !FindInvalidUtf8(text.get_ref<const std::string&>()).has_value();
        }));
    if (tokens->empty()) return Invalid("tokenizer.ggml.tokens", "at least one token");
    ids_.reserve(tokens->size());
    for (size_t id = 0; id < tokens->size(); ++id) {
      const std::string& text = (*tokens)[id].get_ref<const std::string&>();
      if (!ids_.emplace(text, static_cast<int64_t>(id)).second) {
        return Invalid("tokenizer.ggml.tokens",
                       absl::StrCat("every token once, but \"", absl::CHexEscape(text.substr(0, 100)),
                                    "\" occurs twice"));
      }
    }
    tokens_ = tokens;
    kinds_.assign(tokens->size(), 1);
    if (Find("tokenizer.ggml.token_type") != nullptr) {
      TANDEM_ASSIGN_OR_RETURN(
          const Json* const kinds,
          List("tokenizer.ggml.token_type", "integers", [](const Json& n) { return n.is_number_integer(); }));
      if (kinds->size() != tokens->size()) return Invalid("tokenizer.ggml.token_type", "one for each token");
      for (size_t id = 0; id < kinds_.size(); ++id) kinds_[id] = (*kinds)[id].get<int64_t>();
    }
    Json added = Json::array();
    for (size_t id = 0; id < kinds_.size(); ++id) {
      const bool is_special = kinds_[id] == kControlToken || kinds_[id] == kUnknownToken;
      if (!is_special && kinds_[id] != kUserToken) continue;
      added.push_back({{"id", id}, {"content", Content(id)}, {"special", is_special}, {"normalized", false}});
    }
    out_.definition = {{"added_tokens", std::move(added)},
                       {"model", {{"type", "BPE"}, {"contents", *tokens}, {"merges", Json::array()}}}};
    return absl::OkStatus();
  }

  const std::string& Content(size_t id) const { return (*tokens_)[id].get_ref<const std::string&>(); }

  absl::Status DescribeByteLevel() {
    TANDEM_ASSIGN_OR_RETURN(const std::string name, Text("tokenizer.ggml.pre"));
    const GgufPreTokenizer* const kind = FindGgufPreTokenizer(name);
    if (kind == nullptr) return Refused("tokenizer.ggml.pre", name, GgufPreTokenizerNames());
    TANDEM_ASSIGN_OR_RETURN(
        const Json* const merges,
        List("tokenizer.ggml.merges", "strings", [](const Json& text) { return text.is_string(); }));
    Json& definition = out_.definition;
    definition["model"]["merges"] = *merges;
    definition["model"]["ignore_merges"] = kind->ignores_merges;
    if (kind->composes) definition["normalizer"] = {{"type", "NFC"}};
    definition["pre_tokenizer"] = DescribePreTokenizer(*kind);
    definition["decoder"] = {{"type", "ByteLevel"}};
    adds_bos_ = kind->adds_bos;
    return absl::OkStatus();
  }

  absl::StatusOr<const Json*> Scores() const {
    TANDEM_ASSIGN_OR_RETURN(const Json* const scores,
                            List("tokenizer.ggml.scores", "numbers", [](const Json& score) {
                              return score.is_number() && !std::isnan(score.get<double>());
                            }));
    if (scores->size() != kinds_.size()) return Invalid("tokenizer.ggml.scores", "one for each token");
    return scores;
  }

  // The token of what has none: of that kind, or else of that key.
  absl::StatusOr<std::optional<size_t>> UnknownToken() const {
    for (size_t id = 0; id < kinds_.size(); ++id) {
      if (kinds_[id] == kUnknownToken) return id;
    }
    const Json* const id = Find("tokenizer.ggml.unknown_token_id");
    if (id == nullptr) return std::nullopt;
    if (!id->is_number_unsigned() || id->get<uint64_t>() >= kinds_.size()) {
      return Invalid("tokenizer.ggml.unknown_token_id", "a token's id");
    }
    return id->get<size_t>();
  }

  // Unigram, as T5 has it, without the table of characters that T5 normalizes by.
  absl::Status DescribeUnigram() {
    constexpr char kTable[] = "tokenizer.ggml.precompiled_charsmap";
    if (Find(kTable) != nullptr) return Refused(kTable, "a table", "none");
    TANDEM_ASSIGN_OR_RETURN(const Json* const scores, Scores());
    TANDEM_ASSIGN_OR_RETURN(const std::optional<size_t> unknown, UnknownToken());
    if (!unknown.has_value()) return Invalid("tokenizer.ggml.unknown_token_id", "a token's id");
    TANDEM_ASSIGN_OR_RETURN(const bool prepends, Flag("tokenizer.ggml.add_space_prefix", true));
    TANDEM_ASSIGN_OR_RETURN(const bool strips, Flag("tokenizer.ggml.remove_extra_whitespaces", false));
    Json pieces = Json::array();
    for (size_t id = 0; id < kinds_.size(); ++id) pieces.push_back({Content(id), (*scores)[id]});
    const bool has_bytes = std::count(kinds_.begin(), kinds_.end(), kByteToken) == 256;
    Json& definition = out_.definition;
    definition["model"] = {{"type", "Unigram"},
                           {"unk_id", *unknown},
                           {"vocab", std::move(pieces)},
                           {"byte_fallback", has_bytes}};
    if (strips) {
      Json steps = Json::array();
      steps.push_back({{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}});
      steps.push_back({{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", " "}});
      definition["normalizer"] = {{"type", "Sequence"}, {"normalizers", std::move(steps)}};
    }
    const Json metaspace = {{"type", "Metaspace"},
                            {"replacement", kBlank},
                            {"prepend_scheme", prepends ? "always" : "never"},
                            {"split", true}};
    definition["pre_tokenizer"] = metaspace;
    Json decoders = Json::array();
    if (has_bytes) decoders.push_back({{"type", "ByteFallback"}});
    decoders.push_back(metaspace);
    definition["decoder"] = {{"type", "Sequence"}, {"decoders", std::move(decoders)}};
    return absl::OkStatus();
  }

  absl::Status DescribeSentencePiece() {
    TANDEM_ASSIGN_OR_RETURN(const Json* const scores, Scores());
    TANDEM_ASSIGN_OR_RETURN(const std::optional<size_t> unknown, UnknownToken());
    TANDEM_ASSIGN_OR_RETURN(const bool prepends, Flag("tokenizer.ggml.add_space_prefix", true));
    TANDEM_ASSIGN_OR_RETURN(const bool strips, Flag("tokenizer.ggml.remove_extra_whitespaces", false));
    if (strips) return Refused("tokenizer.ggml.remove_extra_whitespaces", "true", "false");
    Json& definition = out_.definition;
    Json& model = definition["model"];
    model["byte_fallback"] = true;
    model["fuse_unk"] = true;
    if (unknown.has_value()) model["unk_token"] = Content(*unknown);
    model.erase("merges");
    model["merge_ids"] = MergesOf(*scores);
    Json steps = Json::array();
    if (prepends) steps.push_back({{"type", "Prepend"}, {"prepend", kBlank}});
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kBlank}});
    definition["normalizer"] = {{"type", "Sequence"}, {"normalizers", std::move(steps)}};
    Json decoders = Json::array();
    decoders.push_back({{"type", "Replace"}, {"pattern", {{"String", kBlank}}}, {"content", " "}});
    decoders.push_back({{"type", "ByteFallback"}});
    decoders.push_back({{"type", "Fuse"}});
    if (prepends) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    definition["decoder"] = {{"type", "Sequence"}, {"decoders", std::move(decoders)}};
    adds_bos_ = true;
    return absl::OkStatus();
  }

  // All pairs of tokens whose concatenation is a token of text, in descending order of that token's score:
  // the order in which transformers writes merges into a tokenizer.json. As ids, left and right and merged
  // one after the other: a large vocabulary has half a million merges.
  Json MergesOf(const Json& scores) const {
    struct Merge {
      double score;
      uint32_t left_size;  // in characters
      uint32_t right_size;
      int64_t left;
      int64_t right;
      int64_t whole;
    };
    std::vector<Merge> merges;
    for (size_t id = 0; id < kinds_.size(); ++id) {
      const absl::string_view whole = Content(id);
      // Text that looks like a control token does not become one.
      if (kinds_[id] == kControlToken || kinds_[id] == kUnknownToken || kinds_[id] == kByteToken) continue;
      if (whole.size() > kMaxMergedBytes) continue;
      const auto begins = [&](size_t at) { return (whole[at] & 0xC0) != 0x80; };
      uint32_t size = 0;
      for (size_t at = 0; at < whole.size(); ++at) size += begins(at) ? 1 : 0;
      uint32_t left_size = begins(0) ? 1 : 0;
      for (size_t cut = 1; cut < whole.size(); ++cut) {
        if (!begins(cut)) continue;
        const uint32_t characters = left_size++;
        const auto left = ids_.find(whole.substr(0, cut));
        if (left == ids_.end()) continue;
        const auto right = ids_.find(whole.substr(cut));
        if (right == ids_.end()) continue;
        merges.push_back({scores[id].get<double>(), characters, size - characters, left->second,
                          right->second, static_cast<int64_t>(id)});
      }
    }
    std::sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) {
      return std::tie(b.score, b.left_size, b.right_size, a.whole, a.left, a.right) <
             std::tie(a.score, a.left_size, a.right_size, b.whole, b.left, b.right);
    });
    std::vector<int64_t> flat;
    flat.reserve(3 * merges.size());
    for (const Merge& merge : merges) flat.insert(flat.end(), {merge.left, merge.right, merge.whole});
    return flat;
  }

  absl::Status DescribeFrame() {
    Json& config = out_.config;
    config = Json::object();
    for (const auto& [key, name] : {std::pair("tokenizer.ggml.bos_token_id", "bos_token"),
                                    std::pair("tokenizer.ggml.eos_token_id", "eos_token"),
                                    std::pair("tokenizer.ggml.unknown_token_id", "unk_token"),
                                    std::pair("tokenizer.ggml.padding_token_id", "pad_token")}) {
      const Json* const id = Find(key);
      if (id == nullptr) continue;
      if (!id->is_number_unsigned() || id->get<uint64_t>() >= kinds_.size())
        return Invalid(key, "a token's id");
      config[name] = Content(id->get<size_t>());
    }
    TANDEM_ASSIGN_OR_RETURN(const bool adds_bos,
                            Flag("tokenizer.ggml.add_bos_token", adds_bos_ && config.contains("bos_token")));
    TANDEM_ASSIGN_OR_RETURN(const bool adds_eos, Flag("tokenizer.ggml.add_eos_token", false));
    config["add_bos_token"] = adds_bos;
    config["add_eos_token"] = adds_eos;
    if (Find("tokenizer.chat_template") != nullptr) {
      TANDEM_ASSIGN_OR_RETURN(config["chat_template"], Text("tokenizer.chat_template"));
    }
    return absl::OkStatus();
  }

  const GgufFile& file_;
  GgufTokenizer out_;
  const Json* tokens_ = nullptr;
  absl::flat_hash_map<absl::string_view, int64_t> ids_;
  std::vector<int64_t> kinds_;
  bool adds_bos_ = false;  // if the file does not say
};

}  // namespace

absl::StatusOr<GgufTokenizer> ReadGgufTokenizer(const GgufFile& file) {
  return TokenizerReader(file).Read();
}

}  // namespace tandem
