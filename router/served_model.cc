#include "router/served_model.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/chat_template.h"
#include "common/tokenizer/tokenizer.h"

namespace tandem::router {
namespace {

constexpr size_t kMaxConfigBytes = size_t{1} << 20;

class TokenizerEncoder final : public PromptEncoder {
 public:
  explicit TokenizerEncoder(std::shared_ptr<const Tokenizer> tokenizer) : tokenizer_(std::move(tokenizer)) {}

  absl::StatusOr<TokenIds> EncodeText(absl::string_view text, size_t max_tokens, bool plain) const override {
    return tokenizer_->Encode(
        text, {.parse_special = true, .add_special_tokens = !plain, .max_tokens = max_tokens});
  }

  absl::StatusOr<TokenIds> EncodeChat(const v1::ChatPrompt& chat, size_t max_tokens) const override {
    std::vector<ChatMessage> messages;
    for (const v1::ChatMessage& message : chat.messages())
      messages.push_back({message.role(), message.content()});
    ChatTemplateOptions options;
    options.now = absl::Now();
    options.json_variables = chat.template_variables();
    return tokenizer_->EncodeChat(messages, options, chat.parse_special_tokens(), max_tokens);
  }

  absl::string_view TokenBytes(TokenId token) const override { return tokenizer_->TokenBytes(token); }

  std::string Decode(absl::Span<const TokenId> tokens, bool skip_special) const override {
    return tokenizer_->Decode(tokens, skip_special);
  }

 private:
  const std::shared_ptr<const Tokenizer> tokenizer_;
};

}  // namespace

absl::StatusOr<ServedModel> LoadServedModel(const std::string& name, const std::string& folder) {
  const std::string config_path = folder + "/config.json";
  TANDEM_ASSIGN_OR_RETURN(const std::string config_json, ReadFile(config_path, kMaxConfigBytes));
  TANDEM_ASSIGN_OR_RETURN(const ModelConfig config, ParseModelConfig(config_json, config_path));

  ServedModel model{.name = name,
                    .architecture = config.architecture,
                    .vocab_size = config.vocab_size,
                    .context_length = config.max_context};
  const std::string defaults_path = folder + "/generation_config.json";
  const absl::StatusOr<std::string> defaults_json = ReadFile(defaults_path, kMaxConfigBytes);
  if (defaults_json.ok()) {
    TANDEM_ASSIGN_OR_RETURN(model.defaults, ParseGenerationDefaults(*defaults_json, defaults_path));
  } else if (!absl::IsNotFound(defaults_json.status())) {
    return defaults_json.status();
  }

  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<const Tokenizer> tokenizer,
                          Tokenizer::LoadForModel(folder, config.vocab_size));
  model.vocabulary_fingerprint = tokenizer->Fingerprint(config.vocab_size);
  model.encoder = std::make_shared<TokenizerEncoder>(std::move(tokenizer));
  return model;
}

}  // namespace tandem::router
