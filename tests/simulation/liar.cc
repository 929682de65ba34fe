#include "tests/simulation/liar.h"

#include <cmath>
#include <iterator>
#include <limits>
#include <utility>
#include <variant>

namespace tandem::simulation {

void Liar::Observe(const DraftRequest& request) {
  Known& known = known_[request.session];
  if (const auto* open = std::get_if<OpenSession>(&request.event)) {
    known = {.epoch = open->epoch, .commit_no = open->commit_no, .prefix_hash = open->prefix_hash};
  } else if (const auto* commit = std::get_if<Commit>(&request.event)) {
    known.commit_no = commit->commit_no;
    known.prefix_hash = commit->prefix_hash;
  }
}

TokenId Liar::AnyToken() {
  switch (random_.Between(0, 5)) {
    case 0:
      return -1;
    case 1:
      return vocab_size_;
    case 2:
      return std::numeric_limits<TokenId>::max();
    default:
      return static_cast<TokenId>(random_.Between(0, static_cast<uint32_t>(vocab_size_ - 1)));
  }
}

void Liar::DamageGrow(Grow* grow) {
  if (grow->parents.empty()) {
    grow->exhausted = false;
    return;
  }
  const size_t at = random_.Next() % grow->parents.size();
  switch (random_.Between(well_formed_ ? 9 : 0, 14)) {
    case 0:
      grow->tokens[at] = AnyToken();
      grow->scores[at] = 1.0f;  // So that it would be verified.
      break;
    case 1:
      grow->scores[at] = std::numeric_limits<float>::quiet_NaN();
      break;
    case 2:
      grow->scores[at] = static_cast<float>(random_.Uniform() * 4.0 - 1.0);
      break;
    case 3:
      grow->parents[at] = static_cast<NodeId>(random_.Next());
      break;
    case 4:
      grow->parents[at] = 0;
      break;
    case 5:
      grow->first_id = static_cast<NodeId>(random_.Next());
      break;
    case 6:
      grow->seen_commit += random_.Between(1, 3);
      break;
    case 7:  // A cycle: its own parent, or its child's child.
      grow->parents[at] = grow->first_id + static_cast<NodeId>(at + random_.Between(0, 1));
      break;
    case 8:  // Below a node that nobody was told of.
      grow->first_id += 10;
      grow->parents[0] = grow->first_id - random_.Between(1, 9);
      break;
    case 9:
      grow->prefix_hash ^= 1;
      break;
    case 10:
      grow->epoch += random_.Chance(0.5) ? 1 : UINT32_MAX;
      break;
    case 11:
      if (!well_formed_) grow->scores.pop_back();
      break;
    case 12:
      grow->exhausted = !grow->exhausted;
      break;
    case 13:  // Of nodes that there are or are not, and no probability at times.
      grow->predictions.push_back({.node = random_.Between(0, grow->first_id + 10),
                                   .acceptance = static_cast<float>(random_.Uniform() * 1.2 - 0.1)});
      break;
    default:
      // Well-formed and wrong, which is not against the protocol.
      for (TokenId& token : grow->tokens) token = (token + 1) % vocab_size_;
      break;
  }
}

void Liar::Damage(DraftResponse* response) {
  if (!random_.Chance(0.2)) return;
  if (random_.Chance(0.1)) response->session += random_.Between(1, 3);
  if (auto* grow = std::get_if<Grow>(&response->event); grow != nullptr) DamageGrow(grow);
}

Grow Liar::InventGrow(Known* known) {
  Grow grow{.epoch = known->epoch,
            .seen_commit = known->commit_no,
            .prefix_hash = known->prefix_hash,
            .first_id = known->next_id,
            .exhausted = random_.Chance(0.3),
            .step_seconds = static_cast<float>(random_.Uniform() * 2.0 - 0.5)};
  const uint32_t count = random_.Chance(0.002) ? 1'000'000
                         : random_.Chance(0.1) ? kMaxGrowNodes + 1
                                               : random_.Between(1, 40);
  for (uint32_t i = 0; i < count; ++i) {
    grow.parents.push_back(i == 0 || random_.Chance(0.2) ? 0 : grow.first_id + i - 1);
    grow.tokens.push_back(static_cast<TokenId>(random_.Between(0, static_cast<uint32_t>(vocab_size_ - 1))));
    grow.scores.push_back(random_.Chance(0.5) ? 1.0f : std::numeric_limits<float>::denorm_min());
  }
  known->next_id += count;
  return grow;
}

std::vector<DraftResponse> Liar::Invent() {
  std::vector<DraftResponse> invented;
  while (!known_.empty() && random_.Chance(0.2)) {
    auto at = std::next(known_.begin(), static_cast<ptrdiff_t>(random_.Next() % known_.size()));
    const SessionId session = random_.Chance(0.9) ? at->first : random_.Between(0, 20);
    switch (random_.Between(0, well_formed_ ? 3 : 10)) {
      case 0:
        invented.push_back(
            {session, SessionOpened{.epoch = at->second.epoch, .predicts_acceptance = random_.Chance(0.5)}});
        if (random_.Chance(0.3)) {
          FeatureNeeds needs{.final_norm = random_.Chance(0.5), .first_position = random_.Between(0, 200)};
          while (random_.Chance(0.6)) needs.layers.push_back(random_.Between(0, well_formed_ ? 3 : 12));
          std::get<SessionOpened>(invented.back().event).features = std::move(needs);
        }
        break;
      case 1:
        invented.push_back({session, ResyncNeeded{.epoch = at->second.epoch, .reason = "because"}});
        break;
      case 2:
        invented.push_back(
            {session, SessionRefused{.epoch = at->second.epoch, .status = absl::UnavailableError("no")}});
        break;
      case 3:
        invented.push_back(
            {session, FeaturesUsed{.epoch = at->second.epoch,
                                   .position = random_.Chance(0.1) ? UINT32_MAX : random_.Between(0, 300)}});
        break;
      default:
        invented.push_back({session, InventGrow(&at->second)});
        break;
    }
    Damage(&invented.back());
  }
  return invented;
}

}  // namespace tandem::simulation
