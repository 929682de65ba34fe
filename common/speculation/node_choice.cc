#include "common/speculation/node_choice.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <tuple>

namespace tandem {
namespace {

struct Entry {
  bool wanted = false;  // A probe: before all others.
  double path_probability = 0.0;
  uint32_t session = 0;
  uint32_t index = 0;
};

std::vector<Entry> EntriesOf(const ChoiceSession& session, uint32_t session_index) {
  std::vector<Entry> entries;
  entries.reserve(session.candidates.size());
  for (uint32_t i = 0; i < session.candidates.size(); ++i) {
    const ChoiceNode& node = session.candidates[i];
    assert(node.parent == ChoiceNode::kRoot || node.parent < i);
    const double above = node.parent == ChoiceNode::kRoot ? 1.0 : entries[node.parent].path_probability;
    // Not a number counts as impossible.
    const double probability = node.probability > 0.0 ? std::min(node.probability, 1.0) : 0.0;
    entries.push_back({.path_probability = above * probability, .session = session_index, .index = i});
  }
  return entries;
}

// By worth; equals in order of sessions and indices, which keeps parents before their children.
bool Before(const Entry& a, const Entry& b) {
  if (a.wanted != b.wanted) return a.wanted;
  if (a.path_probability != b.path_probability) return a.path_probability > b.path_probability;
  return std::tie(a.session, a.index) < std::tie(b.session, b.index);
}

double SecondsOf(const ChoiceCosts& costs, size_t num_nodes) {
  const auto rows = static_cast<uint32_t>(std::max<size_t>(costs.fixed_rows + num_nodes, 1));
  return std::max(costs.round_time->Seconds(rows, costs.context), costs.hidden_draft_seconds) +
         costs.exposed_seconds;
}

}  // namespace

NodeChoice ChooseNodes(absl::Span<const ChoiceSession> sessions, const ChoiceCosts& costs) {
  std::vector<Entry> all;
  size_t num_wanted = 0;
  for (uint32_t s = 0; s < sessions.size(); ++s) {
    std::vector<Entry> entries = EntriesOf(sessions[s], s);
    std::sort(entries.begin(), entries.end(), Before);
    if (entries.size() > sessions[s].most_nodes) entries.resize(sessions[s].most_nodes);
    if (sessions[s].probe && !entries.empty()) {
      entries.front().wanted = true;
      ++num_wanted;
    }
    all.insert(all.end(), entries.begin(), entries.end());
  }
  std::sort(all.begin(), all.end(), Before);
  if (all.size() > costs.most_nodes) all.resize(costs.most_nodes);
  num_wanted = std::min(num_wanted, all.size());

  NodeChoice choice{.nodes = std::vector<std::vector<uint32_t>>(sessions.size())};
  double tokens = costs.fixed_tokens;
  double best_rate = -1.0;
  size_t best_count = 0;
  for (size_t count = 0; count <= all.size(); ++count) {
    if (count > 0) tokens += all[count - 1].path_probability;
    if (count < num_wanted) continue;
    const double seconds = SecondsOf(costs, count);
    const double rate = seconds > 0.0 ? tokens / seconds : tokens;
    if (rate <= best_rate) continue;
    best_rate = rate;
    best_count = count;
    choice.expected_tokens = tokens;
    choice.seconds = seconds;
  }
  for (size_t i = 0; i < best_count; ++i) choice.nodes[all[i].session].push_back(all[i].index);
  for (std::vector<uint32_t>& nodes : choice.nodes) std::sort(nodes.begin(), nodes.end());
  return choice;
}

}  // namespace tandem
