#include "common/speculation/node_choice.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <tuple>

#include "common/base/node_index.h"

namespace tandem {
namespace {

struct Entry {
  bool wanted = false;  // A probe: before all others.
  double path_score = 0.0;
  uint32_t session = 0;
  uint32_t index = 0;
};

void AddEntries(const ChoiceSession& session, uint32_t session_index, std::vector<Entry>* entries) {
  const size_t first = entries->size();
  for (uint32_t i = 0; i < session.nodes.size(); ++i) {
    const RoundNode& node = session.nodes[i];
    assert(node.parent == kRootNode || node.parent < i);
    const double above = node.parent == kRootNode ? 1.0 : (*entries)[first + node.parent].path_score;
    // Not a number counts as impossible.
    const double path_score = node.path_score > 0.0f ? std::min(double{node.path_score}, above) : 0.0;
    entries->push_back({.path_score = path_score, .session = session_index, .index = i});
  }
}

// By worth; equals in order of sessions and indices, which keeps parents before their children.
bool Before(const Entry& a, const Entry& b) {
  if (a.wanted != b.wanted) return a.wanted;
  if (a.path_score != b.path_score) return a.path_score > b.path_score;
  return std::tie(a.session, a.index) < std::tie(b.session, b.index);
}

double SecondsOf(const ChoiceCosts& costs, size_t num_nodes, uint32_t prompt_rows) {
  const auto rows = static_cast<uint32_t>(std::max<size_t>(costs.fixed_rows + num_nodes + prompt_rows, 1));
  return std::max(costs.round_time->Seconds(rows, costs.context), costs.hidden_draft_seconds) +
         costs.exposed_seconds;
}

}  // namespace

NodeChoice ChooseNodes(absl::Span<const ChoiceSession> sessions, const ChoiceCosts& costs) {
  std::vector<Entry> all;
  size_t num_candidates = 0;
  for (const ChoiceSession& session : sessions) num_candidates += session.nodes.size();
  all.reserve(num_candidates);
  size_t num_wanted = 0;
  for (uint32_t s = 0; s < sessions.size(); ++s) {
    const size_t first = all.size();
    AddEntries(sessions[s], s, &all);
    if (!sessions[s].probe.has_value()) continue;
    all[first + *sessions[s].probe].wanted = true;
    ++num_wanted;
  }
  std::sort(all.begin(), all.end(), Before);
  if (all.size() > costs.most_nodes) all.resize(costs.most_nodes);
  num_wanted = std::min(num_wanted, all.size());

  NodeChoice choice{.nodes = std::vector<std::vector<uint32_t>>(sessions.size())};
  // expected[n]: tokens with the n best candidates.
  std::vector<double> expected = {costs.fixed_tokens};
  expected.reserve(all.size() + 1);
  for (const Entry& entry : all) expected.push_back(expected.back() + entry.path_score);
  // The count from num_wanted on with the greatest worth; the least of equals.
  const auto best = [&](const auto& worth) {
    size_t best_count = num_wanted;
    double best_worth = worth(num_wanted);
    for (size_t count = num_wanted + 1; count <= all.size(); ++count) {
      const double its_worth = worth(count);
      if (!(its_worth > best_worth)) continue;
      best_count = count;
      best_worth = its_worth;
    }
    return best_count;
  };
  const auto rate = [&](size_t count) {
    const double seconds = SecondsOf(costs, count, /*prompt_rows=*/0);
    return seconds > 0.0 ? expected[count] / seconds : expected[count];
  };
  size_t best_count = best(rate);
  if (costs.prompt_rows > 0) {
    const double best_rate = rate(best_count);
    best_count = best([&](size_t count) {
      return expected[count] - best_rate * SecondsOf(costs, count, costs.prompt_rows);
    });
  }
  choice.expected_tokens = expected[best_count];
  choice.seconds = SecondsOf(costs, best_count, costs.prompt_rows);
  for (size_t s = 0; s < sessions.size(); ++s) choice.nodes[s].reserve(sessions[s].nodes.size());
  for (size_t i = 0; i < best_count; ++i) choice.nodes[all[i].session].push_back(all[i].index);
  for (std::vector<uint32_t>& nodes : choice.nodes) std::sort(nodes.begin(), nodes.end());
  return choice;
}

}  // namespace tandem
