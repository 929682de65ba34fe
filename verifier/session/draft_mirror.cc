#include "verifier/session/draft_mirror.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "common/base/node_index.h"
#include "common/speculation/rules/draft_distribution.h"

namespace tandem {
namespace {

// Growth that is older than this many commits is forgotten. A drafter so far behind drafts for nothing
// anyway.
constexpr size_t kRememberedCommits = 64;

// Draft distributions of parents whose own is known.
std::string FindRepetition(const Grow& grow, absl::FunctionRef<bool(NodeId)> is_told) {
  for (const DraftDistribution& distribution : grow.distributions) {
    if (!is_told(distribution.parent)) continue;
    return absl::StrCat("a second draft distribution of node ", distribution.parent,
                        ", after its first child");
  }
  return "";
}

}  // namespace

uint32_t DraftMirror::Open(uint32_t commit_no, uint64_t prefix_hash, bool sampled) {
  tree_.Clear();
  distributions_.clear();
  predictions_.clear();
  predicts_ = false;
  sampled_ = sampled;
  next_id_ = 1;
  exhausted_ = false;
  commits_.assign(1, {commit_no, prefix_hash});
  return ++epoch_;
}

std::string DraftMirror::FindViolation(const Grow& grow) const {
  const size_t count = grow.parents.size();
  if (grow.tokens.size() != count || grow.scores.size() != count) {
    return absl::StrCat("arrays of ", count, " parents, ", grow.tokens.size(), " tokens and ",
                        grow.scores.size(), " scores, expected equal lengths");
  }
  if ((count == 0 && !grow.exhausted && grow.predictions.empty()) || count > kMaxGrowNodes) {
    return absl::StrCat(count, " nodes in one message, expected 1 to ", kMaxGrowNodes,
                        ", or none when exhausted or with predictions");
  }
  if (grow.first_id == 0 || grow.first_id > UINT32_MAX - count) {
    return absl::StrCat("first id ", grow.first_id, ", expected 1 to ", UINT32_MAX - count);
  }
  if (grow.seen_commit > commits_.back().commit_no) {
    return absl::StrCat("commit ", grow.seen_commit, " was seen, but the last one sent is ",
                        commits_.back().commit_no);
  }
  for (size_t i = 0; i < count; ++i) {
    if (grow.tokens[i] < 0 || grow.tokens[i] >= vocab_size_) {
      return absl::StrCat("node ", grow.first_id + i, " has token ", grow.tokens[i], ", expected 0 to ",
                          vocab_size_ - 1);
    }
    if (!std::isfinite(grow.scores[i]) || grow.scores[i] <= 0.0f || grow.scores[i] > 1.0f) {
      return absl::StrCat("node ", grow.first_id + i, " has score ", grow.scores[i], ", expected (0, 1]");
    }
    if (grow.parents[i] >= grow.first_id + i) {
      return absl::StrCat("node ", grow.first_id + i, " has parent ", grow.parents[i],
                          ", expected an earlier node");
    }
  }
  for (const NodePrediction& prediction : grow.predictions) {
    if (prediction.node == 0 || prediction.node >= grow.first_id + count) {
      return absl::StrCat("a prediction for node ", prediction.node, ", which was never sent");
    }
    if (!std::isfinite(prediction.acceptance) || prediction.acceptance <= 0.0f ||
        prediction.acceptance > 1.0f) {
      return absl::StrCat("node ", prediction.node, " has a predicted acceptance of ", prediction.acceptance,
                          ", expected (0, 1]");
    }
  }
  return FindDistributionViolation(grow);
}

std::string DraftMirror::FindDistributionViolation(const Grow& grow) const {
  if (!sampled_ && !grow.distributions.empty()) {
    return absl::StrCat(grow.distributions.size(), " draft distributions, which were not requested");
  }
  absl::flat_hash_set<NodeId> parents;
  for (const DraftDistribution& distribution : grow.distributions) {
    if (!parents.insert(distribution.parent).second) {
      return absl::StrCat("node ", distribution.parent, " has two draft distributions");
    }
    if (std::string violation = tandem::FindViolation(distribution, vocab_size_); !violation.empty()) {
      return violation;
    }
  }
  return "";
}

const DraftDistribution* DraftMirror::TakeDistribution(const Grow& grow, NodeId parent,
                                                       std::vector<NodeId>* added) {
  const NodeId key = Canonical(parent);
  if (const auto known = distributions_.find(key); known != distributions_.end()) return known->second.get();
  // By the very same name: 0 may be the root of an older commit.
  const auto sent =
      std::find_if(grow.distributions.begin(), grow.distributions.end(),
                   [&](const DraftDistribution& distribution) { return distribution.parent == parent; });
  if (sent == grow.distributions.end()) return nullptr;
  added->push_back(key);
  return distributions_.emplace(key, std::make_shared<DraftDistribution>(*sent)).first->second.get();
}

std::string DraftMirror::JudgeDraw(const Grow& grow, uint32_t index, std::vector<NodeId>* added) {
  if (!sampled_) return "";
  const DraftDistribution* const distribution = TakeDistribution(grow, grow.parents[index], added);
  const NodeId id = grow.first_id + index;
  if (distribution == nullptr) {
    return absl::StrCat("node ", id, " is a child of ", grow.parents[index],
                        ", which has no draft distribution, although drafts are sampled");
  }
  if (std::find(distribution->tokens.begin(), distribution->tokens.end(), grow.tokens[index]) ==
      distribution->tokens.end()) {
    return absl::StrCat("node ", id, " has token ", grow.tokens[index],
                        ", which its parent's draft distribution does not have");
  }
  return "";
}

// What is left belongs to nodes of the tree, and to the root as it was a node.
void DraftMirror::PruneDistributions(NodeId new_root) {
  auto old = std::exchange(distributions_, {});
  for (auto& [id, distribution] : old) {
    if (id == new_root) {
      distributions_.emplace(0, std::move(distribution));
    } else if (tree_.Find(id) != nullptr) {
      distributions_.emplace(id, std::move(distribution));
    }
  }
}

std::vector<DrawGroup> DraftMirror::DrawsOf(absl::Span<const RoundNode> selected) const {
  std::vector<DrawGroup> groups;
  if (!sampled_ || selected.empty()) return groups;
  const auto index_of = [&](NodeId id) -> std::optional<uint32_t> {
    const auto at = std::lower_bound(selected.begin(), selected.end(), id,
                                     [](const RoundNode& node, NodeId wanted) { return node.id < wanted; });
    if (at == selected.end() || at->id != id) return std::nullopt;
    return static_cast<uint32_t>(at - selected.begin());
  };
  absl::flat_hash_map<NodeId, size_t> group_of;
  for (const TreeNode& node : tree_.nodes()) {
    if (node.parent != 0 && !index_of(node.parent).has_value()) continue;
    const auto [at, is_new] = group_of.try_emplace(node.parent, groups.size());
    if (is_new) {
      groups.push_back({.parent = index_of(node.parent).value_or(kRootNode),
                        .distribution = distributions_.at(node.parent)});
    }
    groups[at->second].children.push_back({.token = node.token, .node = index_of(node.id)});
  }
  for (DrawGroup& group : groups) {
    while (!group.children.empty() && !group.children.back().node.has_value()) group.children.pop_back();
  }
  std::erase_if(groups, [](const DrawGroup& group) { return group.children.empty(); });
  return groups;
}

DraftMirror::NodeFate DraftMirror::Judge(NodeId parent, TokenId token, bool current_commit) const {
  // Parent 0 is the root as the drafter knew it; after a newer commit that root is committed text.
  if (parent == 0 && !current_commit) return NodeFate::kStale;
  if (!tree_.IsKnownParent(parent)) return NodeFate::kStale;
  if (tree_.FindChild(parent, token) != nullptr) return NodeFate::kInvalid;
  const TreeNode* above = tree_.Find(parent);
  if (above != nullptr && above->depth >= kMaxTreeDepth) return NodeFate::kInvalid;
  if (tree_.size() >= kMaxTreeNodes) return NodeFate::kInvalid;
  return NodeFate::kAdd;
}

DraftMirror::GrowReport DraftMirror::OnGrow(const Grow& grow) {
  GrowReport report;
  const auto stale = [&] {
    report.result = GrowResult::kStale;
    report.stale = static_cast<uint32_t>(grow.parents.size());
    return report;
  };
  if (epoch_ == 0 || grow.epoch != epoch_) return stale();
  if (report.violation = FindViolation(grow); !report.violation.empty()) {
    report.result = GrowResult::kInvalid;
    return report;
  }
  const auto count = static_cast<uint32_t>(grow.parents.size());
  if (grow.first_id + count <= next_id_ && (count > 0 || grow.first_id < next_id_)) {
    report.result = GrowResult::kDuplicate;
    return report;
  }
  const auto invalid = [&](std::string why) {
    report = GrowReport{.result = GrowResult::kInvalid, .violation = std::move(why)};
    return report;
  };
  if (grow.first_id < next_id_) {
    return invalid(absl::StrCat("ids start again at ", grow.first_id, ", expected at least ", next_id_));
  }
  const auto seen = std::find_if(commits_.begin(), commits_.end(), [&](const KnownCommit& commit) {
    return commit.commit_no == grow.seen_commit;
  });
  if (seen == commits_.end()) {
    next_id_ = grow.first_id + count;
    return stale();
  }
  if (seen->prefix_hash != grow.prefix_hash) {
    report.result = GrowResult::kResyncNeeded;
    report.violation = absl::StrCat("the drafter's prefix at commit ", grow.seen_commit, " is not ours");
    return report;
  }
  const bool current_commit = grow.seen_commit == commits_.back().commit_no;
  const uint32_t size_before = tree_.size();
  std::vector<NodeId> new_distributions;
  const auto take_back = [&] {
    tree_.Truncate(size_before);
    for (NodeId parent : new_distributions) distributions_.erase(parent);
  };
  const auto is_told = [&](NodeId parent) {
    return (parent != 0 || current_commit) && distributions_.contains(Canonical(parent));
  };
  if (std::string violation = FindRepetition(grow, is_told); !violation.empty()) {
    return invalid(std::move(violation));
  }
  for (uint32_t i = 0; i < count; ++i) {
    const NodeId id = grow.first_id + i;
    if (grow.parents[i] >= next_id_ && grow.parents[i] < grow.first_id) {
      tree_.Truncate(size_before);
      return invalid(absl::StrCat("node ", id, " has parent ", grow.parents[i], ", which was never sent"));
    }
    switch (Judge(grow.parents[i], grow.tokens[i], current_commit)) {
      case NodeFate::kAdd:
        if (std::string violation = JudgeDraw(grow, i, &new_distributions); !violation.empty()) {
          take_back();
          return invalid(std::move(violation));
        }
        tree_.Add(id, grow.parents[i], grow.tokens[i], grow.scores[i]);
        ++report.added;
        break;
      case NodeFate::kStale:
        ++report.stale;
        break;
      case NodeFate::kInvalid:
        take_back();
        return invalid(absl::StrCat("node ", id, " repeats a token of its parent or grows the tree beyond ",
                                    kMaxTreeNodes, " nodes or ", kMaxTreeDepth, " levels"));
    }
  }
  next_id_ = grow.first_id + count;
  for (const NodePrediction& prediction : grow.predictions) {
    if (tree_.Find(prediction.node) != nullptr) predictions_[prediction.node] = prediction.acceptance;
  }
  if (current_commit) exhausted_ = grow.exhausted;
  return report;
}

RoundTree DraftMirror::Select(const Selection& limits, DraftOrigin origin, Worth worth) const {
  constexpr size_t kUsualNodes = 64;
  const absl::Span<const TreeNode> nodes = tree_.nodes();
  RoundTree tree;
  tree.Reserve(nodes.size());
  absl::InlinedVector<uint32_t, kUsualNodes> order;
  for (const TreeNode& node : nodes) {
    RoundNode own{.token = node.token,
                  .depth = node.depth,
                  .score = node.score,
                  .guesses = Guesses::Of(origin, node.score),
                  .id = node.id};
    if (node.depth > 1) own.parent = static_cast<uint32_t>(tree_.Find(node.parent) - nodes.data());
    if (node.depth <= limits.max_depth) {
      const float above = own.parent == kRootNode ? 1.0f : tree[own.parent].path_score;
      own.path_score = above * std::min(static_cast<float>(worth(node)), 1.0f);
      order.push_back(tree.size());
    }
    tree.Add(own);
  }
  // A path score is never above the parent's and indices grow downwards, so that in order of (score, index)
  // parents come before their children.
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return tree[a].path_score != tree[b].path_score ? tree[a].path_score > tree[b].path_score : a < b;
  });
  // Of the root and of every node: how many of its children are selected, and whether it is itself.
  absl::InlinedVector<uint32_t, kUsualNodes> num_children(nodes.size() + 1, 0);
  absl::InlinedVector<bool, kUsualNodes> is_selected(nodes.size() + 1, false);
  is_selected[0] = true;
  uint32_t num_selected = 0;
  for (const uint32_t index : order) {
    if (num_selected >= limits.max_nodes) break;
    const uint32_t above = PlaceAfterRoot(tree[index].parent);
    if (!is_selected[above] || num_children[above] >= limits.max_children) continue;
    ++num_children[above];
    is_selected[PlaceAfterRoot(index)] = true;
    ++num_selected;
  }
  tree.KeepIf([&](uint32_t index, const RoundNode&) { return is_selected[PlaceAfterRoot(index)]; });
  return tree;
}

uint32_t DraftMirror::depth() const {
  uint32_t deepest = 0;
  for (const TreeNode& node : tree_.nodes()) deepest = std::max(deepest, node.depth);
  return deepest;
}

std::optional<uint32_t> DraftMirror::StopDepth(double least) const {
  const absl::Span<const TreeNode> nodes = tree_.nodes();
  constexpr double kUnknown = -1.0;
  std::vector<double> reached(nodes.size(), kUnknown);
  std::vector<double> levels;  // Of the best node that is known.
  for (size_t i = 0; i < nodes.size(); ++i) {
    double value = nodes[i].score;
    if (predicts_) {
      const auto prediction = predictions_.find(nodes[i].id);
      if (prediction == predictions_.end()) continue;
      value = prediction->second;
    }
    const TreeNode* const parent = nodes[i].depth > 1 ? tree_.Find(nodes[i].parent) : nullptr;
    const double above = parent == nullptr ? 1.0 : reached[static_cast<size_t>(parent - nodes.data())];
    if (above == kUnknown) continue;
    reached[i] = above * value;
    levels.resize(std::max<size_t>(levels.size(), nodes[i].depth), kUnknown);
    levels[nodes[i].depth - 1] = std::max(levels[nodes[i].depth - 1], reached[i]);
  }
  for (size_t level = 0; level < levels.size(); ++level) {
    if (levels[level] != kUnknown && levels[level] < least) return static_cast<uint32_t>(level) + 1;
  }
  return std::nullopt;
}

std::optional<NodeId> DraftMirror::Commit(absl::Span<const TokenId> tokens, uint32_t commit_no,
                                          uint64_t prefix_hash) {
  commits_.push_back({commit_no, prefix_hash});
  if (commits_.size() > kRememberedCommits) commits_.pop_front();
  exhausted_ = false;
  NodeId at = 0;
  for (TokenId token : tokens) {
    const TreeNode* child = tree_.FindChild(at, token);
    if (child == nullptr) {
      tree_.Clear();
      distributions_.clear();
      predictions_.clear();
      return std::nullopt;
    }
    at = child->id;
  }
  tree_.Reroot(at);
  PruneDistributions(at);
  absl::erase_if(predictions_, [this](const auto& entry) { return tree_.Find(entry.first) == nullptr; });
  return at;
}

}  // namespace tandem
