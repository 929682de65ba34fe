#include "router/testing/letter_encoder.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tandem::router::testing {
namespace {

class LetterEncoder final : public PromptEncoder {
 public:
  absl::StatusOr<TokenIds> EncodeText(absl::string_view text, size_t max_tokens, bool plain) const override {
    TokenIds tokens;
    if (!plain) tokens.push_back(1);
    Append(text, tokens);
    return Within(max_tokens, std::move(tokens));
  }

  absl::StatusOr<TokenIds> EncodeChat(const v1::ChatPrompt& chat, size_t max_tokens) const override {
    TokenIds tokens = {1};
    for (const v1::ChatMessage& message : chat.messages()) {
      if (message.role() != "system" && message.role() != "user" && message.role() != "assistant") {
        return absl::InvalidArgumentError(absl::StrCat("no role ", message.role()));
      }
      tokens.push_back(2);
      Append(message.content(), tokens);
      for (const std::string& part : message.content_parts()) Append(part, tokens);
    }
    tokens.push_back(3);
    return Within(max_tokens, std::move(tokens));
  }

  absl::string_view TokenBytes(TokenId token) const override {
    if (token < 0 || token > 255) return "";
    return absl::string_view(kBytes.data() + token, 1);
  }

  bool IsSpecial(TokenId token) const override { return token >= 1 && token <= 3; }

  std::string DeliveredText(absl::Span<const TokenId> tokens, absl::Span<const std::string>,
                            bool) const override {
    std::string text;
    for (const TokenId token : tokens) text += static_cast<char>(token);
    return text;
  }

  // 1 to 3 are special: they have no text.
  std::string Decode(absl::Span<const TokenId> tokens, bool skip_special) const override {
    std::string text;
    for (const TokenId token : tokens) {
      if (token > 3) absl::StrAppend(&text, TokenBytes(token));
      if (token <= 3 && !skip_special) absl::StrAppend(&text, "<", token, ">");
    }
    return text;
  }

 private:
  static inline const std::string kBytes = [] {
    std::string bytes;
    for (int i = 0; i < 256; ++i) bytes.push_back(static_cast<char>(i));
    return bytes;
  }();

  static absl::StatusOr<TokenIds> Within(size_t max_tokens, TokenIds tokens) {
    if (tokens.size() > max_tokens) return absl::OutOfRangeError("more letters than that");
    return tokens;
  }

  static void Append(absl::string_view text, TokenIds& tokens) {
    for (char c : text) tokens.push_back(static_cast<unsigned char>(c));
  }
};

}  // namespace

ServedModel LetterModel() {
  return {.name = "letters",
          .architecture = "LetterForCausalLM",
          .vocab_size = 256,
          .context_length = 32,
          .vocabulary_fingerprint = 0x1e77e2,
          .encoder = std::make_shared<LetterEncoder>(),
          .output_format = {.calls = CallSyntax::kMistral, .reasons = true},
          .chat_traits = {.takes_tools = true}};
}

}  // namespace tandem::router::testing
