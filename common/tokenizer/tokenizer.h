#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/tokenizer/added_tokens.h"
#include "common/tokenizer/chat_template.h"
#include "common/tokenizer/json_view.h"
#include "common/tokenizer/normalizer.h"
#include "common/tokenizer/pre_tokenizer.h"
#include "common/tokenizer/token_decoder.h"
#include "common/tokenizer/token_frame.h"
#include "common/tokenizer/token_model.h"

namespace tandem {

// The tokenizer of a Hugging Face model folder: text to tokens and tokens to text, like the `tokenizers`
// library. Supports byte-pair-encoding models, byte-level (GPT-2, Llama 3, Qwen2) or SentencePiece (Llama 2,
// Mistral), and Unigram models. Immutable once loaded, so thread-safe. The text pipeline is
//
//   text -> added tokens cut out -> normalizer -> pre-tokenizer -> model -> BOS/EOS -> ids -> decoder -> text
class Tokenizer {
 public:
  struct EncodeOptions {
    // Recognise special tokens written out in the text. Off for text that users control; the special tokens
    // are then ordinary text.
    bool parse_special = true;
    // Add BOS and EOS if the folder's post-processor says so or, without one, if add_bos_token and
    // add_eos_token do and its tokenizer_class reads them. If the text already begins with a BOS, no second
    // one is added.
    bool add_special_tokens = true;
    // The largest number of tokens. Work stops as soon as it is known that there are more, so it costs at
    // most this many tokens, plus one pass over the text for added tokens and normalization.
    size_t max_tokens = std::numeric_limits<size_t>::max();
    // Removed from the text after the search for added tokens. Put into text that users control, it keeps
    // that text from being read as special tokens. May be empty.
    absl::string_view mark = {};
  };

  // Reads tokenizer.json and, where present, tokenizer_config.json and chat_template.jinja; or, if the name
  // ends in .gguf, the same data in that file (gguf_tokenizer.h). Errors name file and JSON path: NotFound
  // without a tokenizer.json, InvalidArgument for malformed contents, Unimplemented for components that are
  // not supported.
  static absl::StatusOr<std::shared_ptr<const Tokenizer>> Load(const std::string& folder);
  // Of a tokenizer.json alone, whose text this is; `where` stands for it in errors, which are as Load's.
  static absl::StatusOr<std::shared_ptr<const Tokenizer>> Parse(absl::string_view definition,
                                                                const std::string& where);
  // Load, and InvalidArgument when an id has no logit in the folder's model, which has `logits_width` of
  // them.
  static absl::StatusOr<std::shared_ptr<const Tokenizer>> LoadForModel(const std::string& folder,
                                                                       int32_t logits_width);

  // InvalidArgument with the byte offset for text that is not UTF-8 or too long (256 MiB), ResourceExhausted
  // if a pattern of the tokenizer backtracks without end on it, and OutOfRange only for more than max_tokens.
  absl::StatusOr<TokenIds> Encode(absl::string_view utf8_text, const EncodeOptions& options) const;

  // The text of `tokens`, always well-formed UTF-8: bytes that form no character become U+FFFD, one for each
  // maximal invalid sequence. In a run of SentencePiece byte tokens that is not wholly valid every byte,
  // valid ones too, becomes one, as in the Hugging Face library; a stream, which cannot know the run's end,
  // keeps the valid ones (StreamingDecoder). Ids without a token add nothing.
  std::string Decode(absl::Span<const TokenId> tokens, bool skip_special) const;

  // The bytes that a token adds to the text when it is not the first; empty for ids without a token. Bytes,
  // not characters: a token may hold half of one. The view lives as long as the tokenizer.
  absl::string_view TokenBytes(TokenId token) const;
  // The same for a token with which the text begins: some SentencePiece tokenizers drop its space.
  absl::string_view FirstTokenBytes(TokenId token) const;

  // False for ids outside the vocabulary and for its holes.
  bool HasToken(TokenId token) const;
  bool IsSpecial(TokenId token) const;
  // Highest id + 1. The model's logits may be wider or narrower.
  int32_t vocab_size() const { return static_cast<int32_t>(kinds_.size()); }
  // A token's entry in tokenizer.json.
  struct TokenEntry {
    absl::string_view content;  // Such as "<|eos|>" or "\u0120the"; lives as long as the tokenizer.
    bool added = false;         // One of "added_tokens".
  };
  // The entries of all ids below vocab_size; nullopt for holes.
  std::vector<std::optional<TokenEntry>> Entries() const;
  // The id of a token by its content.
  std::optional<TokenId> FindToken(absl::string_view content) const;

  std::optional<TokenId> bos() const { return bos_; }
  std::optional<TokenId> eos() const { return eos_; }

  // A hash over id -> (bytes, special or not) for all ids below `logits_width`. If the fingerprints of two
  // models are equal, every token means the same in both. Part of the wire protocol.
  uint64_t Fingerprint(int32_t logits_width) const;

  // The text of the template for conversations with tools; empty without a usable one.
  absl::string_view chat_template_source() const;
  // The prompt of a conversation, by the folder's chat template: chat_template.jinja, or what
  // tokenizer_config.json has. NotFound without one. Errors of an invalid template appear here, not at
  // loading, because the model can still complete plain text. Otherwise errors of ChatTemplate::Render.
  // Encode the result with parse_special on; if it contains a BOS, no second one is added.
  absl::StatusOr<std::string> ApplyChatTemplate(absl::Span<const ChatMessage> messages,
                                                const ChatTemplateOptions& options) const;
  // The tokens of a conversation, by the folder's chat template, which also places special tokens (including
  // BOS, if any). In contents of messages and in variables, special tokens are ordinary text unless
  // `parse_special`. Errors of ApplyChatTemplate and Encode.
  absl::StatusOr<TokenIds> EncodeChat(absl::Span<const ChatMessage> messages,
                                      const ChatTemplateOptions& options, bool parse_special,
                                      size_t max_tokens) const;

  // What the decoder strips from the start of the whole text.
  const TokenDecoder::LeadingStrip& leading_strip() const { return decoder_.leading_strip(); }

 private:
  enum class TokenKind : uint8_t { kNone, kOrdinary, kSpecial };

  Tokenizer(TokenModel model, TokenDecoder decoder)
      : model_(std::move(model)), decoder_(std::move(decoder)) {}

  static absl::StatusOr<std::shared_ptr<const Tokenizer>> LoadGguf(const std::string& path);
  static absl::StatusOr<std::shared_ptr<Tokenizer>> ParseDefinition(const JsonView& json);
  absl::Status ParseAddedTokenFinders(const JsonView& json);
  absl::Status ParseConfig(const JsonView& json);
  absl::Status ParseConfiguredFrame(const JsonView& json);
  absl::Status ParseConfiguredChatTemplate(const JsonView& json);
  absl::Status FillTokenTable();
  // The state of encoding a text, with the result so far.
  struct Encoding {
    bool parse_special;
    size_t max_tokens;
    absl::string_view mark;
    TokenModel::Scratch scratch;
    TokenIds tokens;
  };
  // The tokens with the frame around them.
  TokenIds Framed(TokenIds tokens) const;
  // `text` with the mark inserted after the first character of every special token's text.
  std::string MarkSpecial(std::string text, absl::string_view mark) const;
  absl::Status EncodePlain(absl::string_view text, bool at_text_start, Encoding& encoding) const;

  TokenModel model_;
  TokenDecoder decoder_;
  std::vector<AddedToken> added_tokens_;
  std::unique_ptr<const AddedTokenFinder> raw_tokens_;
  std::unique_ptr<const AddedTokenFinder> normalized_tokens_;
  std::unique_ptr<const Normalizer> normalizer_;
  std::unique_ptr<const PreTokenizer> pre_tokenizer_;
  std::optional<TokenFrame> frame_;
  std::optional<TokenId> bos_;
  std::optional<TokenId> eos_;
  std::optional<absl::StatusOr<ChatTemplate>> chat_template_;
  // The template for conversations with tools, if the folder has a separate one.
  std::optional<absl::StatusOr<ChatTemplate>> tool_template_;
  std::map<std::string, std::string> special_contents_;  // "bos_token" and the like, for the chat template

  // By id: the token's bytes lie in bytes_ from offsets_[id] to offsets_[id + 1].
  std::string bytes_;
  std::vector<uint32_t> offsets_;
  std::vector<TokenKind> kinds_;
  std::vector<bool> is_byte_;  // a SentencePiece byte token
  // For the tokens whose bytes differ at the beginning of the text.
  absl::flat_hash_map<TokenId, std::string> first_bytes_;
  absl::flat_hash_map<std::string, TokenId> added_ids_;
};

}  // namespace tandem
