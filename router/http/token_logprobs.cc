#include "router/http/token_logprobs.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/token.h"
#include "common/tokenizer/unicode/unicode.h"

namespace tandem::router {
namespace {

OrderedJson BytesOf(absl::string_view text) {
  OrderedJson bytes = OrderedJson::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

}  // namespace

std::string TokenSpelling::Id(uint32_t token) {
  return absl::StrCat("token_id:", token);
}

absl::string_view TokenSpelling::Bytes(uint32_t token) const {
  return encoder_.TokenBytes(static_cast<TokenId>(token));
}

std::string TokenSpelling::Text(uint32_t token) const {
  return as_ids_ ? Id(token) : TextOfBytes(Bytes(token));
}

std::string TokenSpelling::Key(uint32_t token) const {
  if (as_ids_) return Id(token);
  const absl::string_view bytes = Bytes(token);
  if (!FindInvalidUtf8(bytes).has_value()) return std::string(bytes);
  std::string key = "bytes:";
  for (const char byte : bytes) absl::StrAppendFormat(&key, "\\x%02x", static_cast<unsigned char>(byte));
  return key;
}

void CharacterCount::Add(absl::string_view bytes) {
  std::string joined;
  if (!pending_.empty()) {
    joined = absl::StrCat(pending_, bytes);
    bytes = joined;
    pending_.clear();
  }
  while (!bytes.empty()) {
    const Utf8Unit unit = ReadUtf8(bytes);
    if (unit.kind == Utf8Unit::Kind::kIncomplete) {
      pending_ = std::string(bytes.substr(0, unit.length));
    } else {
      ++whole_;
    }
    bytes.remove_prefix(unit.length);
  }
}

std::string TextOfBytes(absl::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const Utf8Unit unit = ReadUtf8(bytes);
    const bool is_character = unit.kind == Utf8Unit::Kind::kCharacter;
    absl::StrAppend(&text, is_character ? bytes.substr(0, unit.length) : kReplacementCharacter);
    bytes.remove_prefix(unit.length);
  }
  return text;
}

size_t NumCharacters(absl::string_view text) {
  CharacterCount count;
  count.Add(text);
  return count.whole();
}

void EchoOffsets::Take(size_t num_bytes) {
  num_bytes = std::min(num_bytes, text_.size() - at_);
  count_.Add(absl::string_view(text_).substr(at_, num_bytes));
  at_ += num_bytes;
}

size_t EchoOffsets::Next(absl::string_view bytes, bool is_special) {
  const size_t offset = count_.whole();
  if (num_added_ > 0) {
    --num_added_;
    return offset;
  }
  if (!aligns_) {
    count_.Add(bytes);
    return offset;
  }
  const absl::string_view left = absl::string_view(text_).substr(at_);
  if (absl::StartsWith(left, bytes)) {
    Take(bytes.size());
  } else if (at_ == 0 && absl::StartsWith(bytes, " ") && absl::StartsWith(left, bytes.substr(1))) {
    Take(bytes.size() - 1);
  } else if (!is_special) {
    // Its letters are not those of the text: as many characters of the text as it has.
    absl::string_view rest = left;
    for (size_t i = NumCharacters(bytes); i > 0 && !rest.empty(); --i)
      rest.remove_prefix(ReadUtf8(rest).length);
    Take(left.size() - rest.size());
  }
  return offset;
}

OrderedJson TextLogprob(uint32_t token, const v1::TokenDetail& detail, size_t offset,
                        const TokenSpelling& spelling) {
  OrderedJson top = OrderedJson::object();
  const auto add = [&](uint32_t id, float logprob) {
    std::string key = spelling.Key(id);
    if (top.contains(key)) key = TokenSpelling::Id(id);
    top[key] = FiniteNumber(logprob);
    return key;
  };
  std::string own;
  for (const v1::TokenLogprob& other : detail.top_logprobs()) {
    std::string key = add(other.token(), other.logprob());
    if (other.token() == token) own = std::move(key);
  }
  if (own.empty()) own = add(token, detail.logprob());
  return {{"token", std::move(own)},
          {"logprob", FiniteNumber(detail.logprob())},
          {"top", std::move(top)},
          {"offset", offset}};
}

OrderedJson ChatLogprob(uint32_t token, const v1::TokenDetail& detail, const TokenSpelling& spelling) {
  OrderedJson top = OrderedJson::array();
  for (const v1::TokenLogprob& other : detail.top_logprobs()) {
    top.push_back({{"token", spelling.Text(other.token())},
                   {"logprob", FiniteNumber(other.logprob())},
                   {"bytes", BytesOf(spelling.Bytes(other.token()))}});
  }
  return {{"token", spelling.Text(token)},
          {"logprob", FiniteNumber(detail.logprob())},
          {"bytes", BytesOf(spelling.Bytes(token))},
          {"top_logprobs", std::move(top)}};
}

OrderedJson PromptLogprob(uint32_t token, const v1::TokenDetail& detail, const TokenSpelling& spelling) {
  OrderedJson entry = OrderedJson::object();
  const auto add = [&](uint32_t id, float logprob, OrderedJson rank) {
    entry.emplace(absl::StrCat(id), OrderedJson({{"logprob", FiniteNumber(logprob)},
                                                 {"rank", std::move(rank)},
                                                 {"decoded_token", TextOfBytes(spelling.Bytes(id))}}));
  };
  for (int i = 0; i < detail.top_logprobs_size(); ++i)
    add(detail.top_logprobs(i).token(), detail.top_logprobs(i).logprob(), i + 1);
  add(token, detail.logprob(), nullptr);
  return entry;
}

OrderedJson LogprobsField(bool chat, const OrderedJson& entries, size_t num_characters) {
  if (entries.is_null()) return nullptr;
  if (chat) return {{"content", entries}, {"refusal", nullptr}};
  OrderedJson json = {{"tokens", OrderedJson::array()},
                      {"token_logprobs", OrderedJson::array()},
                      {"top_logprobs", OrderedJson::array()},
                      {"text_offset", OrderedJson::array()}};
  for (const OrderedJson& entry : entries) {
    json["tokens"].push_back(entry["token"]);
    json["token_logprobs"].push_back(entry["logprob"]);
    json["top_logprobs"].push_back(entry["top"]);
    json["text_offset"].push_back(std::min(entry["offset"].get<size_t>(), num_characters));
  }
  return json;
}

}  // namespace tandem::router
