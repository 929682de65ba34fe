#pragma once

#include <cstdint>
#include <memory>

#include "absl/strings/string_view.h"
#include "common/speculation/policies/window_policy.h"

namespace tandem {

// A Q-learning agent (On-the-fly adaptation, method 4, algorithm 2). The state is the window of the last
// round, the action is the next window, the reward r the share of the drafted levels that was accepted:
//
//   Q(s, a) <- Q(s, a) + learning_rate * (r + discount * max_a' Q(a, a') - Q(s, a))
//
// A window of 0 has reward 0. Actions are the best known (the smallest of equals), but a random one with
// probability `exploration` while fewer than `warmup_prompts` prompts were learned from, as many as the paper
// (appendix D.1) takes before it measures; `seed` decides both whether and which. A round that wanted drafts
// and got none teaches nothing.
//
// `learned` (QLearningState) is what earlier sessions have come to. What cannot be read, or lies outside of
// what these options can lead to, counts as not learned; the exported state goes on from it.
std::unique_ptr<WindowPolicy> MakeQLearningPolicy(const QLearningOptions& options, uint64_t seed,
                                                  absl::string_view learned = {});

}  // namespace tandem
