#pragma once

#include <memory>
#include <utility>

#include "bench/plan/plan.h"

namespace tandem::plan {

// A verifier, one tenant with one kind of text, and no drafter. Only steps take time.
inline Plan OneVerifierPlan() {
  Plan plan;
  plan.traffic.kinds = {"story"};
  plan.traffic.tenants = {{.name = "a",
                           .kinds = {{"story", 1.0}},
                           .prompt = {.mean = 60.0, .deviation = 20.0},
                           .output = {.mean = 40.0},
                           .max_queued_requests = 100'000}};
  plan.traffic.rates = {{0.0, 10.0}};
  plan.layout.verifiers.step = *StepTimes::OfPace("10+0.1");
  plan.layout.max_concurrent_requests = 1'000'000;
  plan.acceptance = std::make_shared<AcceptanceBook>();
  return plan;
}

// The same with a drafter whose first guess is right at 7 of 10 positions.
inline Plan DraftedPlan() {
  Plan plan = OneVerifierPlan();
  auto book = std::make_shared<AcceptanceBook>();
  book->Add("story", "small", *Acceptance::OfRates({0.7, 0.1, 0.05}));
  plan.acceptance = std::move(book);
  plan.layout.drafters = {{.name = "small", .step = *StepTimes::OfPace("1")}};
  plan.layout.choice = DrafterChoice::kPinned;
  plan.layout.pinned = "small";
  return plan;
}

// Two drafters, each good at one of two kinds of text. The router chooses.
inline Plan TwoDrafterPlan() {
  Plan plan = OneVerifierPlan();
  plan.traffic.kinds = {"verse", "code"};
  plan.traffic.tenants = {{.name = "a",
                           .kinds = {{"verse", 1.0}, {"code", 1.0}},
                           .prompt = {.mean = 80.0, .deviation = 40.0},
                           .output = {.mean = 60.0, .deviation = 20.0},
                           .max_queued_requests = 100'000}};
  auto book = std::make_shared<AcceptanceBook>();
  book->Add("verse", "poet", *Acceptance::OfRates({0.8, 0.05}));
  book->Add("code", "poet", *Acceptance::OfRates({0.3, 0.1}));
  book->Add("verse", "coder", *Acceptance::OfRates({0.3, 0.1}));
  book->Add("code", "coder", *Acceptance::OfRates({0.8, 0.05}));
  plan.acceptance = std::move(book);
  plan.layout.verifiers.count = 2;
  plan.layout.drafters = {{.name = "poet", .step = *StepTimes::OfPace("1")},
                          {.name = "coder", .step = *StepTimes::OfPace("1")}};
  return plan;
}

}  // namespace tandem::plan
