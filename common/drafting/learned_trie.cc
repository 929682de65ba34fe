#include "common/drafting/learned_trie.h"

#include <algorithm>
#include <cassert>

namespace tandem {

LearnedTrie::LearnedTrie(uint32_t max_nodes) : max_nodes_(max_nodes), nodes_(1) {
  assert(max_nodes >= 2);
}

std::optional<LearnedTrie::NodeIndex> LearnedTrie::Child(NodeIndex node, TokenId token) const {
  const auto child = children_.find(Key(node, token));
  if (child == children_.end()) return std::nullopt;
  return child->second;
}

LearnedTrie::NodeIndex LearnedTrie::Add(NodeIndex parent, TokenId token, uint32_t count) {
  const auto index = static_cast<NodeIndex>(nodes_.size());
  nodes_.push_back(
      {.token = token, .count = count, .parent = parent, .next_sibling = nodes_[parent].first_child});
  nodes_[parent].first_child = index;
  children_.emplace(Key(parent, token), index);
  return index;
}

std::optional<LearnedTrie::NodeIndex> LearnedTrie::Take(NodeIndex node, TokenId token) {
  if (const std::optional<NodeIndex> known = Child(node, token); known.has_value()) {
    if (nodes_[*known].count < UINT32_MAX) ++nodes_[*known].count;
    return known;
  }
  if (nodes_.size() >= max_nodes_) {
    ThinOut();
    return std::nullopt;
  }
  return Add(node, token, 1);
}

// A parent is taken at least as often as each child, so that whole branches go. Each pass halves the counts,
// and the passes end at the latest when all are 0.
void LearnedTrie::ThinOut() {
  ++generation_;
  while (nodes_.size() > std::max<size_t>(1, max_nodes_ / 2)) {
    const std::vector<Node> old = std::exchange(nodes_, std::vector<Node>(1));
    children_.clear();
    std::vector<NodeIndex> places(old.size(), kNone);
    places[kRoot] = kRoot;
    for (NodeIndex i = 1; i < old.size(); ++i) {
      const NodeIndex parent = places[old[i].parent];
      if (parent != kNone && old[i].count / 2 > 0) places[i] = Add(parent, old[i].token, old[i].count / 2);
    }
  }
}

std::vector<Continuation> LearnedTrie::Continuations(NodeIndex node) const {
  std::vector<Continuation> continuations;
  for (NodeIndex child = nodes_[node].first_child; child != kNone && continuations.size() < kMaxContinuations;
       child = nodes_[child].next_sibling) {
    continuations.push_back({.token = nodes_[child].token, .count = nodes_[child].count});
  }
  return continuations;
}

std::shared_ptr<LearnedTrie> TrieStore::ForTenant(uint64_t salt, uint64_t vocabulary_fingerprint) {
  const std::pair key(salt, vocabulary_fingerprint);
  if (!tries_.contains(key) && tries_.size() >= options_.max_tenants) {
    tries_.erase(std::min_element(tries_.begin(), tries_.end(), [](const auto& a, const auto& b) {
      return a.second.last_used < b.second.last_used;
    }));
  }
  Entry& entry = tries_[key];
  if (entry.trie == nullptr) entry.trie = std::make_shared<LearnedTrie>(options_.max_nodes);
  entry.last_used = ++uses_;
  return entry.trie;
}

std::shared_ptr<LearnedTrie> TrieStore::Peek(uint64_t salt, uint64_t vocabulary_fingerprint) const {
  const auto found = tries_.find(std::pair(salt, vocabulary_fingerprint));
  return found != tries_.end() ? found->second.trie : std::make_shared<LearnedTrie>(2);
}

void TrieIndex::Clear() {
  recent_.clear();
  open_.clear();
}

void TrieIndex::Append(TokenId token, bool is_output) {
  recent_.push_back(token);
  if (recent_.size() > options_.max_context) recent_.pop_front();
  if (!is_output || !teaches_) return;
  if (generation_ != trie_->generation()) open_.clear();
  generation_ = trie_->generation();
  open_.push_back(LearnedTrie::kRoot);
  if (open_.size() > options_.branch) open_.erase(open_.begin());
  for (LearnedTrie::NodeIndex& end : open_) {
    const std::optional<LearnedTrie::NodeIndex> next = trie_->Take(end, token);
    if (!next.has_value()) {
      open_.clear();
      return;
    }
    end = *next;
  }
}

std::vector<TrieIndex::Context> TrieIndex::Contexts() const {
  std::vector<Context> contexts;
  for (size_t length = recent_.size(); length > 0 && contexts.size() < kMaxContexts; --length) {
    std::optional<LearnedTrie::NodeIndex> node = LearnedTrie::kRoot;
    for (size_t i = recent_.size() - length; i < recent_.size() && node.has_value(); ++i) {
      node = trie_->Child(*node, recent_[i]);
    }
    if (!node.has_value() || trie_->Continuations(*node).empty()) continue;
    contexts.push_back({.match_length = static_cast<uint32_t>(length), .node = *node});
  }
  return contexts;
}

std::optional<TrieIndex::Context> TrieIndex::After(const Context& context, TokenId token) const {
  const std::optional<LearnedTrie::NodeIndex> node = trie_->Child(context.node, token);
  if (!node.has_value()) return std::nullopt;
  return Context{.match_length = context.match_length + 1, .node = *node};
}

}  // namespace tandem
