#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/drafting/blended_source.h"

namespace tandem {

// A trie of token sequences from a tenant's outputs, with a count for each branch (Lookahead, Zhao et al.,
// 2024). Bounded: when it is full, it halves all counts and drops branches whose count reaches 0, until it
// is half empty. So it forgets what has not occurred for long.
class LearnedTrie {
 public:
  using NodeIndex = uint32_t;
  static constexpr NodeIndex kRoot = 0;

  // `max_nodes` at least 2.
  explicit LearnedTrie(uint32_t max_nodes);

  // The child of a node, created if it is missing; increments its count. nullopt if the trie was full and was
  // just pruned: older indices are void, and `generation` has changed.
  std::optional<NodeIndex> Take(NodeIndex node, TokenId token);
  std::optional<NodeIndex> Child(NodeIndex node, TokenId token) const;
  // The kMaxContinuations most recently added continuations.
  std::vector<Continuation> Continuations(NodeIndex node) const;

  uint64_t generation() const { return generation_; }
  size_t num_nodes() const { return nodes_.size(); }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Node {
    TokenId token = 0;
    uint32_t count = 0;
    NodeIndex parent = kRoot;
    NodeIndex first_child = kNone;
    NodeIndex next_sibling = kNone;
  };
  static uint64_t Key(NodeIndex node, TokenId token) {
    return uint64_t{node} << 32 | static_cast<uint32_t>(token);
  }
  NodeIndex Add(NodeIndex parent, TokenId token, uint32_t count);
  void ThinOut();

  const uint32_t max_nodes_;
  std::vector<Node> nodes_;  // A parent before its children.
  absl::flat_hash_map<uint64_t, NodeIndex> children_;
  uint64_t generation_ = 0;
};

// The tries of all tenants, by cache salt (which separates tenants) and vocabulary. When there are too
// many, the store drops the least recently used trie; sessions that use it keep it alive.
class TrieStore {
 public:
  struct Options {
    uint32_t max_nodes = 65536;  // Of each.
    uint32_t max_tenants = 64;
  };
  explicit TrieStore(const Options& options) : options_(options) {}

  std::shared_ptr<LearnedTrie> ForTenant(uint64_t salt, uint64_t vocabulary_fingerprint);
  // The tenant's trie if there is one, otherwise an empty one that is not stored, so that this never drops
  // another trie.
  std::shared_ptr<LearnedTrie> Peek(uint64_t salt, uint64_t vocabulary_fingerprint) const;
  size_t num_tenants() const { return tries_.size(); }

 private:
  struct Entry {
    std::shared_ptr<LearnedTrie> trie;
    uint64_t last_used = 0;
  };
  const Options options_;
  std::map<std::pair<uint64_t, uint64_t>, Entry> tries_;
  uint64_t uses_ = 0;
};

// The index for BlendedSource that finds contexts of a session's text in the tenant's trie. Adds the
// session's output to the trie, unless told not to.
class TrieIndex {
 public:
  struct Options {
    uint32_t max_context = 4;  // Tokens looked up.
    uint32_t branch = 16;      // Tokens of a branch, the context included.
  };
  struct Context {
    uint32_t match_length = 0;
    LearnedTrie::NodeIndex node = LearnedTrie::kRoot;
  };

  TrieIndex(const Options& options, std::shared_ptr<LearnedTrie> trie, bool teaches = true)
      : options_(options), trie_(std::move(trie)), teaches_(teaches) {}

  void Clear();
  void Append(TokenId token, bool is_output);
  std::vector<Context> Contexts() const;
  std::vector<Continuation> Continuations(const Context& context) const {
    return trie_->Continuations(context.node);
  }
  std::optional<Context> After(const Context& context, TokenId token) const;

 private:
  Options options_;
  std::shared_ptr<LearnedTrie> trie_;
  bool teaches_;
  std::deque<TokenId> recent_;
  std::vector<LearnedTrie::NodeIndex> open_;  // The ends of branches that still grow, oldest first.
  uint64_t generation_ = 0;                   // Of the trie when they were taken.
};

}  // namespace tandem
