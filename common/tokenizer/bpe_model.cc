#include "common/tokenizer/bpe_model.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/unicode/unicode.h"

namespace tandem {
namespace {

constexpr size_t kMaxAffixBytes = 256;
constexpr TokenId kNoToken = -1;
constexpr TokenId kAbsorbed = -2;

// The two sides of a merge, written "a b" or ["a", "b"]; nullopt if it is written in another way.
std::optional<std::pair<absl::string_view, absl::string_view>> MergeSides(const nlohmann::json& json) {
  if (json.is_array()) {
    if (json.size() != 2 || !json[0].is_string() || !json[1].is_string()) return std::nullopt;
    return std::pair<absl::string_view, absl::string_view>(json[0].get_ref<const std::string&>(),
                                                           json[1].get_ref<const std::string&>());
  }
  if (!json.is_string()) return std::nullopt;
  const absl::string_view line = json.get_ref<const std::string&>();
  const size_t space = line.find(' ');
  if (space == absl::string_view::npos || line.find(' ', space + 1) != absl::string_view::npos) {
    return std::nullopt;
  }
  return std::pair<absl::string_view, absl::string_view>(line.substr(0, space), line.substr(space + 1));
}

size_t NumCharacters(absl::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    // All bytes except those that continue a character.
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

absl::Status TooManyTokens(size_t max_tokens) {
  return absl::OutOfRangeError(absl::StrCat("more than ", max_tokens, " tokens"));
}

// std::push_heap keeps the greatest element on top.
struct OrderedLater {
  template <typename Candidate>
  bool operator()(const Candidate& a, const Candidate& b) const {
    return a.order > b.order;
  }
};

}  // namespace

absl::StatusOr<BpeModel> BpeModel::Parse(const JsonView& json) {
  TANDEM_ASSIGN_OR_RETURN(const std::optional<JsonView> type, json.Find("type"));
  if (type.has_value()) {
    TANDEM_ASSIGN_OR_RETURN(const std::string name, type->String());
    if (name != "BPE") return type->Unsupported(absl::StrCat("model type '", name, "' is not supported"));
  }
  BpeModel model;
  TANDEM_RETURN_IF_ERROR(model.ParseVocabulary(json));
  TANDEM_RETURN_IF_ERROR(model.ParseAffixes(json));
  TANDEM_ASSIGN_OR_RETURN(const std::optional<JsonView> merge_ids, json.Find("merge_ids"));
  if (merge_ids.has_value()) {
    TANDEM_RETURN_IF_ERROR(model.ParseMergeIds(*merge_ids));
  } else {
    TANDEM_ASSIGN_OR_RETURN(const JsonView merges, json.Member("merges"));
    TANDEM_RETURN_IF_ERROR(model.ParseMerges(merges));
  }
  TANDEM_RETURN_IF_ERROR(model.ParseOptions(json));
  return model;
}

absl::Status BpeModel::ParseContents(const JsonView& json) {
  if (!json.value().is_array()) return json.Invalid("expected an array of contents");
  vocabulary_.reserve(json.value().size());
  if (json.value().size() > static_cast<size_t>(kMaxTokenId)) {
    return json.Invalid(absl::StrCat("expected at most ", kMaxTokenId, " tokens"));
  }
  TokenId id = 0;
  for (const nlohmann::json& content : json.value()) {
    const auto entry = [&] { return json.At(content, absl::StrCat("[", id, "]")); };
    if (!content.is_string()) return entry().Invalid("expected a string");
    if (!vocabulary_.emplace(content.get_ref<const std::string&>(), id).second) {
      return entry().Invalid("the content of an earlier token");
    }
    ++id;
  }
  return absl::OkStatus();
}

absl::Status BpeModel::ParseVocabulary(const JsonView& json) {
  TANDEM_ASSIGN_OR_RETURN(const std::optional<JsonView> contents, json.Find("contents"));
  if (contents.has_value()) {
    TANDEM_RETURN_IF_ERROR(ParseContents(*contents));
  } else {
    TANDEM_ASSIGN_OR_RETURN(const JsonView ids, json.Member("vocab"));
    TANDEM_RETURN_IF_ERROR(ParseIds(ids));
  }
  for (uint32_t code_point = 0; code_point < kNumDirectCharacters; ++code_point) {
    std::string character;
    AppendUtf8(code_point, character);
    direct_characters_[code_point] = Find(character).value_or(kNoToken);
  }
  return absl::OkStatus();
}

absl::Status BpeModel::ParseIds(const JsonView& json) {
  if (!json.value().is_object()) return json.Invalid("expected an object of contents and ids");
  vocabulary_.reserve(json.value().size());
  std::vector<bool> taken;
  for (auto it = json.value().begin(); it != json.value().end(); ++it) {
    const auto entry = [&] { return json.At(it.value(), absl::StrCat("['", it.key(), "']")); };
    if (!it.value().is_number_integer()) return entry().Invalid("expected an integer id");
    TANDEM_ASSIGN_OR_RETURN(const int64_t id, entry().Integer(0, kMaxTokenId));
    const auto index = static_cast<size_t>(id);
    if (index >= taken.size()) taken.resize(index + 1);
    if (taken[index]) return entry().Invalid(absl::StrCat("id ", id, " is given to two tokens"));
    taken[index] = true;
    vocabulary_.emplace(it.key(), static_cast<TokenId>(id));
  }
  return absl::OkStatus();
}

absl::Status BpeModel::ParseAffixes(const JsonView& json) {
  for (const auto& [name, affix] : {std::pair("continuing_subword_prefix", &continuing_prefix_),
                                    std::pair("end_of_word_suffix", &end_suffix_)}) {
    TANDEM_ASSIGN_OR_RETURN(const std::optional<JsonView> member, json.Find(name));
    if (!member.has_value()) continue;
    TANDEM_ASSIGN_OR_RETURN(*affix, member->String());
    if (affix->size() > kMaxAffixBytes)
      return member->Invalid(absl::StrCat("longer than ", kMaxAffixBytes, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status BpeModel::ParseMerges(const JsonView& json) {
  if (!json.value().is_array()) return json.Invalid("expected an array of merges");
  merges_.reserve(json.value().size());
  uint32_t rank = 0;
  size_t index = 0;
  std::string merged;
  for (const nlohmann::json& element : json.value()) {
    const auto place = [&] { return json.At(element, absl::StrCat("[", index, "]")); };
    // Merges copied from a merges.txt may begin with its version line, which has no rank.
    const bool is_version_line =
        element.is_string() && absl::StartsWith(element.get_ref<const std::string&>(), "#version");
    if (!is_version_line) {
      const auto sides = MergeSides(element);
      if (!sides.has_value()) return place().Invalid("expected two tokens: \"a b\" or [\"a\", \"b\"]");
      merged.assign(sides->first.data(), sides->first.size());
      // The second side is written with the prefix. In the merged token, only the beginning has it.
      if (sides->second.size() < continuing_prefix_.size()) {
        return place().Invalid("the second token is shorter than the continuing_subword_prefix");
      }
      absl::StrAppend(&merged, sides->second.substr(continuing_prefix_.size()));
      const std::optional<TokenId> left = Find(sides->first);
      const std::optional<TokenId> right = Find(sides->second);
      const std::optional<TokenId> result = Find(merged);
      if (!left.has_value() || !right.has_value() || !result.has_value()) {
        const absl::string_view missing = !left.has_value()    ? sides->first
                                          : !right.has_value() ? sides->second
                                                               : absl::string_view(merged);
        return place().Invalid(absl::StrCat("token '", missing, "' is not in the vocabulary"));
      }
      // If a pair has two merges, the later one counts.
      merges_[{*left, *right}] = {rank, *result};
      longest_merged_ = std::max(longest_merged_, NumCharacters(merged));
      ++rank;
    }
    ++index;
  }
  return absl::OkStatus();
}

// For each merge the ids of the left token, the right one and what they become, in order of ranks.
absl::Status BpeModel::ParseMergeIds(const JsonView& json) {
  if (!json.value().is_array() || json.value().size() % 3 != 0)
    return json.Invalid("expected triples of ids");
  std::vector<uint32_t> sizes(vocabulary_.size());  // In characters.
  for (const auto& [content, id] : vocabulary_) {
    if (static_cast<size_t>(id) < sizes.size()) {
      sizes[static_cast<size_t>(id)] = static_cast<uint32_t>(NumCharacters(content));
    }
  }
  const size_t count = json.value().size() / 3;
  merges_.reserve(count);
  for (size_t rank = 0; rank < count; ++rank) {
    std::array<TokenId, 3> ids{};
    for (size_t side = 0; side < ids.size(); ++side) {
      const nlohmann::json& number = json.value()[3 * rank + side];
      const int64_t id = number.is_number_integer() ? number.get<int64_t>() : -1;
      if (id < 0 || static_cast<uint64_t>(id) >= sizes.size()) {
        return json.At(number, absl::StrCat("[", 3 * rank + side, "]")).Invalid("expected a token's id");
      }
      ids[side] = static_cast<TokenId>(id);
    }
    // If a pair has two merges, the later one counts.
    merges_[{ids[0], ids[1]}] = {static_cast<uint32_t>(rank), ids[2]};
    longest_merged_ = std::max<size_t>(longest_merged_, sizes[static_cast<size_t>(ids[2])]);
  }
  return absl::OkStatus();
}

absl::Status BpeModel::ParseOptions(const JsonView& json) {
  TANDEM_ASSIGN_OR_RETURN(const std::optional<JsonView> dropout, json.Find("dropout"));
  if (dropout.has_value() && dropout->value() != 0) {
    return dropout->Unsupported("dropout would make encoding random");
  }
  TANDEM_ASSIGN_OR_RETURN(const std::optional<JsonView> unknown, json.Find("unk_token"));
  if (unknown.has_value()) {
    TANDEM_ASSIGN_OR_RETURN(unknown_content_, unknown->String());
  }
  TANDEM_ASSIGN_OR_RETURN(fuse_unknown_, json.BoolMember("fuse_unk", false));
  TANDEM_ASSIGN_OR_RETURN(ignore_merges_, json.BoolMember("ignore_merges", false));
  TANDEM_ASSIGN_OR_RETURN(const bool byte_fallback, json.BoolMember("byte_fallback", false));
  if (byte_fallback) {
    byte_tokens_.emplace();
    for (int byte = 0; byte < 256; ++byte) {
      (*byte_tokens_)[byte] = Find(absl::StrFormat("<0x%02X>", byte)).value_or(kNoToken);
    }
  }
  return absl::OkStatus();
}

std::optional<TokenId> BpeModel::Find(absl::string_view content) const {
  const auto it = vocabulary_.find(content);
  if (it == vocabulary_.end()) return std::nullopt;
  return it->second;
}

const BpeModel::Merge* BpeModel::FindMerge(TokenId left, TokenId right) const {
  const auto it = merges_.find(std::pair<TokenId, TokenId>(left, right));
  return it == merges_.end() ? nullptr : &it->second;
}

std::optional<TokenId> BpeModel::FindCharacter(absl::string_view character, uint32_t code_point) const {
  if (code_point >= kNumDirectCharacters) return Find(character);
  const TokenId token = direct_characters_[code_point];
  if (token == kNoToken) return std::nullopt;
  return token;
}

bool BpeModel::AddByteTokens(absl::string_view character, Scratch& scratch) const {
  if (!byte_tokens_.has_value()) return false;
  const auto token_of = [this](char byte) { return (*byte_tokens_)[static_cast<unsigned char>(byte)]; };
  // All bytes or none: half a character cannot be decoded.
  for (char byte : character) {
    if (token_of(byte) == kNoToken) return false;
  }
  for (char byte : character) scratch.symbols_.push_back({token_of(byte), 0, 0});
  return true;
}

size_t BpeModel::MostSymbols(size_t num_tokens) const {
  const size_t unbounded = std::numeric_limits<size_t>::max();
  // An unknown token without content could be merged without making the result longer.
  if (unknown_content_.has_value() && unknown_content_->empty()) return unbounded;
  return num_tokens > unbounded / longest_merged_ ? unbounded : num_tokens * longest_merged_;
}

absl::Status BpeModel::SplitCharacters(absl::string_view word, size_t max_symbols, Scratch& scratch) const {
  // An unknown character that waits: with fuse_unk, one token replaces all unknown characters up to the next
  // known one. Byte tokens do not end the wait, as in the Hugging Face library.
  std::optional<TokenId> pending_unknown;
  const auto flush_unknown = [&] {
    if (pending_unknown.has_value()) scratch.symbols_.push_back({*pending_unknown, 0, 0});
    pending_unknown.reset();
  };
  const bool has_affixes = !continuing_prefix_.empty() || !end_suffix_.empty();
  bool is_first = true;
  while (!word.empty()) {
    if (scratch.symbols_.size() > max_symbols) {
      return absl::OutOfRangeError(absl::StrCat("a word begins with more than ", max_symbols, " symbols"));
    }
    const Utf8Unit unit = ReadUtf8(word);
    absl::string_view character = word.substr(0, unit.length);
    word.remove_prefix(unit.length);
    std::string affixed;
    if (has_affixes) {
      affixed = absl::StrCat(is_first ? "" : continuing_prefix_, character, word.empty() ? end_suffix_ : "");
      character = affixed;
      is_first = false;
    }
    if (const std::optional<TokenId> token =
            has_affixes ? Find(character) : FindCharacter(character, unit.code_point)) {
      flush_unknown();
      scratch.symbols_.push_back({*token, 0, 0});
      continue;
    }
    if (AddByteTokens(character, scratch) || !unknown_content_.has_value()) continue;
    if (!fuse_unknown_) flush_unknown();
    pending_unknown = Find(*unknown_content_);
    if (!pending_unknown.has_value()) {
      return absl::FailedPreconditionError(
          absl::StrCat("the unknown token '", *unknown_content_, "' is needed but not in the vocabulary"));
    }
  }
  flush_unknown();
  return absl::OkStatus();
}

void BpeModel::Enqueue(int32_t position, Scratch& scratch) const {
  const Scratch::Symbol& left = scratch.symbols_[position];
  const Merge* merge = FindMerge(left.token, scratch.symbols_[left.next].token);
  if (merge == nullptr) return;
  const uint64_t order = (uint64_t{merge->rank} << 32) | static_cast<uint32_t>(position);
  scratch.queue_.push_back({order, merge->merged});
  std::push_heap(scratch.queue_.begin(), scratch.queue_.end(), OrderedLater());
}

void BpeModel::MergeSymbols(Scratch& scratch) const {
  std::vector<Scratch::Symbol>& symbols = scratch.symbols_;
  std::vector<Scratch::Candidate>& queue = scratch.queue_;
  queue.clear();
  const auto count = static_cast<int32_t>(symbols.size());
  for (int32_t i = 0; i < count; ++i) {
    symbols[i].previous = i - 1;
    symbols[i].next = i + 1 < count ? i + 1 : -1;
  }
  for (int32_t i = 0; i + 1 < count; ++i) Enqueue(i, scratch);
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), OrderedLater());
    const Scratch::Candidate candidate = queue.back();
    queue.pop_back();
    const auto position = static_cast<int32_t>(static_cast<uint32_t>(candidate.order));
    Scratch::Symbol& left = symbols[position];
    if (left.token == kAbsorbed || left.next < 0) continue;
    Scratch::Symbol& right = symbols[left.next];
    // The neighbours may have changed since the candidate was queued.
    const Merge* merge = FindMerge(left.token, right.token);
    if (merge == nullptr || merge->merged != candidate.merged) continue;
    left.token = candidate.merged;
    left.next = right.next;
    right.token = kAbsorbed;
    if (left.next >= 0) symbols[left.next].previous = position;
    if (left.previous >= 0) Enqueue(left.previous, scratch);
    if (left.next >= 0) Enqueue(position, scratch);
  }
}

absl::Status BpeModel::Tokenize(absl::string_view word, size_t max_tokens, Scratch& scratch,
                                TokenIds& out) const {
  if (word.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return absl::InvalidArgumentError("a word is longer than 2^31 - 1 bytes");
  }
  if (ignore_merges_) {
    if (const std::optional<TokenId> token = Find(word)) {
      out.push_back(*token);
      return out.size() > max_tokens ? TooManyTokens(max_tokens) : absl::OkStatus();
    }
  }
  scratch.symbols_.clear();
  const size_t room = max_tokens - std::min(max_tokens, out.size());
  TANDEM_RETURN_IF_ERROR(SplitCharacters(word, MostSymbols(room), scratch));
  MergeSymbols(scratch);
  for (const Scratch::Symbol& symbol : scratch.symbols_) {
    if (symbol.token != kAbsorbed) out.push_back(symbol.token);
  }
  return out.size() > max_tokens ? TooManyTokens(max_tokens) : absl::OkStatus();
}

}  // namespace tandem
