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
// A window of 0 has reward 0. The action is the best known one (the smallest of equals). While fewer than
// `warmup_prompts` prompts were learned from, which is the paper's warm-up (appendix D.1), it is a random one
// with probability `exploration`; `seed` decides both. A round that wanted drafts and got none is ignored.
//
// `learned` (QLearningState): the state of earlier sessions. Content that cannot be read, or that these
// options cannot produce, counts as not learned. The exported state continues from it.
std::unique_ptr<WindowPolicy> MakeQLearningPolicy(const QLearningOptions& options, uint64_t seed,
                                                  absl::string_view learned = {});

}  // namespace tandem
