#include "common/tokenizer/tokenizer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "common/gguf/gguf_file.h"
#include "common/tokenizer/gguf_tokenizer.h"
#include "common/tokenizer/unicode/unicode.h"

namespace tandem {
namespace {

constexpr size_t kMaxFileBytes = size_t{64} << 20;
constexpr size_t kMaxChatTemplateBytes = size_t{1} << 20;
constexpr size_t kMaxTextBytes = size_t{256} << 20;
constexpr size_t kMaxTokenTableBytes = size_t{512} << 20;

// The contents of a file that may be missing.
absl::StatusOr<std::optional<std::string>> ReadOptionalFile(const std::string& path, size_t max_bytes) {
  absl::StatusOr<std::string> contents = ReadFile(path, max_bytes);
  if (absl::IsNotFound(contents.status())) return std::nullopt;
  if (!contents.ok()) return contents.status();
  return std::optional<std::string>(*std::move(contents));
}

// A token of tokenizer_config.json, given as its content or as an object with the content; nullopt if absent.
absl::StatusOr<std::optional<std::string>> ConfiguredToken(const JsonView& json, const std::string& name) {
  TANDEM_ASSIGN_OR_RETURN(const std::optional<JsonView> member, json.Find(name));
  if (!member.has_value()) return std::nullopt;
  absl::StatusOr<std::string> content =
      member->value().is_object() ? member->StringMember("content") : member->String();
  if (!content.ok()) return content.status();
  return std::optional<std::string>(*std::move(content));
}

// Whether add_bos_token and add_eos_token replace the post-processor. They do for classes of transformers
// that make their own post-processor from them, whatever tokenizer.json says: Phi-3's tokenizer.json asks for
// a BOS, and these settings for none.
absl::StatusOr<bool> ConfiguresFrame(const JsonView& json) {
  constexpr absl::string_view kClasses[] = {"LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer",
                                            "CohereTokenizer"};
  TANDEM_ASSIGN_OR_RETURN(const std::optional<JsonView> class_json, json.Find("tokenizer_class"));
  if (!class_json.has_value()) return false;
  TANDEM_ASSIGN_OR_RETURN(const std::string written, class_json->String());
  const absl::string_view name = absl::StripSuffix(written, "Fast");
  if (std::find(std::begin(kClasses), std::end(kClasses), name) == std::end(kClasses)) return false;
  for (const char* member : {"add_bos_token", "add_eos_token"}) {
    TANDEM_ASSIGN_OR_RETURN(const std::optional<JsonView> configured, json.Find(member));
    if (configured.has_value()) return true;
  }
  return false;
}

absl::Status TooLong(size_t max_tokens) {
  return absl::OutOfRangeError(absl::StrCat("text of more than ", max_tokens, " tokens"));
}

absl::Status AppendToken(TokenId token, size_t max_tokens, TokenIds& out) {
  out.push_back(token);
  return out.size() > max_tokens ? TooLong(max_tokens) : absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Tokenizer>> Tokenizer::LoadForModel(const std::string& folder,
                                                                         int32_t logits_width) {
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<const Tokenizer> tokenizer, Load(folder));
  if (tokenizer->vocab_size() > logits_width) {
    return absl::InvalidArgumentError(absl::StrCat(folder, GgufFile::IsPath(folder) ? "" : "/tokenizer.json",
                                                   ": ids up to ", tokenizer->vocab_size() - 1,
                                                   ", expected below the model's logits width ", logits_width,
                                                   " (config.json: vocab_size)"));
  }
  return tokenizer;
}

absl::StatusOr<std::shared_ptr<const Tokenizer>> Tokenizer::LoadGguf(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(path));
  TANDEM_ASSIGN_OR_RETURN(GgufTokenizer read, ReadGgufTokenizer(file));
  // Errors name places in the tokenizer.json that is equivalent to the file's keys.
  const JsonView definition = JsonView::Of(std::move(read.definition), path);
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<Tokenizer> tokenizer, ParseDefinition(definition));
  TANDEM_RETURN_IF_ERROR(tokenizer->ParseConfig(JsonView::Of(std::move(read.config), path)));
  return tokenizer;
}

absl::StatusOr<std::shared_ptr<const Tokenizer>> Tokenizer::Parse(absl::string_view definition,
                                                                  const std::string& where) {
  TANDEM_ASSIGN_OR_RETURN(const JsonView json, JsonView::Parse(definition, where));
  return ParseDefinition(json);
}

absl::StatusOr<std::shared_ptr<const Tokenizer>> Tokenizer::Load(const std::string& folder) {
  if (GgufFile::IsPath(folder)) return LoadGguf(folder);
  const std::string path = absl::StrCat(folder, "/tokenizer.json");
  TANDEM_ASSIGN_OR_RETURN(const std::string definition, ReadFile(path, kMaxFileBytes));
  TANDEM_ASSIGN_OR_RETURN(const JsonView json, JsonView::Parse(definition, path));
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<Tokenizer> tokenizer, ParseDefinition(json));

  const std::string config_path = absl::StrCat(folder, "/tokenizer_config.json");
  TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> config,
                          ReadOptionalFile(config_path, kMaxFileBytes));
  if (config.has_value()) {
    TANDEM_ASSIGN_OR_RETURN(const JsonView config_json, JsonView::Parse(*config, config_path));
    TANDEM_RETURN_IF_ERROR(tokenizer->ParseConfig(config_json));
  }
  TANDEM_ASSIGN_OR_RETURN(
      const std::optional<std::string> chat_template,
      ReadOptionalFile(absl::StrCat(folder, "/chat_template.jinja"), kMaxChatTemplateBytes));
  if (chat_template.has_value()) {
    tokenizer->chat_template_ = ChatTemplate::Parse(*chat_template);
    tokenizer->tool_template_.reset();
  }
  return tokenizer;
}

absl::StatusOr<std::shared_ptr<Tokenizer>> Tokenizer::ParseDefinition(const JsonView& json) {
  TANDEM_ASSIGN_OR_RETURN(const JsonView model_json, json.Member("model"));
  TANDEM_ASSIGN_OR_RETURN(TokenModel model, TokenModel::Parse(model_json));
  TANDEM_ASSIGN_OR_RETURN(const JsonView decoder_json, json.Member("decoder"));
  TANDEM_ASSIGN_OR_RETURN(TokenDecoder decoder, TokenDecoder::Parse(decoder_json));
  std::shared_ptr<Tokenizer> tokenizer(new Tokenizer(std::move(model), std::move(decoder)));

  TANDEM_ASSIGN_OR_RETURN(const std::optional<JsonView> normalizer, json.Find("normalizer"));
  if (normalizer.has_value()) {
    TANDEM_ASSIGN_OR_RETURN(tokenizer->normalizer_, ParseNormalizer(*normalizer));
  }
  TANDEM_ASSIGN_OR_RETURN(const std::optional<JsonView> pre_tokenizer, json.Find("pre_tokenizer"));
  if (pre_tokenizer.has_value()) {
    TANDEM_ASSIGN_OR_RETURN(tokenizer->pre_tokenizer_, ParsePreTokenizer(*pre_tokenizer));
  }
  TANDEM_ASSIGN_OR_RETURN(const std::optional<JsonView> post_processor, json.Find("post_processor"));
  if (post_processor.has_value()) {
    TANDEM_ASSIGN_OR_RETURN(tokenizer->frame_, ParseTokenFrame(*post_processor));
  }
  TANDEM_RETURN_IF_ERROR(tokenizer->ParseAddedTokenFinders(json));
  TANDEM_RETURN_IF_ERROR(tokenizer->FillTokenTable());
  if (tokenizer->frame_.has_value()) {
    for (const TokenIds* ids : {&tokenizer->frame_->prefix, &tokenizer->frame_->suffix}) {
      for (TokenId id : *ids) {
        if (!tokenizer->HasToken(id)) return post_processor->Invalid(absl::StrCat("no token has id ", id));
      }
    }
  }
  return tokenizer;
}

absl::Status Tokenizer::ParseAddedTokenFinders(const JsonView& json) {
  TANDEM_ASSIGN_OR_RETURN(const std::optional<JsonView> list, json.Find("added_tokens"));
  if (list.has_value()) {
    TANDEM_ASSIGN_OR_RETURN(added_tokens_, ParseAddedTokens(*list, model_, normalizer_.get()));
  }
  std::vector<const AddedToken*> raw;
  std::vector<const AddedToken*> normalized;
  for (const AddedToken& token : added_tokens_) {
    added_ids_.emplace(token.content, token.id);
    (token.normalized ? normalized : raw).push_back(&token);
  }
  raw_tokens_ = std::make_unique<AddedTokenFinder>(raw);
  normalized_tokens_ = std::make_unique<AddedTokenFinder>(normalized);
  return absl::OkStatus();
}

absl::Status Tokenizer::FillTokenTable() {
  TokenId highest = -1;
  for (const auto& [content, id] : model_.vocabulary()) highest = std::max(highest, id);
  for (const AddedToken& token : added_tokens_) highest = std::max(highest, token.id);
  kinds_.assign(static_cast<size_t>(highest) + 1, TokenKind::kNone);
  std::vector<absl::string_view> contents(kinds_.size());
  for (const auto& [content, id] : model_.vocabulary()) {
    contents[id] = content;
    kinds_[id] = TokenKind::kOrdinary;
  }
  for (const AddedToken& token : added_tokens_) {
    contents[token.id] = token.text;
    kinds_[token.id] = token.special ? TokenKind::kSpecial : TokenKind::kOrdinary;
  }
  is_byte_.resize(kinds_.size());
  offsets_.reserve(kinds_.size() + 1);
  offsets_.push_back(0);
  for (size_t id = 0; id < contents.size(); ++id) {
    if (kinds_[id] != TokenKind::kNone) {
      TANDEM_ASSIGN_OR_RETURN(const std::string bytes, decoder_.Bytes(contents[id], false));
      bytes_ += bytes;
      is_byte_[id] = decoder_.IsByteToken(contents[id]);
      if (bytes_.size() > kMaxTokenTableBytes) {
        return absl::InvalidArgumentError("the decoder makes the vocabulary too long");
      }
      if (decoder_.depends_on_first()) {
        TANDEM_ASSIGN_OR_RETURN(std::string first, decoder_.Bytes(contents[id], true));
        if (first != bytes) first_bytes_.emplace(static_cast<TokenId>(id), std::move(first));
      }
    }
    offsets_.push_back(static_cast<uint32_t>(bytes_.size()));
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::ParseConfig(const JsonView& json) {
  for (const char* name :
       {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    TANDEM_ASSIGN_OR_RETURN(std::optional<std::string> content, ConfiguredToken(json, name));
    if (content.has_value()) special_contents_.emplace(name, *std::move(content));
  }
  if (const auto it = special_contents_.find("bos_token"); it != special_contents_.end()) {
    bos_ = FindToken(it->second);
  }
  if (const auto it = special_contents_.find("eos_token"); it != special_contents_.end()) {
    eos_ = FindToken(it->second);
  }
  TANDEM_ASSIGN_OR_RETURN(const bool configured, ConfiguresFrame(json));
  if (configured || !frame_.has_value()) TANDEM_RETURN_IF_ERROR(ParseConfiguredFrame(json));
  return ParseConfiguredChatTemplate(json);
}

absl::Status Tokenizer::ParseConfiguredFrame(const JsonView& json) {
  TANDEM_ASSIGN_OR_RETURN(const bool add_bos, json.BoolMember("add_bos_token", false));
  TANDEM_ASSIGN_OR_RETURN(const bool add_eos, json.BoolMember("add_eos_token", false));
  if (add_bos && !bos_.has_value())
    return json.Invalid("add_bos_token is set, but no token is the bos_token");
  if (add_eos && !eos_.has_value())
    return json.Invalid("add_eos_token is set, but no token is the eos_token");
  frame_.emplace();
  if (add_bos) frame_->prefix.push_back(*bos_);
  if (add_eos) frame_->suffix.push_back(*eos_);
  return absl::OkStatus();
}

absl::Status Tokenizer::ParseConfiguredChatTemplate(const JsonView& json) {
  TANDEM_ASSIGN_OR_RETURN(const std::optional<JsonView> member, json.Find("chat_template"));
  if (!member.has_value()) return absl::OkStatus();
  if (!member->value().is_array()) {
    TANDEM_ASSIGN_OR_RETURN(const std::string source, member->String());
    chat_template_ = ChatTemplate::Parse(source);
    return absl::OkStatus();
  }
  TANDEM_ASSIGN_OR_RETURN(const std::vector<JsonView> choices, member->Elements());
  for (const JsonView& choice : choices) {
    TANDEM_ASSIGN_OR_RETURN(const std::string name, choice.StringMember("name"));
    if (name != "default" && name != "tool_use") continue;
    TANDEM_ASSIGN_OR_RETURN(const std::string source, choice.StringMember("template"));
    (name == "default" ? chat_template_ : tool_template_) = ChatTemplate::Parse(source);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Tokenizer::ApplyChatTemplate(absl::Span<const ChatMessage> messages,
                                                         const ChatTemplateOptions& options) const {
  const auto& chosen = tool_template_.has_value() && !options.tools.empty() ? tool_template_ : chat_template_;
  if (!chosen.has_value()) return absl::NotFoundError("the model folder has no chat template");
  TANDEM_RETURN_IF_ERROR(chosen->status());
  return (*chosen)->Render(messages, special_contents_, options);
}

absl::string_view Tokenizer::chat_template_source() const {
  const auto& chosen = tool_template_.has_value() ? tool_template_ : chat_template_;
  return chosen.has_value() && chosen->ok() ? (*chosen)->source() : absl::string_view();
}

// Prevents special tokens in messages: inserts a mark after the first character of text that would be one.
// The template sees everything else unchanged. The mark is one of Unicode's noncharacters U+FDD0 to U+FDEF
// that does not occur in the messages.
absl::StatusOr<TokenIds> Tokenizer::EncodeChat(absl::Span<const ChatMessage> messages,
                                               const ChatTemplateOptions& options, bool parse_special,
                                               size_t max_tokens) const {
  EncodeOptions encode{.parse_special = true, .add_special_tokens = false, .max_tokens = max_tokens};
  if (parse_special) {
    TANDEM_ASSIGN_OR_RETURN(const std::string prompt, ApplyChatTemplate(messages, options));
    return Encode(prompt, encode);
  }
  for (int last = 0x90; last <= 0xAF; ++last) {
    const std::string mark = {'\xEF', '\xB7', static_cast<char>(last)};
    bool is_taken = false;
    ChatTemplateOptions marking = options;
    marking.on_text = [&](std::string text) {
      is_taken = is_taken || absl::StrContains(text, mark);
      return MarkSpecial(std::move(text), mark);
    };
    absl::StatusOr<std::string> prompt = ApplyChatTemplate(messages, marking);
    if (is_taken) continue;
    if (!prompt.ok()) return prompt.status();
    encode.mark = mark;
    return Encode(*prompt, encode);
  }
  return absl::InvalidArgumentError("the messages contain all of the characters U+FDD0 to U+FDEF");
}

std::string Tokenizer::MarkSpecial(std::string text, absl::string_view mark) const {
  for (const AddedTokenFinder* finder : {raw_tokens_.get(), normalized_tokens_.get()}) {
    // A special token that was broken up may contain another one.
    for (bool found = true; found;) {
      found = false;
      std::string marked;
      for (const TokenSpan& span : finder->Cut(text, /*parse_special=*/true)) {
        // The span may begin with white space that the token strips. A token of one character cannot be
        // broken up.
        const size_t begin = span.token == nullptr ? 0 : span.text.find(span.token->text);
        const size_t first = ReadUtf8(span.text.substr(begin)).length;
        if (span.token == nullptr || !span.token->special || first == span.token->text.size()) {
          absl::StrAppend(&marked, span.text);
          continue;
        }
        found = true;
        absl::StrAppend(&marked, span.text.substr(0, begin + first), mark, span.text.substr(begin + first));
      }
      text = std::move(marked);
    }
  }
  return text;
}

absl::StatusOr<TokenIds> Tokenizer::Encode(absl::string_view utf8_text, const EncodeOptions& options) const {
  if (utf8_text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("text of ", utf8_text.size(), " bytes is longer than ", kMaxTextBytes));
  }
  if (const std::optional<size_t> offset = FindInvalidUtf8(utf8_text)) {
    return absl::InvalidArgumentError(absl::StrCat("text is not UTF-8 at byte ", *offset));
  }
  // The frame may leave out a BOS that the text has, so one more token may fit.
  const size_t most = options.max_tokens;
  Encoding encoding{.parse_special = options.parse_special,
                    .max_tokens = most + (most < std::numeric_limits<size_t>::max() ? 1 : 0),
                    .mark = options.mark,
                    .scratch = {},
                    .tokens = {}};
  for (const TokenSpan& span : raw_tokens_->Cut(utf8_text, options.parse_special)) {
    if (span.token != nullptr) {
      TANDEM_RETURN_IF_ERROR(AppendToken(span.token->id, encoding.max_tokens, encoding.tokens));
      continue;
    }
    const bool at_text_start = span.text.data() == utf8_text.data();
    TANDEM_RETURN_IF_ERROR(EncodePlain(span.text, at_text_start, encoding));
  }
  TokenIds tokens = std::move(encoding.tokens);
  if (options.add_special_tokens && frame_.has_value()) tokens = Framed(std::move(tokens));
  if (tokens.size() > options.max_tokens) return TooLong(options.max_tokens);
  return tokens;
}

TokenIds Tokenizer::Framed(TokenIds tokens) const {
  TokenIds framed = frame_->prefix;
  const bool has_bos = !framed.empty() && !tokens.empty() && framed.back() == tokens.front() &&
                       (!bos_.has_value() || framed.back() == *bos_);
  framed.insert(framed.end(), tokens.begin() + (has_bos ? 1 : 0), tokens.end());
  framed.insert(framed.end(), frame_->suffix.begin(), frame_->suffix.end());
  return framed;
}

absl::Status Tokenizer::EncodePlain(absl::string_view text, bool at_text_start, Encoding& encoding) const {
  std::string normalized;
  if (normalizer_ != nullptr) {
    normalized = std::string(text);
    TANDEM_RETURN_IF_ERROR(normalizer_->Apply(normalized));
    text = normalized;
  }
  const auto tokenize = [&](TextPiece word) {
    return model_.Tokenize(word.text, encoding.max_tokens, encoding.scratch, encoding.tokens);
  };
  for (const TokenSpan& span : normalized_tokens_->Cut(text, encoding.parse_special)) {
    if (span.token != nullptr) {
      TANDEM_RETURN_IF_ERROR(AppendToken(span.token->id, encoding.max_tokens, encoding.tokens));
      continue;
    }
    TextPiece piece{span.text, at_text_start && span.text.data() == text.data()};
    std::string unmarked;
    if (!encoding.mark.empty() && absl::StrContains(piece.text, encoding.mark)) {
      unmarked = absl::StrReplaceAll(piece.text, {{encoding.mark, ""}});
      piece.text = unmarked;
    }
    TANDEM_RETURN_IF_ERROR(pre_tokenizer_ != nullptr ? pre_tokenizer_->Split(piece, tokenize)
                                                     : tokenize(piece));
  }
  return absl::OkStatus();
}

std::string Tokenizer::Decode(absl::Span<const TokenId> tokens, bool skip_special) const {
  std::string bytes;
  bool is_first = true;
  size_t run_begin = 0;  // The beginning of the byte tokens at the end of `bytes`.
  const auto end_run = [&] {
    if (!FindInvalidUtf8(absl::string_view(bytes).substr(run_begin)).has_value()) return;
    const size_t length = bytes.size() - run_begin;
    bytes.resize(run_begin);
    for (size_t i = 0; i < length; ++i) absl::StrAppend(&bytes, kReplacementCharacter);
  };
  bool in_run = false;
  for (TokenId token : tokens) {
    if (!HasToken(token) || (skip_special && IsSpecial(token))) continue;
    if (in_run && !is_byte_[token]) end_run();
    if (!in_run && is_byte_[token]) run_begin = bytes.size();
    in_run = is_byte_[token];
    absl::StrAppend(&bytes, is_first ? FirstTokenBytes(token) : TokenBytes(token));
    is_first = false;
  }
  if (in_run) end_run();
  std::string text;
  text.reserve(bytes.size());
  absl::string_view rest = bytes;
  for (int i = 0; i < leading_strip().max_count && absl::ConsumePrefix(&rest, leading_strip().character);
       ++i) {
  }
  while (!rest.empty()) {
    const Utf8Unit unit = ReadUtf8(rest);
    const bool is_character = unit.kind == Utf8Unit::Kind::kCharacter;
    absl::StrAppend(&text, is_character ? rest.substr(0, unit.length) : kReplacementCharacter);
    rest.remove_prefix(unit.length);
  }
  return text;
}

bool Tokenizer::HasToken(TokenId token) const {
  return token >= 0 && token < vocab_size() && kinds_[token] != TokenKind::kNone;
}

bool Tokenizer::IsSpecial(TokenId token) const {
  return HasToken(token) && kinds_[token] == TokenKind::kSpecial;
}

absl::string_view Tokenizer::TokenBytes(TokenId token) const {
  if (!HasToken(token)) return {};
  return absl::string_view(bytes_).substr(offsets_[token], offsets_[token + 1] - offsets_[token]);
}

absl::string_view Tokenizer::FirstTokenBytes(TokenId token) const {
  const auto it = first_bytes_.find(token);
  return it == first_bytes_.end() ? TokenBytes(token) : absl::string_view(it->second);
}

std::vector<std::optional<Tokenizer::TokenEntry>> Tokenizer::Entries() const {
  std::vector<std::optional<TokenEntry>> entries(kinds_.size());
  for (const auto& [content, id] : model_.vocabulary()) {
    entries[static_cast<size_t>(id)] = TokenEntry{.content = content};
  }
  for (const AddedToken& token : added_tokens_) {
    entries[static_cast<size_t>(token.id)] = TokenEntry{.content = token.content, .added = true};
  }
  return entries;
}

std::optional<TokenId> Tokenizer::FindToken(absl::string_view content) const {
  const auto it = added_ids_.find(content);
  if (it != added_ids_.end()) return it->second;
  return model_.Find(content);
}

uint64_t Tokenizer::Fingerprint(int32_t logits_width) const {
  uint64_t hash = HashCombine(0, static_cast<uint64_t>(std::max(logits_width, 0)));
  for (TokenId id = 0; id < logits_width; ++id) {
    const TokenKind kind = HasToken(id) ? kinds_[id] : TokenKind::kNone;
    hash = HashCombine(hash, static_cast<uint64_t>(kind));
    hash = HashBytes(TokenBytes(id), hash);
  }
  return hash;
}

}  // namespace tandem
