#include "common/tokenizer/token_frame.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/bpe_model.h"

namespace tandem {
namespace {

absl::Status AppendSpecialToken(const JsonView& special_tokens, const JsonView& piece, TokenIds& out) {
  TANDEM_ASSIGN_OR_RETURN(const std::string name, piece.StringMember("id"));
  TANDEM_ASSIGN_OR_RETURN(const JsonView entry, special_tokens.Member(name));
  TANDEM_ASSIGN_OR_RETURN(const JsonView ids, entry.Member("ids"));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<JsonView> elements, ids.Elements());
  for (const JsonView& element : elements) {
    TANDEM_ASSIGN_OR_RETURN(const int64_t id, element.Integer(0, kMaxTokenId));
    out.push_back(static_cast<TokenId>(id));
  }
  return absl::OkStatus();
}

absl::StatusOr<TokenFrame> ParseTemplate(const JsonView& json) {
  TANDEM_ASSIGN_OR_RETURN(const JsonView single, json.Member("single"));
  TANDEM_ASSIGN_OR_RETURN(const JsonView special_tokens, json.Member("special_tokens"));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<JsonView> pieces, single.Elements());
  TokenFrame frame;
  bool seen_text = false;
  for (const JsonView& piece : pieces) {
    TANDEM_ASSIGN_OR_RETURN(const std::optional<JsonView> special, piece.Find("SpecialToken"));
    if (special.has_value()) {
      TANDEM_RETURN_IF_ERROR(
          AppendSpecialToken(special_tokens, *special, seen_text ? frame.suffix : frame.prefix));
      continue;
    }
    TANDEM_RETURN_IF_ERROR(piece.Member("Sequence").status());
    if (seen_text) return piece.Unsupported("a template that repeats the text is not supported");
    seen_text = true;
  }
  if (!seen_text) return single.Invalid("the template has no place for the text");
  return frame;
}

// RobertaProcessing and BertProcessing: "cls" before the text and "sep" after it, each with a content and an
// id.
absl::StatusOr<TokenFrame> ParseClassifierFrame(const JsonView& json) {
  TokenFrame frame;
  for (const auto& [name, ids] : {std::pair("cls", &frame.prefix), std::pair("sep", &frame.suffix)}) {
    TANDEM_ASSIGN_OR_RETURN(const JsonView token, json.Member(name));
    TANDEM_ASSIGN_OR_RETURN(const std::vector<JsonView> parts, token.Elements());
    if (parts.size() != 2) return token.Invalid("expected a content and an id");
    TANDEM_ASSIGN_OR_RETURN(const int64_t id, parts[1].Integer(0, kMaxTokenId));
    ids->push_back(static_cast<TokenId>(id));
  }
  return frame;
}

}  // namespace

absl::StatusOr<std::optional<TokenFrame>> ParseTokenFrame(const JsonView& post_processor) {
  TANDEM_ASSIGN_OR_RETURN(const std::string type, post_processor.StringMember("type"));
  if (type == "ByteLevel") return std::nullopt;
  if (type == "TemplateProcessing") {
    TANDEM_ASSIGN_OR_RETURN(TokenFrame frame, ParseTemplate(post_processor));
    return std::optional<TokenFrame>(std::move(frame));
  }
  if (type == "RobertaProcessing" || type == "BertProcessing") {
    TANDEM_ASSIGN_OR_RETURN(TokenFrame frame, ParseClassifierFrame(post_processor));
    return std::optional<TokenFrame>(std::move(frame));
  }
  if (type != "Sequence") {
    return post_processor.Unsupported(absl::StrCat("post-processor type '", type, "' is not supported"));
  }
  TANDEM_ASSIGN_OR_RETURN(const JsonView list, post_processor.Member("processors"));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<JsonView> elements, list.Elements());
  std::optional<TokenFrame> frame;
  for (const JsonView& element : elements) {
    TANDEM_ASSIGN_OR_RETURN(std::optional<TokenFrame> outer, ParseTokenFrame(element));
    if (!outer.has_value()) continue;
    if (frame.has_value()) {
      outer->prefix.insert(outer->prefix.end(), frame->prefix.begin(), frame->prefix.end());
      outer->suffix.insert(outer->suffix.begin(), frame->suffix.begin(), frame->suffix.end());
    }
    frame = std::move(outer);
  }
  return frame;
}

}  // namespace tandem
