#include "common/tokenizer/added_tokens.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/unicode/unicode.h"

namespace tandem {
namespace {

// The search is linear in the text's length times that of the longest token.
constexpr size_t kMaxContentBytes = 1024;

absl::StatusOr<AddedToken> ParseAddedToken(const JsonView& json, const Normalizer* normalizer) {
  AddedToken token;
  TANDEM_ASSIGN_OR_RETURN(const JsonView id, json.Member("id"));
  TANDEM_ASSIGN_OR_RETURN(const int64_t id_value, id.Integer(0, kMaxTokenId));
  token.id = static_cast<TokenId>(id_value);
  TANDEM_ASSIGN_OR_RETURN(const JsonView content, json.Member("content"));
  TANDEM_ASSIGN_OR_RETURN(token.content, content.String());
  if (token.content.size() > kMaxContentBytes) {
    return content.Invalid(absl::StrCat("longer than ", kMaxContentBytes, " bytes"));
  }
  TANDEM_ASSIGN_OR_RETURN(token.special, json.BoolMember("special", false));
  TANDEM_ASSIGN_OR_RETURN(token.normalized, json.BoolMember("normalized", !token.special));
  TANDEM_ASSIGN_OR_RETURN(token.strip_left, json.BoolMember("lstrip", false));
  TANDEM_ASSIGN_OR_RETURN(token.strip_right, json.BoolMember("rstrip", false));
  TANDEM_ASSIGN_OR_RETURN(token.single_word, json.BoolMember("single_word", false));
  token.text = token.content;
  if (token.normalized && normalizer != nullptr) TANDEM_RETURN_IF_ERROR(normalizer->Apply(token.text));
  return token;
}

// The last character of non-empty, well-formed text.
uint32_t LastCodePoint(absl::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return ReadUtf8(text.substr(at)).code_point;
}

bool IsSingleWord(absl::string_view text, size_t begin, size_t end) {
  const bool free_before = begin == 0 || !IsWordCharacter(LastCodePoint(text.substr(0, begin)));
  const bool free_after = end == text.size() || !IsWordCharacter(ReadUtf8(text.substr(end)).code_point);
  return free_before && free_after;
}

// The beginning of the white space that ends at `end`; not before `floor`.
size_t WhiteSpaceBegin(absl::string_view text, size_t end, size_t floor) {
  while (end > floor) {
    const absl::string_view before = text.substr(floor, end - floor);
    const uint32_t code_point = LastCodePoint(before);
    if (!IsWhiteSpace(code_point)) break;
    --end;
    while (end > floor && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  }
  return end;
}

size_t WhiteSpaceEnd(absl::string_view text, size_t begin) {
  while (begin < text.size()) {
    const Utf8Unit unit = ReadUtf8(text.substr(begin));
    if (!IsWhiteSpace(unit.code_point)) break;
    begin += unit.length;
  }
  return begin;
}

}  // namespace

absl::StatusOr<std::vector<AddedToken>> ParseAddedTokens(const JsonView& json, const TokenModel& model,
                                                         const Normalizer* normalizer) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<JsonView> elements, json.Elements());
  absl::flat_hash_set<TokenId> ids;
  absl::flat_hash_set<std::string> contents;
  std::vector<AddedToken> tokens;
  tokens.reserve(elements.size());
  for (const JsonView& element : elements) {
    TANDEM_ASSIGN_OR_RETURN(AddedToken token, ParseAddedToken(element, normalizer));
    const std::optional<TokenId> model_id = model.Find(token.content);
    if (model_id.has_value() && *model_id != token.id) {
      return element.Invalid(absl::StrCat("'", token.content, "' has id ", token.id, " here and ", *model_id,
                                          " in the model's vocabulary"));
    }
    if (!contents.insert(token.content).second) {
      return element.Invalid(absl::StrCat("'", token.content, "' is added twice"));
    }
    if (!ids.insert(token.id).second) {
      return element.Invalid(absl::StrCat("id ", token.id, " is given to two tokens"));
    }
    tokens.push_back(std::move(token));
  }
  // Few tokens are added, beside many of the model.
  absl::flat_hash_map<TokenId, absl::string_view> model_contents;
  for (const auto& [content, id] : model.vocabulary()) {
    if (ids.contains(id)) model_contents.emplace(id, content);
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto model_content = model_contents.find(tokens[i].id);
    if (model_content == model_contents.end() || model_content->second == tokens[i].content) continue;
    return elements[i].Invalid(absl::StrCat("id ", tokens[i].id, " is '", tokens[i].content, "' here and '",
                                            model_content->second, "' in the model's vocabulary"));
  }
  return tokens;
}

AddedTokenFinder::AddedTokenFinder(const std::vector<const AddedToken*>& tokens)
    : token_at_node_(1, nullptr) {
  for (const AddedToken* token : tokens) {
    if (token->text.empty()) continue;
    first_bytes_[static_cast<unsigned char>(token->text[0])] = true;
    uint32_t node = 0;
    for (char byte : token->text) {
      const uint64_t edge = (uint64_t{node} << 8) | static_cast<unsigned char>(byte);
      const auto [it, is_new] = children_.emplace(edge, static_cast<uint32_t>(token_at_node_.size()));
      if (is_new) token_at_node_.push_back(nullptr);
      node = it->second;
    }
    // If two tokens normalize to the same text, the first one counts.
    if (token_at_node_[node] == nullptr) token_at_node_[node] = token;
  }
}

AddedTokenFinder::Match AddedTokenFinder::LongestAt(absl::string_view rest) const {
  Match match;
  uint32_t node = 0;
  for (size_t i = 0; i < rest.size(); ++i) {
    const auto it = children_.find((uint64_t{node} << 8) | static_cast<unsigned char>(rest[i]));
    if (it == children_.end()) break;
    node = it->second;
    if (token_at_node_[node] != nullptr) match = {i + 1, token_at_node_[node]};
  }
  return match;
}

std::vector<TokenSpan> AddedTokenFinder::Cut(absl::string_view text, bool parse_special) const {
  std::vector<TokenSpan> spans;
  size_t covered = 0;
  size_t at = 0;
  while (at < text.size()) {
    const Match match =
        first_bytes_[static_cast<unsigned char>(text[at])] ? LongestAt(text.substr(at)) : Match();
    if (match.token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at;
    size_t end = at + match.length;
    at = end;  // the search continues after a match, even if the match does not count
    if (match.token->special && !parse_special) continue;
    if (match.token->single_word && !IsSingleWord(text, begin, end)) continue;
    if (match.token->strip_left)
      begin = std::min(begin, WhiteSpaceBegin(text, begin, std::min(covered, begin)));
    if (match.token->strip_right) end = WhiteSpaceEnd(text, end);
    if (covered < begin) spans.push_back({text.substr(covered, begin - covered), nullptr});
    spans.push_back({text.substr(begin, end - begin), match.token});
    covered = end;
  }
  if (covered < text.size()) spans.push_back({text.substr(covered), nullptr});
  return spans;
}

}  // namespace tandem
