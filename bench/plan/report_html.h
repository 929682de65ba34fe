#pragma once

#include <string>

#include "bench/plan/plan.h"
#include "bench/plan/sweep.h"
#include "nlohmann/json.hpp"

namespace tandem::plan {

// All that came out, for programs.
nlohmann::json PlanJson(const Plan& plan, const PlanOutcome& outcome);

// The same for people: one HTML file that needs no other, with plots drawn as SVG. Well-formed XML, too.
std::string PlanHtml(const Plan& plan, const PlanOutcome& outcome);

// A table of the candidates as text.
std::string PlanTable(const Plan& plan, const PlanOutcome& outcome);

}  // namespace tandem::plan
