#include "bench/serve/report.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"

namespace tandem::bench {
namespace {

constexpr size_t kBarCells = 16;

// Length in characters, which are all one column wide here.
size_t Width(absl::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

// A bar of eighths of a cell; `share` in [0, 1].
std::string Bar(double share) {
  constexpr std::array<absl::string_view, 8> kEighths = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto eighths =
      static_cast<size_t>(std::lround(std::clamp(share, 0.0, 1.0) * static_cast<double>(8 * kBarCells)));
  std::string bar;
  for (size_t i = 0; i < eighths / 8; ++i) bar += "█";
  absl::StrAppend(&bar, kEighths[eighths % 8]);
  return bar;
}

struct Column {
  absl::string_view title;
  bool left = false;
  std::vector<std::string> cells;
};

std::string Milliseconds(double seconds) {
  return absl::StrFormat(seconds < 0.01 ? "%.2f" : "%.1f", 1e3 * seconds);
}

std::string FormatTable(const std::vector<Column>& columns) {
  std::string text;
  const size_t num_rows = columns.front().cells.size();
  for (size_t row = 0; row <= num_rows; ++row) {
    std::string line = " ";
    for (const Column& column : columns) {
      size_t width = Width(column.title);
      for (const std::string& cell : column.cells) width = std::max(width, Width(cell));
      const absl::string_view cell = row == 0 ? column.title : absl::string_view(column.cells[row - 1]);
      const std::string blanks(width - Width(cell), ' ');
      absl::StrAppend(&line, " ", column.left ? cell : blanks, column.left ? blanks : cell, " ");
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

std::string FormatSection(const Experiment& experiment, absl::Span<const Summary> rows) {
  double most = 0.0;
  for (const Summary& row : rows) most = std::max(most, row.speed_up.median);
  std::vector<Column> columns = {{"configuration", true},
                                 {"tokens/s"},
                                 {"a stream"},
                                 {"speed-up"},
                                 {"quartiles", true},
                                 {"", true},
                                 {"first"},
                                 {"token p50"},
                                 {"p90"},
                                 {"p99"},
                                 {"request"},
                                 {"accepted"},
                                 {"drafter"},
                                 {"local"},
                                 {"hits"},
                                 {"errors"}};
  for (const Summary& row : rows) {
    const bool drafted = row.drafted_rounds > 0;
    const bool compared = row.speed_up.count > 0;
    const std::string cells[] = {
        experiment.configurations[row.configuration].label,
        absl::StrFormat("%.1f", row.tokens_per_second),
        absl::StrFormat("%.1f", row.stream_tokens_per_second),
        compared ? absl::StrFormat("%.2fx", row.speed_up.median) : "-",
        row.configuration == experiment.baseline ? "baseline"
        : compared ? absl::StrFormat("%.2f - %.2f", row.speed_up.low, row.speed_up.high)
                   : "",
        compared && most > 0.0 ? Bar(row.speed_up.median / most) : "",
        Milliseconds(row.first_token_seconds.median),
        Milliseconds(row.token_gap_p50),
        Milliseconds(row.token_gap_p90),
        Milliseconds(row.token_gap_p99),
        Milliseconds(row.latency_p50),
        row.by_drafter.draft_tokens > 0 ? absl::StrFormat("%.1f %%", 100.0 * row.by_drafter.acceptance_rate())
                                        : "-",
        drafted ? absl::StrFormat("%+.2f", row.EarnedPerRound(row.by_drafter)) : "-",
        drafted ? absl::StrFormat("%+.2f", row.EarnedPerRound(row.by_local)) : "-",
        drafted ? absl::StrFormat("%.0f %%", 100.0 * static_cast<double>(row.hits) /
                                                 static_cast<double>(row.drafted_rounds))
                : "-",
        row.errors == 0 ? "" : absl::StrCat(row.errors)};
    for (size_t i = 0; i < columns.size(); ++i) columns[i].cells.push_back(cells[i]);
  }
  const auto without_errors = [](const Column& column) {
    return column.title == "errors" && std::all_of(column.cells.begin(), column.cells.end(),
                                                   [](const std::string& cell) { return cell.empty(); });
  };
  columns.erase(std::remove_if(columns.begin(), columns.end(), without_errors), columns.end());
  return FormatTable(columns);
}

// What went wrong with one configuration, all its sections together.
std::string FormatTroubles(absl::string_view label, uint32_t configuration,
                           const std::vector<Summary>& summaries) {
  uint32_t requests = 0, errors = 0, lost = 0;
  std::string first_error;
  for (const Summary& summary : summaries) {
    if (summary.configuration != configuration) continue;
    requests += summary.requests;
    errors += summary.errors;
    lost += summary.drafter_lost;
    if (first_error.empty()) first_error = summary.first_error;
  }
  std::string text;
  if (errors > 0) {
    absl::StrAppend(&text, "ERRORS     ", label, ": ", errors, " of ", requests,
                    " requests, the first: ", first_error, "\n");
  }
  if (lost > 0) {
    absl::StrAppend(&text, "LOST       ", label, ": ", lost, " of ", requests,
                    " requests lost their drafter and continued without one\n");
  }
  return text;
}

bool SameSection(const Summary& a, const Summary& b) {
  return a.dataset == b.dataset && a.temperature == b.temperature && a.load == b.load;
}

}  // namespace

nlohmann::json IsSimulated(const std::vector<ServerDescription>& servers) {
  if (servers.empty()) return nullptr;
  return std::any_of(servers.begin(), servers.end(),
                     [](const ServerDescription& server) { return !server.info.simulated_pace().empty(); });
}

std::string FormatSummaries(const Experiment& experiment, const std::vector<Summary>& summaries,
                            const std::vector<ServerDescription>& servers) {
  std::string text;
  for (size_t begin = 0, end = 0; begin < summaries.size(); begin = end) {
    while (end < summaries.size() && SameSection(summaries[begin], summaries[end])) ++end;
    const Summary& first = summaries[begin];
    absl::StrAppend(&text, "\n", first.dataset, ", temperature ", first.temperature, ", ",
                    experiment.loads[first.load].Label(), ", ", first.requests, " requests each, medians of ",
                    first.ratios.size(), " interleaved turns\n\n",
                    FormatSection(experiment, absl::MakeConstSpan(summaries).subspan(begin, end - begin)));
  }
  absl::StrAppend(
      &text, "\nspeed-up   over \"", experiment.configurations[experiment.baseline].label,
      "\" in the same turn: of tokens/s, or at a given rate of requests of the mean latency\n",
      "times      milliseconds at the client: to the first token, between tokens, for a whole request "
      "(p50)\n",
      "accepted   of the drafter's tokens verified\n",
      "drafter    its accepted tokens per round, without the target's own one; local: those that the "
      "verifier guessed\n",
      "hits       drafted rounds that did not wait for the drafter\n");
  for (const ServerDescription& server : servers) {
    if (server.info.simulated_pace().empty()) continue;
    absl::StrAppend(&text, "SIMULATED  forward passes of ", server.name, " last ",
                    server.info.simulated_pace(), "\n");
  }
  for (uint32_t i = 0; i < experiment.configurations.size(); ++i) {
    absl::StrAppend(&text, FormatTroubles(experiment.configurations[i].label, i, summaries));
  }
  return text;
}

std::string FormatMismatches(const Experiment& experiment, const std::vector<Mismatch>& mismatches) {
  std::string text;
  for (const Mismatch& mismatch : mismatches) {
    const Prompt& prompt = experiment.prompts[mismatch.prompt];
    const Sampling& sampling = experiment.samplings[mismatch.sampling];
    absl::StrAppend(&text, "outputs differ: ", prompt.dataset, ", ", prompt.label, ", temperature ",
                    sampling.temperature, ", seed ", sampling.seed, ": \"",
                    experiment.configurations[mismatch.configuration].label, "\" from \"",
                    experiment.configurations[mismatch.reference].label, "\" at token ", mismatch.position,
                    "\n");
  }
  return text;
}

}  // namespace tandem::bench
