#include "common/tokenizer/unigram_model.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/bpe_model.h"
#include "common/tokenizer/unicode/unicode.h"

namespace tandem {
namespace {

constexpr TokenId kNoPiece = -1;
constexpr size_t kMaxTrieNodes = size_t{1} << 26;
// The score of an unknown character is this much below that of the least likely token, as in SentencePiece.
constexpr double kUnknownPenalty = 10.0;

}  // namespace

absl::StatusOr<UnigramModel> UnigramModel::Parse(const JsonView& json) {
  UnigramModel model;
  model.token_at_node_.push_back(kNoPiece);
  TANDEM_ASSIGN_OR_RETURN(const JsonView list, json.Member("vocab"));
  if (!list.value().is_array()) return list.Invalid("expected an array of contents and scores");
  if (list.value().size() > static_cast<size_t>(kMaxTokenId)) return list.Invalid("too many tokens");
  double lowest = std::numeric_limits<double>::infinity();
  for (size_t id = 0; id < list.value().size(); ++id) {
    const nlohmann::json& entry = list.value()[id];
    const auto place = [&] { return list.At(entry, absl::StrCat("[", id, "]")); };
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number()) {
      return place().Invalid("expected a content and a score");
    }
    const std::string& content = entry[0].get_ref<const std::string&>();
    if (!model.vocabulary_.emplace(content, static_cast<TokenId>(id)).second) {
      return place().Invalid(absl::StrCat("'", content, "' occurs twice"));
    }
    if (model.token_at_node_.size() + content.size() > kMaxTrieNodes)
      return place().Invalid("too much text in all");
    model.scores_.push_back(entry[1].get<double>());
    lowest = std::min(lowest, model.scores_.back());
    model.AddToTrie(content, static_cast<TokenId>(id));
  }
  model.unknown_score_ = lowest - kUnknownPenalty;
  TANDEM_ASSIGN_OR_RETURN(const std::optional<JsonView> unknown, json.Find("unk_id"));
  if (unknown.has_value()) {
    TANDEM_ASSIGN_OR_RETURN(const int64_t id,
                            unknown->Integer(0, static_cast<int64_t>(model.scores_.size()) - 1));
    model.unknown_ = static_cast<TokenId>(id);
  }
  TANDEM_ASSIGN_OR_RETURN(const bool byte_fallback, json.BoolMember("byte_fallback", false));
  if (byte_fallback) {
    model.byte_tokens_.emplace();
    for (int byte = 0; byte < 256; ++byte) {
      (*model.byte_tokens_)[byte] = model.Find(absl::StrFormat("<0x%02X>", byte)).value_or(kNoPiece);
    }
  }
  return model;
}

void UnigramModel::AddToTrie(absl::string_view content, TokenId token) {
  uint32_t node = 0;
  for (char byte : content) {
    const uint64_t edge = (uint64_t{node} << 8) | static_cast<unsigned char>(byte);
    const auto [it, is_new] = children_.emplace(edge, static_cast<uint32_t>(token_at_node_.size()));
    if (is_new) token_at_node_.push_back(kNoPiece);
    node = it->second;
  }
  token_at_node_[node] = token;
}

std::optional<TokenId> UnigramModel::Find(absl::string_view content) const {
  const auto it = vocabulary_.find(content);
  if (it == vocabulary_.end()) return std::nullopt;
  return it->second;
}

absl::Status UnigramModel::FindBestPath(absl::string_view word, Scratch& scratch) const {
  std::vector<Scratch::Node>& nodes = scratch.nodes_;
  nodes.assign(word.size() + 1, {0, -1, kNoPiece});
  const auto reach = [&nodes](size_t begin, size_t end, double score, TokenId token) {
    Scratch::Node& node = nodes[end];
    if (node.begin < 0 || score > node.score) node = {score, static_cast<int64_t>(begin), token};
  };
  for (size_t begin = 0; begin < word.size();) {
    const size_t character_end = begin + ReadUtf8(word.substr(begin)).length;
    bool has_character = false;
    uint32_t node = 0;
    for (size_t end = begin; end < word.size();) {
      const auto it = children_.find((uint64_t{node} << 8) | static_cast<unsigned char>(word[end]));
      if (it == children_.end()) break;
      node = it->second;
      ++end;
      const TokenId token = token_at_node_[node];
      if (token == kNoPiece) continue;
      reach(begin, end, scores_[token] + nodes[begin].score, token);
      has_character = has_character || end == character_end;
    }
    if (!has_character) {
      const double score = unknown_score_ + nodes[begin].score;
      if (!unknown_.has_value() && (nodes[character_end].begin < 0 || score > nodes[character_end].score)) {
        return absl::FailedPreconditionError("an unknown token is needed, but the model has no unk_id");
      }
      reach(begin, character_end, score, unknown_.value_or(kNoPiece));
    }
    begin = character_end;
  }
  return absl::OkStatus();
}

absl::Status UnigramModel::AppendPiece(absl::string_view piece, TokenIds& out) const {
  if (const std::optional<TokenId> token = Find(piece)) {
    out.push_back(*token);
    return absl::OkStatus();
  }
  const bool in_bytes =
      byte_tokens_.has_value() && std::all_of(piece.begin(), piece.end(), [this](char byte) {
        return (*byte_tokens_)[static_cast<unsigned char>(byte)] != kNoPiece;
      });
  if (in_bytes) {
    for (char byte : piece) out.push_back((*byte_tokens_)[static_cast<unsigned char>(byte)]);
    return absl::OkStatus();
  }
  if (!unknown_.has_value()) {
    return absl::FailedPreconditionError("an unknown token is needed, but the model has no unk_id");
  }
  out.push_back(*unknown_);
  return absl::OkStatus();
}

absl::Status UnigramModel::Tokenize(absl::string_view word, size_t max_tokens, Scratch& scratch,
                                    TokenIds& out) const {
  if (word.empty()) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(FindBestPath(word, scratch));
  std::vector<absl::string_view>& pieces = scratch.pieces_;
  pieces.clear();
  bool last_is_unknown = false;
  for (size_t end = word.size(); end > 0;) {
    const Scratch::Node& node = scratch.nodes_[end];
    const auto begin = static_cast<size_t>(node.begin);
    const bool is_unknown = unknown_.has_value() && node.token == *unknown_;
    if (is_unknown && last_is_unknown) {
      // Consecutive unknown characters become one piece.
      pieces.back() = word.substr(begin, end - begin + pieces.back().size());
    } else {
      pieces.push_back(word.substr(begin, end - begin));
    }
    last_is_unknown = is_unknown;
    end = begin;
  }
  for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {
    TANDEM_RETURN_IF_ERROR(AppendPiece(*piece, out));
    if (out.size() > max_tokens)
      return absl::OutOfRangeError(absl::StrCat("more than ", max_tokens, " tokens"));
  }
  return absl::OkStatus();
}

}  // namespace tandem
