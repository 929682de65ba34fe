#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "bench/serve/serve_options.h"
#include "bench/serve/summary.h"
#include "nlohmann/json.hpp"
#include "tandem/v1/admin.pb.h"

namespace tandem::bench {

// A server's description of itself.
struct ServerDescription {
  std::string name;
  v1::ServerInfo info;
};

// Whether figures come from slowed-down engines: "true", "false", or "null" if no server was asked.
nlohmann::json IsSimulated(const std::vector<ServerDescription>& servers);

// A table for each dataset, temperature and load. It has one line per configuration, with its speed-up, the
// quartiles of the pairs and a bar, and explains the figures below, with notes on simulated engines and on
// errors.
std::string FormatSummaries(const Experiment& experiment, const std::vector<Summary>& summaries,
                            const std::vector<ServerDescription>& servers);

// One line for each mismatch, with the prompt.
std::string FormatMismatches(const Experiment& experiment, const std::vector<Mismatch>& mismatches);

// Describes the processor, its cores and those that this process may use, memory, system and compiler.
nlohmann::json DescribeMachine();

// Everything: settings, machine, servers, summaries and every request.
nlohmann::json ReportJson(const ServeOptions& options, const Experiment& experiment,
                          const std::vector<Summary>& summaries, const std::vector<Mismatch>& mismatches,
                          const std::vector<ServerDescription>& servers);

}  // namespace tandem::bench
