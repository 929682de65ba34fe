#include "common/speculation/control_group.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <utility>

namespace tandem {
namespace {

// 97.5 % quantiles of Student's t, by degrees of freedom from 1.
constexpr std::array<double, 12> kQuantiles = {12.71, 4.30, 3.18, 2.78, 2.57, 2.45,
                                               2.36,  2.31, 2.26, 2.23, 2.20, 2.18};
constexpr double kFurtherQuantiles = 2.15;

}  // namespace

void ControlGroup::Add(absl::string_view drafter, double tokens, double cost) {
  if (!(cost > 0.0) || !std::isfinite(cost) || !(tokens >= 0.0)) return;
  if (!step_.drafter.has_value()) {
    step_.drafter = std::string(drafter);
  } else if (*step_.drafter != drafter) {
    step_.drafter = std::string(kSeveral);
  }
  step_.sum.tokens += tokens;
  step_.sum.cost += cost;
}

std::optional<ControlGroup::Estimate> ControlGroup::EndStep(uint32_t load, bool counts) {
  Step step = std::exchange(step_, {});
  if (options_.share <= 0.0) return std::nullopt;
  if (!counts) {
    // A block that is interrupted says nothing; what it has lost stays paid.
    if (plain_) Switch(false);
    return std::nullopt;
  }
  if (!step.drafter.has_value() || load == 0) return std::nullopt;
  ++num_steps_;
  ++steps_;
  cost_ += step.sum.cost;
  const Key key(*std::move(step.drafter), std::bit_floor(load));
  Group& group = GroupOf(key);
  group.seen = num_steps_;
  if (plain_) return ObservePlain(key, group, step.sum);
  ObserveDrafted(group, step.sum);
  const std::optional<Estimate>& known = group.estimate;
  const bool is_certain =
      known.has_value() && known->high - known->low < 2.0 * options_.certain * known->speedup;
  group.credit += options_.share * (is_certain ? 0.25 : 1.0) * step.sum.cost;
  if (group.drafted_steps < options_.least_drafted) return std::nullopt;
  const double gain = known.has_value() ? known->speedup : group.drafted.value();
  const double loss = std::max(1.0 - 1.0 / std::max(gain, 0.1), kLeastLoss) * step.sum.cost;
  const double block = loss * (options_.block_steps + options_.settling_steps);
  group.credit = std::min(group.credit, 2.0 * block);
  if (group.credit >= block && steps_ > options_.settling_steps) {
    block_of_ = key;
    Switch(true);
  }
  return std::nullopt;
}

ControlGroup::Group& ControlGroup::GroupOf(const Key& key) {
  if (const auto found = groups_.find(key); found != groups_.end()) return found->second;
  if (groups_.size() >= kMaxGroups) {
    groups_.erase(std::min_element(groups_.begin(), groups_.end(), [](const auto& a, const auto& b) {
      return a.second.seen < b.second.seen;
    }));
  }
  return groups_[key];
}

void ControlGroup::ObserveDrafted(Group& group, const Rate& step) {
  if (steps_ <= options_.settling_steps) {
    // Drafters that catch up after a block are on its account.
    if (plain_steps_ > 0) Charge(group, step);
    return;
  }
  group.drafted += step;
  ++group.drafted_steps;
}

std::optional<ControlGroup::Estimate> ControlGroup::ObservePlain(const Key& key, Group& group,
                                                                 const Rate& step) {
  ++plain_steps_;
  Charge(GroupOf(block_of_), step);
  if (key != block_of_) {
    Switch(false);
    return std::nullopt;
  }
  if (steps_ <= options_.settling_steps) return std::nullopt;
  block_ += step;
  if (steps_ < options_.settling_steps + options_.block_steps) return std::nullopt;
  if (block_.tokens > 0.0) {
    group.blocks.push_back({.drafted = group.drafted, .plain = block_});
    if (group.blocks.size() > kMaxBlocks) group.blocks.pop_front();
    group.estimate = EstimateOf(key, group.blocks);
  }
  group.drafted = {};
  group.drafted_steps = 0;
  Switch(false);
  return group.estimate;
}

void ControlGroup::Charge(Group& group, const Rate& step) {
  Rate drafted = group.drafted;
  if (!group.blocks.empty()) drafted += group.blocks.back().drafted;
  if (drafted.tokens <= 0.0) return;
  const double loss = std::max(step.cost - step.tokens / drafted.value(), 0.0);
  group.credit -= loss;
  lost_ += loss;
}

void ControlGroup::Switch(bool plain) {
  plain_ = plain;
  steps_ = 0;
  block_ = {};
}

std::optional<ControlGroup::Estimate> ControlGroup::EstimateOf(const Key& key,
                                                               const std::deque<Block>& blocks) {
  const size_t count = blocks.size();
  if (count < kLeastBlocks) return std::nullopt;
  Rate drafted;
  Rate plain;
  for (const Block& block : blocks) {
    drafted += block.drafted;
    plain += block.plain;
  }
  const double speedup = drafted.value() / plain.value();
  // Of the ratio's logarithm.
  double variance = 0.0;
  const auto n = static_cast<double>(count);
  for (const Block& block : blocks) {
    const double residual =
        n * ((block.drafted.tokens - drafted.value() * block.drafted.cost) / drafted.tokens -
             (block.plain.tokens - plain.value() * block.plain.cost) / plain.tokens);
    variance += residual * residual / (n * (n - 1.0));
  }
  const double quantile = count - 2 < kQuantiles.size() ? kQuantiles[count - 2] : kFurtherQuantiles;
  const double half = quantile * std::sqrt(variance);
  return Estimate{.drafter = key.first,
                  .load = key.second,
                  .speedup = speedup,
                  .low = speedup * std::exp(-half),
                  .high = speedup * std::exp(half),
                  .blocks = static_cast<uint32_t>(count)};
}

}  // namespace tandem
