#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace tandem {

// Measures on live traffic how many tokens per second speculation gains (DESIGN law 6). Now and then the
// whole batch decodes plainly for a block of steps: drafters rest, and the verifier guesses nothing by
// itself. What the block commits per second is compared with the drafted steps since the last block. So
// whatever speculation costs is seen: rows, waits, messages, and a drafter that takes the verifier's cores.
//
//   settle, drafted ... drafted | settle, block of plain steps | settle, drafted ...
//           `------- compared with ------------'
//
// The gain is the ratio of all tokens per cost of the last blocks' drafted steps to that of their plain
// steps, not a mean of ratios, so that a few steps of copied text count for what they are. Its interval is
// that of such a ratio, from how much blocks differ (the delta method).
//
// Steps are grouped by drafter and by load, and a block counts only if all its steps are of one group. Tokens
// are per cost: a round's time divided by the time that the same batch took without trees at warm-up, so that
// steps whose contexts differ are comparable.
//
// What blocks lose is bounded: a group pays for its blocks from a share of the cost of its steps.
class ControlGroup {
 public:
  struct Options {
    double share = 0.01;          // Of the cost of all steps, what blocks may lose; 0: there are no blocks.
    uint32_t block_steps = 12;    // Measured steps of a block.
    uint32_t settling_steps = 4;  // After a switch either way, which show effects of what was before.
    uint32_t least_drafted = 64;  // Drafted steps of a group before a block.
    double certain = 0.02;        // With a narrower interval, blocks get a quarter of the share.
  };
  ControlGroup() : ControlGroup(Options{}) {}
  explicit ControlGroup(const Options& options) : options_(options) {}

  // Whether the next step drafts nothing.
  bool plain() const { return plain_; }

  // The gain in tokens per second: 1.5 is half as many again. With 95 % confidence it is in [low, high].
  struct Estimate {
    std::string drafter;  // Empty: nobody but the verifier guessed. kSeveral: not all had the same drafter.
    uint32_t load = 0;    // The fewest requests a step that count as this load: 1, 2, 4, 8, ...
    double speedup = 1.0;
    double low = 0.0;
    double high = 0.0;
    uint32_t blocks = 0;
  };
  static constexpr absl::string_view kSeveral = "several";

  // A round of the current step: who drafts for its session, the tokens that it committed, and its cost.
  void Add(absl::string_view drafter, double tokens, double cost);
  // Ends a step of `load` requests. Returns the estimate of a group that has a new one. A step without rounds
  // is left out, so that blocks go on over the ends of short requests. One that must not be plain (`counts`)
  // ends a block.
  std::optional<Estimate> EndStep(uint32_t load, bool counts = true);

  // Steps that were plain, and what they lost so far as a share of the cost of all steps.
  uint64_t plain_steps() const { return plain_steps_; }
  double lost_share() const { return cost_ > 0.0 ? lost_ / cost_ : 0.0; }

 private:
  static constexpr size_t kMaxGroups = 64;
  // Blocks that an estimate is made of: the last ones.
  static constexpr size_t kMaxBlocks = 32;
  static constexpr size_t kLeastBlocks = 3;
  // A block is thought to lose at least this share of its cost, so that equal ways are not compared all the
  // time.
  static constexpr double kLeastLoss = 0.02;

  struct Rate {
    double tokens = 0.0;
    double cost = 0.0;
    double value() const { return cost > 0.0 ? tokens / cost : 0.0; }
    Rate& operator+=(const Rate& other) {
      tokens += other.tokens;
      cost += other.cost;
      return *this;
    }
  };
  // A block, and the drafted steps since the block before.
  struct Block {
    Rate drafted;
    Rate plain;
  };
  using Key = std::pair<std::string, uint32_t>;  // Drafter and load.
  struct Group {
    Rate drafted;  // Since the last block.
    uint64_t drafted_steps = 0;
    std::deque<Block> blocks;
    std::optional<Estimate> estimate;  // From these; none while they are too few.
    double credit = 0.0;               // Cost that its steps have saved up for blocks.
    uint64_t seen = 0;
  };
  struct Step {
    std::optional<std::string> drafter;  // None: it has no rounds.
    Rate sum;
  };

  Group& GroupOf(const Key& key);
  void ObserveDrafted(Group& group, const Rate& step);
  std::optional<Estimate> ObservePlain(const Key& key, Group& group, const Rate& step);
  // Takes what the step lost, compared with drafted ones, from what the group has saved up.
  void Charge(Group& group, const Rate& step);
  void Switch(bool plain);
  static std::optional<Estimate> EstimateOf(const Key& key, const std::deque<Block>& blocks);

  const Options options_;
  std::map<Key, Group> groups_;
  Step step_;
  Key block_of_;  // The group that the current block is for.
  Rate block_;
  bool plain_ = false;
  uint32_t steps_ = 0;  // Since the last switch.
  double cost_ = 0.0;
  double lost_ = 0.0;
  uint64_t plain_steps_ = 0;
  uint64_t num_steps_ = 0;
};

}  // namespace tandem
