#pragma once

#include "router/drafters/choice/throughput.h"

namespace tandem::router {

// Theorem 3 of On-the-fly adaptation, extended to windows whose rounds also differ in time. An answer of L
// tokens takes n = L / tokens rounds, and with L / rho = window * n drafted tokens the time of Theorem 2, b n
// + a L / rho. The other drafter gives a higher throughput if its fewer rounds save more time than its
// drafting adds:
//
//   b1 n1 - b2 n2 > (a2 / rho2 - a1 / rho1) L
//
// `draft_seconds` is a, of one level.
struct DraftPlan {
  WindowForecast forecast;
  double verify_seconds = 0.0;
  double draft_seconds = 0.0;
};

inline bool OtherDrafterPays(const DraftPlan& one, const DraftPlan& other, double answer_tokens) {
  const auto verifying = [answer_tokens](const DraftPlan& plan) {
    return plan.verify_seconds * answer_tokens / plan.forecast.tokens;
  };
  // a / rho, where rho, of the tokens drafted, are those the answer is made of: tokens / window.
  const auto drafting = [](const DraftPlan& plan) {
    return plan.draft_seconds * plan.forecast.window / plan.forecast.tokens;
  };
  return verifying(one) - verifying(other) > (drafting(other) - drafting(one)) * answer_tokens;
}

}  // namespace tandem::router
