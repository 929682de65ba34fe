#pragma once

#include <cstdint>
#include <vector>

#include "common/speculation/acceptance_estimate.h"

namespace tandem {

// What can be set of each window policy, by its name. The defaults are those of the sources that the
// policies' own headers name.

struct FixedOptions {
  uint32_t depth = 0;  // 0: the largest that the limits allow.
};

struct FsmOptions {
  uint32_t initial_depth = UINT32_MAX;  // Above the largest window: the largest.
};

struct QLearningOptions {
  double learning_rate = 0.3;  // In (0, 1].
  double discount = 0.5;       // Of the next round's value, in [0, 1).
  double exploration = 0.1;    // Share of rounds that try a random window, in [0, 1],
  // in sessions that begin with what fewer prompts have taught; later ones do what is best known.
  uint32_t warmup_prompts = 25;
  // Of windows not tried yet. With the largest possible, 1 / (1 - discount), all are tried soon.
  double initial_value = 1.0;
  uint32_t initial_depth = 3;
};

struct EmaTiersOptions {
  std::vector<uint32_t> candidate_steps = {1, 3, 7};  // Increasing, at least one.
  double ema_alpha = 0.2;
  uint32_t update_interval = 5;
  uint32_t warmup_batches = 10;
  double down_hysteresis = -0.25;
  double up_hysteresis = 0.0;
  uint32_t initial_steps = 3;  // The nearest candidate is the first window.
};

struct GoodputOptions {
  // Rounds that a session's own acceptance is remembered over (time constant of its decay).
  double history = 24.0;
  // How many trials at each level the drafter's record over all sessions counts for.
  double prior_trials = 2.0;
};

struct SpecDecOptions {
  // Drafting for a round stops when some token was rejected with more than this probability, in (0, 1).
  double threshold = 0.7;
};

struct WindowPolicyOptions {
  FixedOptions fixed;
  AcceptanceEstimate::Options analytic;
  FsmOptions fsm;
  FsmOptions cached_fsm;
  QLearningOptions qlearning;
  EmaTiersOptions ema_tiers;
  GoodputOptions goodput;
  SpecDecOptions specdec;
};

}  // namespace tandem
