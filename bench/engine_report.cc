#include "bench/engine_report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/engine/kv_type.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

using Json = nlohmann::json;

std::string ModelName(const EngineBenchOptions& options) {
  return options.model.folder.empty() ? absl::StrCat(options.model.shape, " (random weights)")
                                      : options.model.folder;
}

Json PeakJson(const PeakRate& peak) {
  return {{"name", peak.name}, {"operations_per_second", peak.operations_per_second}};
}

Json PassJson(const PassResult& pass) {
  return {{"rows", pass.rows},
          {"weight_bytes", pass.work.weight_bytes},
          {"kv_bytes", pass.work.kv_bytes},
          {"operations", pass.work.operations},
          {"read_bytes_per_second", pass.read_bytes_per_second},
          {"floor_seconds", pass.floor_seconds},
          {"repetitions", pass.repetitions},
          {"fastest_seconds", pass.seconds.fastest},
          {"lower_quartile_seconds", pass.seconds.lower_quartile},
          {"median_seconds", pass.seconds.median},
          {"upper_quartile_seconds", pass.seconds.upper_quartile},
          {"share_of_floor", pass.floor_seconds / pass.seconds.median}};
}

}  // namespace

std::string EngineBenchTable(const EngineBenchOptions& options, const EngineBenchResult& result) {
  std::string text = absl::StrFormat("%s, %.1f million parameters, weights %s, keys and values %s\n",
                                     ModelName(options), 1e-6 * static_cast<double>(result.num_parameters),
                                     WeightDtypeName(options.weight_dtype), KvTypeName(options.kv_type));
  for (const EngineBenchRun& run : result.runs) {
    absl::StrAppendFormat(&text, "\n%s kernels, %d thread%s, ", run.kernels, run.threads,
                          run.threads == 1 ? "" : "s");
    if (run.context == 0) {
      absl::StrAppend(&text, "prefill");
    } else {
      absl::StrAppendFormat(&text, "%s tree below a context of %u", RowTreeName(options.tree), run.context);
    }
    absl::StrAppendFormat(&text, "; peak %s %.1f Gop/s (", run.peak.name,
                          1e-9 * run.peak.operations_per_second);
    for (size_t i = 0; i < run.peaks.size(); ++i) {
      absl::StrAppendFormat(&text, "%s%s %.0f", i == 0 ? "" : ", ", run.peaks[i].name,
                            1e-9 * run.peaks[i].operations_per_second);
    }
    absl::StrAppendFormat(&text, ")\n%6s %10s %9s %10s %8s %10s %10s %9s %10s\n", "rows", "MB", "GB/s", "Mop",
                          "floor ms", "median ms", "spread", "to first", "of floor");
    for (const PassResult& pass : run.passes) {
      const TimeSpread& seconds = pass.seconds;
      absl::StrAppendFormat(
          &text, "%6u %10.1f %9.1f %10.0f %8.3f %10.3f %9.1f%% %8.2fx %9.0f%%\n", pass.rows,
          1e-6 * static_cast<double>(pass.work.bytes()), 1e-9 * pass.read_bytes_per_second,
          1e-6 * static_cast<double>(pass.work.operations), 1e3 * pass.floor_seconds, 1e3 * seconds.median,
          100.0 * (seconds.upper_quartile - seconds.lower_quartile) / seconds.median,
          seconds.median / run.passes.front().seconds.median, 100.0 * pass.floor_seconds / seconds.median);
    }
  }
  return text;
}

std::string EngineBenchJson(const EngineBenchOptions& options, const EngineBenchResult& result) {
  Json json = {{"model", options.model.folder.empty() ? options.model.shape : options.model.folder},
               {"random_weights", options.model.folder.empty()},
               {"num_parameters", result.num_parameters},
               {"model_bytes", result.model_bytes},
               {"weight_dtype", std::string(WeightDtypeName(options.weight_dtype))},
               {"kv_type", std::string(KvTypeName(options.kv_type))},
               {"tree", std::string(RowTreeName(options.tree))},
               {"runs", Json::array()}};
  for (const EngineBenchRun& run : result.runs) {
    Json entry = {{"threads", run.threads},     {"kernels", run.kernels}, {"context", run.context},
                  {"peak", PeakJson(run.peak)}, {"peaks", Json::array()}, {"passes", Json::array()}};
    entry["kind"] = run.context == 0 ? "prefill" : "tree";
    for (const PeakRate& peak : run.peaks) entry["peaks"].push_back(PeakJson(peak));
    for (const PassResult& pass : run.passes) entry["passes"].push_back(PassJson(pass));
    json["runs"].push_back(std::move(entry));
  }
  return json.dump(2);
}

}  // namespace tandem
