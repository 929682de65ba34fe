#include "bench/plan/step_times.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/engine/paced_engine.h"
#include "common/model/config/json_fields.h"
#include "common/model/config/strict_json.h"

namespace tandem::plan {
namespace {

using Json = nlohmann::json;

// As in the verifier's warm-up (verifier/process/warm_up.cc).
constexpr uint32_t kWarmUpRows[] = {1, 2, 4, 8, 16, 32, 64};
constexpr uint32_t kWarmUpContexts[] = {64, 512};

constexpr int32_t kMostRows = 1 << 20;
constexpr double kLongestStep = 3600.0;

// The list in a field of an object.
absl::StatusOr<const Json*> ListIn(const Json& object, absl::string_view name, absl::string_view path) {
  const JsonFields fields(object, path);
  const Json* const list = fields.Find(name);
  if (list == nullptr || !list->is_array() || list->empty()) {
    return fields.Unexpected(name, "a list with at least one entry, as tandem-bench engine --json writes it");
  }
  return list;
}

struct EngineRun {
  int32_t threads = 0;
  int32_t context = 0;
  std::map<uint32_t, double> seconds;  // By rows.
};

absl::StatusOr<EngineRun> ReadRun(const Json& json, absl::string_view path) {
  if (!json.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": found ", PrintableValue(json), ", expected a run"));
  }
  const JsonFields fields(json, path);
  EngineRun run;
  TANDEM_ASSIGN_OR_RETURN(run.threads, fields.RequiredInt("threads", 1, 4096));
  TANDEM_ASSIGN_OR_RETURN(run.context, fields.RequiredInt("context", 0, INT32_MAX));
  TANDEM_ASSIGN_OR_RETURN(const Json* const passes, ListIn(json, "passes", path));
  for (size_t i = 0; i < passes->size(); ++i) {
    const std::string where = absl::StrCat(path, ": passes[", i, "]");
    const Json& pass = (*passes)[i];
    if (!pass.is_object()) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": found ", PrintableValue(pass), ", expected a pass"));
    }
    const JsonFields pass_fields(pass, where);
    TANDEM_ASSIGN_OR_RETURN(const int32_t rows, pass_fields.RequiredInt("rows", 1, kMostRows));
    TANDEM_ASSIGN_OR_RETURN(const std::optional<double> seconds,
                            pass_fields.Number("median_seconds", 0.0, kLongestStep));
    if (!seconds.has_value()) return pass_fields.Unexpected("median_seconds", "the seconds of a pass");
    run.seconds[static_cast<uint32_t>(rows)] = *seconds;
  }
  return run;
}

}  // namespace

absl::StatusOr<StepTimes> StepTimes::OfPace(absl::string_view text) {
  TANDEM_ASSIGN_OR_RETURN(const Pace pace, ParsePace(text));
  const auto point = [&](uint32_t rows) {
    return RoundTimeModel::Point{.rows = rows, .seconds = absl::ToDoubleSeconds(pace.StepTime(rows))};
  };
  return StepTimes({point(1), point(2)});
}

absl::StatusOr<StepTimes> StepTimes::OfEngineReport(absl::string_view json, absl::string_view path,
                                                    uint32_t threads, double factor) {
  TANDEM_ASSIGN_OR_RETURN(const Json report, ParseStrictJson(json, path));
  if (!report.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": found ", PrintableValue(report), ", expected an object"));
  }
  TANDEM_ASSIGN_OR_RETURN(const Json* const list, ListIn(report, "runs", path));
  std::vector<EngineRun> runs;
  for (size_t i = 0; i < list->size(); ++i) {
    TANDEM_ASSIGN_OR_RETURN(runs.emplace_back(), ReadRun((*list)[i], absl::StrCat(path, ": runs[", i, "]")));
  }
  auto wanted = static_cast<int32_t>(threads);
  if (threads == 0) {
    for (const EngineRun& run : runs) wanted = std::max(wanted, run.threads);
  }
  std::erase_if(runs, [wanted](const EngineRun& run) { return run.threads != wanted; });
  if (runs.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": no run has ", threads, " threads"));
  }
  std::vector<RoundTimeModel::Point> grid;
  std::vector<int32_t> contexts;
  for (const EngineRun& run : runs) {
    if (std::find(contexts.begin(), contexts.end(), run.context) != contexts.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": two runs of ", wanted, " threads have the context ", run.context));
    }
    contexts.push_back(run.context);
    for (const auto& [rows, seconds] : run.seconds) {
      if (!runs.front().seconds.contains(rows) || run.seconds.size() != runs.front().seconds.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat(path, ": the runs have passes of different numbers of rows, expected the same"));
      }
      grid.push_back(
          {.rows = rows, .seconds = seconds * factor, .context = static_cast<uint32_t>(run.context)});
    }
  }
  return StepTimes(grid);
}

RoundTimeModel StepTimes::AsMeasured() const {
  std::vector<RoundTimeModel::Point> grid;
  for (const uint32_t context : kWarmUpContexts) {
    for (const uint32_t rows : kWarmUpRows) {
      // From steps that take no time, the verifier could not tell what is worth a row.
      const double seconds = std::max(grid_.Uncorrected(rows, context), 1e-9);
      grid.push_back({.rows = rows, .seconds = seconds, .context = context});
    }
  }
  return RoundTimeModel(grid);
}

}  // namespace tandem::plan
