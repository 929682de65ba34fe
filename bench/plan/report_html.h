#pragma once

#include <string>

#include "bench/plan/plan.h"
#include "bench/plan/sweep.h"
#include "nlohmann/json.hpp"

namespace tandem::plan {

// All results, for programs.
nlohmann::json PlanJson(const Plan& plan, const PlanOutcome& outcome);

// The results for people: one HTML file that needs no other, with plots as SVG. It is also well-formed XML.
std::string PlanHtml(const Plan& plan, const PlanOutcome& outcome);

// A table of the candidates as text.
std::string PlanTable(const Plan& plan, const PlanOutcome& outcome);

}  // namespace tandem::plan
