#include "common/tokenizer/token_decoder.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/byte_alphabet.h"
#include "common/tokenizer/unicode/unicode.h"

namespace tandem {
namespace {

// The value of a byte token such as <0x0A>; nullopt for other contents, including <0x-1>.
std::optional<char> ByteTokenValue(absl::string_view content) {
  if (content.size() != 6 || !absl::StartsWith(content, "<0x") || content[5] != '>') return std::nullopt;
  int value = 0;
  for (char digit : content.substr(3, 2)) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(digit))) return std::nullopt;
    const int lower = absl::ascii_tolower(static_cast<unsigned char>(digit));
    value = value * 16 + (lower <= '9' ? lower - '0' : lower - 'a' + 10);
  }
  return static_cast<char>(value);
}

void StripEnds(absl::string_view character, int max_left, int max_right, std::string& text) {
  absl::string_view rest = text;
  while (max_left-- > 0 && absl::StartsWith(rest, character)) rest.remove_prefix(character.size());
  while (max_right-- > 0 && absl::EndsWith(rest, character)) rest.remove_suffix(character.size());
  text = std::string(rest);
}

}  // namespace

absl::StatusOr<TokenDecoder> TokenDecoder::Parse(const JsonView& json) {
  TokenDecoder decoder;
  TANDEM_RETURN_IF_ERROR(decoder.AddSteps(json));
  return decoder;
}

absl::Status TokenDecoder::AddSteps(const JsonView& json) {
  TANDEM_ASSIGN_OR_RETURN(const std::string type, json.StringMember("type"));
  if (type == "Sequence") {
    TANDEM_ASSIGN_OR_RETURN(const JsonView list, json.Member("decoders"));
    TANDEM_ASSIGN_OR_RETURN(const std::vector<JsonView> elements, list.Elements());
    for (const JsonView& element : elements) TANDEM_RETURN_IF_ERROR(AddSteps(element));
    return absl::OkStatus();
  }
  if (type == "Strip") return AddStrip(json);
  if (type == "Fuse") {
    fused_ = true;
    return absl::OkStatus();
  }
  if (fused_) return json.Unsupported(absl::StrCat("decoder type '", type, "' after Fuse is not supported"));
  if (type == "Metaspace") return AddMetaspace(json);
  if (type == "ByteLevel") {
    steps_.push_back(ByteLevel{});
    fused_ = true;
    return absl::OkStatus();
  }
  if (type == "ByteFallback") {
    steps_.push_back(ByteFallback{});
    return absl::OkStatus();
  }
  if (type == "Replace") {
    TANDEM_ASSIGN_OR_RETURN(const JsonView pattern_json, json.Member("pattern"));
    TANDEM_ASSIGN_OR_RETURN(TextPattern pattern, TextPattern::Parse(pattern_json));
    TANDEM_ASSIGN_OR_RETURN(std::string content, json.StringMember("content"));
    steps_.push_back(Replace{std::move(pattern), std::move(content)});
    return absl::OkStatus();
  }
  return json.Unsupported(absl::StrCat("decoder type '", type, "' is not supported"));
}

absl::Status TokenDecoder::AddStrip(const JsonView& json) {
  constexpr int kMaxCount = 1 << 20;
  TANDEM_ASSIGN_OR_RETURN(const JsonView content, json.Member("content"));
  TANDEM_ASSIGN_OR_RETURN(std::string character, content.String());
  if (character.empty() || ReadUtf8(character).length != character.size()) {
    return content.Invalid("expected one character");
  }
  TANDEM_ASSIGN_OR_RETURN(const JsonView start, json.Member("start"));
  TANDEM_ASSIGN_OR_RETURN(const int64_t max_left, start.Integer(0, kMaxCount));
  TANDEM_ASSIGN_OR_RETURN(const JsonView stop, json.Member("stop"));
  TANDEM_ASSIGN_OR_RETURN(const int64_t max_right, stop.Integer(0, kMaxCount));
  if (!fused_) {
    steps_.push_back(Strip{std::move(character), static_cast<int>(max_left), static_cast<int>(max_right)});
    return absl::OkStatus();
  }
  if (max_right > 0) return stop.Unsupported("stripping the end of the whole text is not supported");
  if (max_left == 0) return absl::OkStatus();
  if (leading_strip_.max_count > 0) return json.Unsupported("a second Strip after Fuse is not supported");
  leading_strip_ = {std::move(character), static_cast<int>(max_left)};
  return absl::OkStatus();
}

absl::Status TokenDecoder::AddMetaspace(const JsonView& json) {
  TANDEM_ASSIGN_OR_RETURN(std::string replacement, json.StringMember("replacement"));
  if (replacement.empty()) return json.Invalid("the replacement is empty");
  // Files that predate prepend_scheme have add_prefix_space.
  TANDEM_ASSIGN_OR_RETURN(bool drop_from_first, json.BoolMember("add_prefix_space", true));
  TANDEM_ASSIGN_OR_RETURN(const std::optional<JsonView> scheme, json.Find("prepend_scheme"));
  if (scheme.has_value()) {
    TANDEM_ASSIGN_OR_RETURN(const std::string name, scheme->String());
    drop_from_first = name != "never";
  }
  steps_.push_back(Metaspace{std::move(replacement), drop_from_first});
  depends_on_first_ = depends_on_first_ || drop_from_first;
  return absl::OkStatus();
}

absl::StatusOr<std::string> TokenDecoder::Bytes(absl::string_view content, bool is_first) const {
  std::string bytes(content);
  for (const Step& step : steps_) {
    if (std::holds_alternative<ByteLevel>(step)) {
      // Tokens outside the alphabet, such as added ones with a blank in them, are kept unchanged.
      if (std::optional<std::string> mapped = BytesFromAlphabet(bytes)) bytes = *std::move(mapped);
    } else if (std::holds_alternative<ByteFallback>(step)) {
      if (const std::optional<char> byte = ByteTokenValue(bytes)) return std::string(1, *byte);
    } else if (const auto* metaspace = std::get_if<Metaspace>(&step)) {
      // Drops all of them from the first token, not just one, as the Hugging Face library does.
      const char* space = is_first && metaspace->drop_from_first ? "" : " ";
      bytes = absl::StrReplaceAll(bytes, {{metaspace->replacement, space}});
    } else if (const auto* replace = std::get_if<Replace>(&step)) {
      TANDEM_ASSIGN_OR_RETURN(bytes, replace->pattern.Replace(bytes, replace->content));
    } else if (const auto* strip = std::get_if<Strip>(&step)) {
      StripEnds(strip->character, strip->max_left, strip->max_right, bytes);
    }
  }
  return bytes;
}

bool TokenDecoder::IsByteToken(absl::string_view content) const {
  // The other steps do not matter: nothing they look for occurs in a byte token's content.
  return ByteTokenValue(content).has_value() &&
         std::any_of(steps_.begin(), steps_.end(),
                     [](const Step& step) { return std::holds_alternative<ByteFallback>(step); });
}

}  // namespace tandem
