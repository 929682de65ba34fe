#include "router/models/served_model.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "common/gguf/gguf_file.h"
#include "common/model/gguf_config.h"
#include "common/tokenizer/chat_template.h"
#include "common/tokenizer/streaming_decoder.h"
#include "common/tokenizer/template_trials.h"
#include "common/tokenizer/tokenizer.h"
#include "router/models/tool_choice.h"
#include "router/models/tool_layout.h"

namespace tandem::router {
namespace {

constexpr size_t kMaxConfigBytes = size_t{1} << 20;

ChatMessage MessageOf(const v1::ChatMessage& proto) {
  ChatMessage message{.role = proto.role(),
                      .parts = {proto.content_parts().begin(), proto.content_parts().end()},
                      .tool_call_id = proto.tool_call_id(),
                      .name = proto.name(),
                      .reasoning = proto.reasoning()};
  if (proto.has_content()) message.content = proto.content();
  for (const v1::ToolCall& call : proto.tool_calls())
    message.tool_calls.push_back({call.id(), call.name(), call.arguments()});
  return message;
}

bool IsAnySpecial(absl::Span<const absl::string_view> texts, const Tokenizer& tokenizer) {
  return std::any_of(texts.begin(), texts.end(), [&](absl::string_view text) {
    const std::optional<TokenId> token = tokenizer.FindToken(text);
    return token.has_value() && tokenizer.IsSpecial(*token);
  });
}

class TokenizerEncoder final : public PromptEncoder {
 public:
  // `format`: that of calls in texts.
  TokenizerEncoder(std::shared_ptr<const Tokenizer> tokenizer, TemplateTraits traits,
                   const OutputFormat& format)
      : tokenizer_(std::move(tokenizer)), traits_(std::move(traits)), format_(format) {}

  absl::StatusOr<TokenIds> EncodeText(absl::string_view text, size_t max_tokens, bool plain) const override {
    return tokenizer_->Encode(
        text, {.parse_special = true, .add_special_tokens = !plain, .max_tokens = max_tokens});
  }

  absl::StatusOr<TokenIds> EncodeChat(const v1::ChatPrompt& chat, size_t max_tokens) const override {
    std::vector<ChatMessage> messages;
    for (const v1::ChatMessage& message : chat.messages()) messages.push_back(MessageOf(message));
    ChatTemplateOptions options;
    options.now = absl::Now();
    options.json_variables = chat.template_variables();
    options.documents = chat.documents();
    options.spelling = traits_.spelling;
    options.continue_final_message = chat.continue_final_message();
    if (chat.tool_choice().mode() != v1::ToolChoice::MODE_NONE) {
      for (const v1::Tool& tool : chat.tools())
        options.tools.push_back({tool.name(), tool.description(), tool.parameters()});
    }
    LayOutInTexts(traits_, format_, messages, options);
    TANDEM_ASSIGN_OR_RETURN(
        TokenIds tokens, tokenizer_->EncodeChat(messages, options, chat.parse_special_tokens(), max_tokens));
    // A call that the target is made to make comes at once: the prompt closes what its template has opened.
    if (!IsForced(chat.tool_choice()) || !OpensReasoning(*this, tokens)) return tokens;
    TANDEM_ASSIGN_OR_RETURN(const TokenIds closing,
                            tokenizer_->Encode(absl::StrCat("\n", kReasoningEnd, "\n\n"),
                                               {.parse_special = true, .add_special_tokens = false}));
    tokens.insert(tokens.end(), closing.begin(), closing.end());
    if (tokens.size() > max_tokens) return absl::OutOfRangeError("more tokens than that");
    return tokens;
  }

  std::string DeliveredText(absl::Span<const TokenId> tokens, absl::Span<const std::string> stop,
                            bool include_special_tokens) const override {
    StreamingDecoder decoder(tokenizer_, !include_special_tokens, /*continuation=*/true);
    std::string text = decoder.Push(tokens);
    size_t held = 0;
    for (const std::string& end : stop) {
      for (size_t length = std::min(text.size(), end.empty() ? 0 : end.size() - 1); length > held; --length) {
        if (absl::EndsWith(text, absl::string_view(end).substr(0, length))) held = length;
      }
    }
    text.resize(text.size() - held);
    return text;
  }

  absl::string_view TokenBytes(TokenId token) const override { return tokenizer_->TokenBytes(token); }
  bool IsSpecial(TokenId token) const override { return tokenizer_->IsSpecial(token); }

  std::string Decode(absl::Span<const TokenId> tokens, bool skip_special) const override {
    return tokenizer_->Decode(tokens, skip_special);
  }

 private:
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const TemplateTraits traits_;
  const OutputFormat format_;
};

}  // namespace

bool OpensReasoning(const PromptEncoder& encoder, absl::Span<const TokenId> prompt) {
  // The mark's tokens, however it is cut, and white space behind it.
  constexpr size_t kMostTokens = 24;
  std::string tail;
  for (const TokenId token : prompt.subspan(prompt.size() - std::min(prompt.size(), kMostTokens))) {
    const absl::string_view bytes = encoder.TokenBytes(token);
    tail.append(bytes.data(), bytes.size());
  }
  return absl::EndsWith(absl::StripTrailingAsciiWhitespace(tail), kReasoningBegin);
}

size_t NumAddedTokens(const PromptEncoder& encoder, absl::Span<const TokenId> tokens) {
  constexpr size_t kMostAdded = 16;
  const absl::StatusOr<TokenIds> added = encoder.EncodeText("", kMostAdded, /*plain=*/false);
  if (!added.ok()) return 0;
  const auto end = std::mismatch(added->begin(), added->end(), tokens.begin(), tokens.end()).first;
  return static_cast<size_t>(end - added->begin());
}

namespace {

// Of a folder, or of a GGUF file.
absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& folder) {
  if (GgufFile::IsPath(folder)) return ReadGgufConfig(folder);
  const std::string path = folder + "/config.json";
  TANDEM_ASSIGN_OR_RETURN(const std::string json, ReadFile(path, kMaxConfigBytes));
  return ParseModelConfig(json, path);
}

}  // namespace

absl::StatusOr<ServedModel> LoadServedModel(const std::string& name, const std::string& folder,
                                            const std::string& output_format) {
  TANDEM_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(folder));

  ServedModel model{.name = name,
                    .architecture = config.architecture,
                    .vocab_size = config.vocab_size,
                    .context_length = config.max_context};
  const std::string defaults_path = folder + "/generation_config.json";
  const absl::StatusOr<std::string> defaults_json = ReadFile(defaults_path, kMaxConfigBytes);
  if (GgufFile::IsPath(folder)) {
    // The file has no such recommendations.
  } else if (defaults_json.ok()) {
    TANDEM_ASSIGN_OR_RETURN(model.defaults, ParseGenerationDefaults(*defaults_json, defaults_path));
  } else if (!absl::IsNotFound(defaults_json.status())) {
    return defaults_json.status();
  }

  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<const Tokenizer> tokenizer,
                          Tokenizer::LoadForModel(folder, config.vocab_size));
  model.vocabulary_fingerprint = tokenizer->Fingerprint(config.vocab_size);
  const absl::string_view chat_template = tokenizer->chat_template_source();
  model.output_format = FindOutputFormat(chat_template);
  if (!output_format.empty()) {
    const absl::StatusOr<OutputFormat> named = OutputFormatOf(output_format);
    if (!named.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("output_format: \"", output_format, "\", ", named.status().message()));
    }
    model.output_format = *named;
  }
  model.chat_traits = TryTemplate(
      [&tokenizer](absl::Span<const ChatMessage> messages, const ChatTemplateOptions& options) {
        return tokenizer->ApplyChatTemplate(messages, options);
      },
      chat_template);
  if (model.output_format.calls != CallSyntax::kNone) {
    model.has_special_call_marks = IsAnySpecial({FrameOfCall(model.output_format, "f").trigger}, *tokenizer);
  }
  model.has_special_reasoning_marks =
      model.output_format.reasons && IsAnySpecial({kReasoningBegin, kReasoningEnd}, *tokenizer);
  model.encoder =
      std::make_shared<TokenizerEncoder>(std::move(tokenizer), model.chat_traits, model.output_format);
  return model;
}

}  // namespace tandem::router
