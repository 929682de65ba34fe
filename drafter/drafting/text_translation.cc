#include "drafter/drafting/text_translation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

// A text that is too long for the draft model is translated from a token on whose number is a multiple of
// this, so that most openings begin where the one before did.
constexpr size_t kFirstTokenStep = 256;
// As many of the last tokens as ToTarget looks at.
constexpr size_t kKeptTokens = 16;
// Tokens of the draft model that stand for one of the target: bounds of what is believed.
constexpr double kMostTokensPerToken = 8.0;

uint32_t Scaled(uint32_t value, double factor, uint32_t most) {
  return static_cast<uint32_t>(std::min(std::ceil(value * factor), static_cast<double>(most)));
}

}  // namespace

void TextTranslation::SetBudget(const DraftBudget& budget) {
  budget_ = budget;
  max_depth_ = 0;
  max_nodes_ = 0;
  if (budget.depth == 0 || budget.nodes == 0 || budget.branching == 0) return;
  const uint64_t levels = uint64_t{budget.depth} + budget.lookahead;
  max_depth_ = static_cast<uint32_t>(std::min<uint64_t>(levels, kMaxTreeDepth));
  const uint64_t nodes =
      std::min<uint64_t>(budget.nodes, kMaxTreeNodes) * levels / budget.depth + budget.ahead_nodes;
  max_nodes_ = static_cast<uint32_t>(std::min<uint64_t>(nodes, kMaxTreeNodes));
}

// As much text as the verifier asks for, in tokens that may be shorter. What goes beyond is not sent.
DraftBudget TextTranslation::InnerBudget() const {
  DraftBudget budget = budget_;
  if (max_nodes_ == 0) return {};
  const double factor = std::clamp(text_->tokens_per_token(), 1.0, kMostTokensPerToken);
  budget.depth = Scaled(budget.depth, factor, kMaxTreeDepth);
  budget.nodes = Scaled(budget.nodes, factor, kMaxTreeNodes);
  budget.lookahead = Scaled(budget.lookahead, factor, kMaxTreeDepth);
  budget.ahead_nodes = Scaled(budget.ahead_nodes, factor, kMaxTreeNodes);
  return budget;
}

OpenSession TextTranslation::InnerOpen() {
  inner_tree_.Clear();
  texts_.clear();
  inner_tokens_ = text_->tokens();
  inner_commit_no_ = 0;
  OpenSession open = opened_;
  open.epoch = ++inner_epoch_;
  open.commit_no = 0;
  open.tokens = inner_tokens_;
  open.prefix_hash = ExtendPrefixHash(kEmptyPrefixHash, inner_tokens_);
  open.sampling = {.temperature = 0.0f};
  open.prompt_length = static_cast<uint32_t>(inner_tokens_.size());
  open.budget = InnerBudget();
  open.predict_acceptance = false;
  // For the target's tokens.
  open.constraint = nullptr;
  return open;
}

OpenSession TextTranslation::Open(const OpenSession& open) {
  opened_ = open;
  opened_.tokens.clear();
  epoch_ = open.epoch;
  commit_no_ = open.commit_no;
  prefix_hash_ = open.prefix_hash;
  committed_len_ = static_cast<uint32_t>(open.tokens.size());
  lost_ = false;
  said_exhausted_ = false;
  tree_.Clear();
  next_id_ = 1;
  announced_.clear();
  absl::Span<const TokenId> tokens = open.tokens;
  if (tokens.size() > context_length_) {
    const size_t first = tokens.size() - context_length_;
    tokens.remove_prefix(std::min(tokens.size() - 1, first - first % kFirstTokenStep));
  }
  text_.emplace(&bridge_);
  text_->Append(tokens);
  const size_t kept = std::min(tokens.size(), kKeptTokens);
  last_tokens_.assign(tokens.end() - static_cast<ptrdiff_t>(kept), tokens.end());
  SetBudget(open.budget);
  return InnerOpen();
}

absl::Status TextTranslation::CheckCommit(const Commit& commit) const {
  if (commit.epoch != epoch_ || commit.commit_no != commit_no_ + 1) {
    return absl::AbortedError(absl::StrCat("commit ", commit.commit_no, " of epoch ", commit.epoch,
                                           " after commit ", commit_no_, " of epoch ", epoch_));
  }
  for (const TokenId token : commit.tokens) {
    if (token >= 0 && token < bridge_.target_width()) continue;
    return absl::InvalidArgumentError(absl::StrCat("commit ", commit.commit_no, ": token ", token,
                                                   ", expected [0, ", bridge_.target_width(), ")"));
  }
  if (commit.tokens.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("commit ", commit.commit_no, " has no token, expected at least the bonus token"));
  }
  if (commit.committed_len != uint64_t{committed_len_} + commit.tokens.size() ||
      ExtendPrefixHash(prefix_hash_, commit.tokens) != commit.prefix_hash) {
    return absl::AbortedError(
        absl::StrFormat("commit %d: %d committed tokens with the prefix hash %016x do not "
                        "follow from %d and its tokens",
                        commit.commit_no, commit.committed_len, commit.prefix_hash, committed_len_));
  }
  if (!commit.new_root.has_value()) return absl::OkStatus();
  NodeId at = 0;
  for (const TokenId token : commit.tokens) {
    const TreeNode* const node = tree_.FindChild(at, token);
    at = node == nullptr ? 0 : node->id;
    if (at == 0) break;
  }
  if (at == 0 || at != *commit.new_root) {
    return absl::AbortedError(absl::StrCat("commit ", commit.commit_no, ": node ", *commit.new_root,
                                           " is not at the end of the committed tokens"));
  }
  return absl::OkStatus();
}

void TextTranslation::Move(const Commit& commit) {
  commit_no_ = commit.commit_no;
  prefix_hash_ = commit.prefix_hash;
  committed_len_ = commit.committed_len;
  said_exhausted_ = false;
  announced_.clear();
  if (commit.new_root.has_value()) {
    tree_.Reroot(*commit.new_root);
  } else {
    tree_.Clear();
  }
  last_tokens_.insert(last_tokens_.end(), commit.tokens.begin(), commit.tokens.end());
  if (last_tokens_.size() > kKeptTokens) {
    last_tokens_.erase(last_tokens_.begin(), last_tokens_.end() - static_cast<ptrdiff_t>(kKeptTokens));
  }
  text_->Append(commit.tokens);
  SetBudget(commit.budget);
}

absl::StatusOr<TextTranslation::Told> TextTranslation::OnCommit(const Commit& commit) {
  if (lost_ || commit.epoch < epoch_ || (commit.epoch == epoch_ && commit.commit_no <= commit_no_))
    return Told();
  if (absl::Status fits = CheckCommit(commit); !fits.ok()) {
    lost_ = true;
    return fits;
  }
  Move(commit);
  const TokenIds& tokens = text_->tokens();
  const bool extends = tokens.size() > inner_tokens_.size() &&
                       std::equal(inner_tokens_.begin(), inner_tokens_.end(), tokens.begin());
  if (!extends) return InnerOpen();
  // A fresh root: what lies below it comes again, as it is to be translated again.
  inner_tree_.Clear();
  texts_.clear();
  Commit inner{
      .epoch = inner_epoch_,
      .commit_no = ++inner_commit_no_,
      .tokens = TokenIds(tokens.begin() + static_cast<ptrdiff_t>(inner_tokens_.size()), tokens.end()),
      .committed_len = static_cast<uint32_t>(tokens.size()),
      .prefix_hash = ExtendPrefixHash(kEmptyPrefixHash, tokens),
      .budget = InnerBudget()};
  inner_tokens_ = tokens;
  return inner;
}

// Whether the DraftSession has no more to say.
bool TextTranslation::Follow(const Grow& grow) {
  if (grow.epoch != inner_epoch_ || grow.seen_commit != inner_commit_no_) return false;
  for (size_t i = 0; i < grow.parents.size(); ++i) {
    const NodeId id = grow.first_id + static_cast<NodeId>(i);
    if (!inner_tree_.IsKnownParent(grow.parents[i])) continue;
    texts_.emplace(id, TextOf(grow.parents[i], grow.tokens[i]));
    inner_tree_.Add(id, grow.parents[i], grow.tokens[i], grow.scores[i]);
  }
  return grow.exhausted;
}

TextTranslation::PathText TextTranslation::TextOf(NodeId parent, TokenId token) const {
  PathText path;
  if (parent != 0) path = texts_.at(parent);
  if (path.ended) {
    path.end_token.reset();  // Nothing comes behind it.
    return path;
  }
  if (bridge_.draft().IsSpecial(token) || !bridge_.draft().HasToken(token)) {
    path.ended = true;
    path.end_token = bridge_.SpecialToTarget(token);
  } else {
    const absl::string_view bytes = bridge_.draft().TokenBytes(token);
    path.text.append(bytes.data(), bytes.size());
  }
  return path;
}

// How likely the path is up to the node that makes the text's first `end` bytes whole.
float TextTranslation::ScoreUpTo(absl::Span<const NodeId> path, size_t end) const {
  for (const NodeId id : path) {
    if (texts_.at(id).text.size() >= end) return inner_tree_.Find(id)->path_score;
  }
  return inner_tree_.Find(path.back())->path_score;
}

// The node with this token below `parent`, new or old; 0 where there is no room for one.
NodeId TextTranslation::AddNode(NodeId parent, TokenId token, float score) {
  if (const TreeNode* const known = tree_.FindChild(parent, token); known != nullptr) return known->id;
  const TreeNode* const above = tree_.Find(parent);
  const uint32_t depth = above == nullptr ? 1 : above->depth + 1;
  if (depth > max_depth_ || tree_.size() >= max_nodes_) return 0;
  announced_.push_back(tree_.Add(next_id_++, parent, token, score));
  return announced_.back().id;
}

void TextTranslation::Announce(NodeId leaf, bool is_final) {
  const PathText& path_text = texts_.at(leaf);
  is_final = is_final || path_text.ended;
  absl::string_view text = path_text.text;
  const absl::string_view pending = text_->pending();
  if (text.substr(0, pending.size()) != pending) return;
  text.remove_prefix(pending.size());
  text = text.substr(0, WholeCharacters(text));
  // More text may make other tokens of the last word.
  const size_t last_word = text.find_last_of(" \t\n");
  const size_t sure = is_final ? text.size() : last_word == absl::string_view::npos ? 0 : last_word;
  if (sure == 0 && !path_text.end_token.has_value()) return;

  const std::vector<NodeId> path = inner_tree_.Path(leaf);
  constexpr float kLeast = std::numeric_limits<float>::min();
  NodeId at = 0;
  float above = 1.0f;
  size_t end = 0;
  const auto add = [&](TokenId token, float path_score) {
    at = AddNode(at, token, std::clamp(path_score / above, kLeast, 1.0f));
    above = std::max(path_score, kLeast);
    return at != 0;
  };
  for (const TextBridge::PlacedToken& token : bridge_.ToTarget(last_tokens_, text)) {
    if (token.end > sure || !add(token.token, ScoreUpTo(path, token.end + pending.size()))) return;
    end = token.end;
  }
  if (end == text.size() && path_text.end_token.has_value()) {
    add(*path_text.end_token, inner_tree_.Find(leaf)->path_score);
  }
}

std::vector<Grow> TextTranslation::OnGrowth(absl::Span<const Grow> growth) {
  if (lost_) return {};
  const size_t num_old = inner_tree_.size();
  bool exhausted = false;
  for (const Grow& grow : growth) exhausted = Follow(grow) || exhausted;
  absl::flat_hash_set<NodeId> parents;
  for (const TreeNode& node : inner_tree_.nodes()) parents.insert(node.parent);
  const absl::Span<const TreeNode> nodes = inner_tree_.nodes();
  for (size_t i = exhausted ? 0 : num_old; i < nodes.size(); ++i) {
    if (!parents.contains(nodes[i].id)) Announce(nodes[i].id, exhausted);
  }
  return TakeMessages(exhausted);
}

std::vector<Grow> TextTranslation::TakeMessages(bool exhausted) {
  std::vector<Grow> messages;
  const bool says_exhausted = exhausted && !said_exhausted_;
  if (announced_.empty() && !says_exhausted) return messages;
  said_exhausted_ = said_exhausted_ || exhausted;
  size_t first = 0;
  do {
    const size_t end = std::min(announced_.size(), first + kMaxGrowNodes);
    Grow grow{.epoch = epoch_,
              .seen_commit = commit_no_,
              .prefix_hash = prefix_hash_,
              .first_id = first < end ? announced_[first].id : next_id_,
              .exhausted = exhausted && end == announced_.size()};
    for (; first < end; ++first) {
      grow.parents.push_back(announced_[first].parent);
      grow.tokens.push_back(announced_[first].token);
      grow.scores.push_back(announced_[first].score);
    }
    messages.push_back(std::move(grow));
  } while (first < announced_.size());
  announced_.clear();
  return messages;
}

}  // namespace tandem
