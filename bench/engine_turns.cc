#include "bench/engine_turns.h"

#include <algorithm>
#include <istream>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

using Json = nlohmann::json;

constexpr uint32_t kMostRuns = 1000;
constexpr uint32_t kMostTokens = 1 << 20;

absl::StatusOr<uint32_t> Number(const Json& line, const char* name, uint32_t most) {
  const auto found = line.find(name);
  if (found == line.end() || !found->is_number_unsigned() || found->get<uint64_t>() > most) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": expected a number up to ", most));
  }
  return found->get<uint32_t>();
}

absl::StatusOr<TokenIds> Tokens(const Json& line, const char* name) {
  const auto found = line.find(name);
  if (found == line.end() || !found->is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": expected a list of token ids"));
  }
  TokenIds tokens;
  for (const Json& token : *found) {
    if (!token.is_number_unsigned() || token.get<uint64_t>() > uint64_t{INT32_MAX}) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": expected a list of token ids"));
    }
    tokens.push_back(token.get<TokenId>());
  }
  return tokens;
}

class Turns {
 public:
  Turns(std::unique_ptr<EngineRunner> runner, MachineFloor floor)
      : runner_(std::move(runner)), floor_(std::move(floor)) {}

  absl::StatusOr<Json> Answer(const std::string& text) {
    const Json line = Json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false);
    if (!line.is_object()) return absl::InvalidArgumentError("expected one JSON object a line");
    const auto run = line.find("run");
    if (run == line.end() || !run->is_string()) return UnknownRun();
    if (*run == "step") return Step(line);
    if (*run == "prefill") return Prefill(line);
    if (*run == "greedy") return Greedy(line);
    return UnknownRun();
  }

 private:
  static absl::Status UnknownRun() {
    return absl::InvalidArgumentError("run: expected step, prefill or greedy");
  }

  absl::StatusOr<Json> Step(const Json& line) {
    TANDEM_ASSIGN_OR_RETURN(const uint32_t rows, Number(line, "rows", kMostTokens));
    return Repeat(
        line, [&] { return runner_->TreeStep(rows); },
        [&] { return std::vector<StepWork>{runner_->TreeWork(rows)}; });
  }

  absl::StatusOr<Json> Prefill(const Json& line) {
    TANDEM_ASSIGN_OR_RETURN(const uint32_t tokens, Number(line, "tokens", kMostTokens));
    return Repeat(
        line, [&] { return runner_->Prefill(tokens); }, [&] { return runner_->PrefillWork(tokens); });
  }

  // The work is asked for after the runs have refused sizes out of range.
  absl::StatusOr<Json> Repeat(const Json& line, absl::FunctionRef<absl::StatusOr<double>()> run,
                              absl::FunctionRef<std::vector<StepWork>()> works) {
    TANDEM_ASSIGN_OR_RETURN(const uint32_t count, Number(line, "count", kMostRuns));
    Json seconds = Json::array();
    for (uint32_t i = 0; i < count; ++i) {
      TANDEM_ASSIGN_OR_RETURN(const double taken, run());
      seconds.push_back(taken);
    }
    double floor_seconds = 0.0;
    if (count > 0) {
      for (const StepWork& work : works()) {
        TANDEM_ASSIGN_OR_RETURN(const double seconds_of_pass, floor_.Seconds(work));
        floor_seconds += seconds_of_pass;
      }
    }
    return Json{{"seconds", seconds}, {"floor_seconds", floor_seconds}};
  }

  absl::StatusOr<Json> Greedy(const Json& line) {
    TANDEM_ASSIGN_OR_RETURN(const TokenIds prompt, Tokens(line, "prompt"));
    TANDEM_ASSIGN_OR_RETURN(const uint32_t num_tokens, Number(line, "tokens", kMostTokens));
    TANDEM_ASSIGN_OR_RETURN(const TokenIds tokens, runner_->Greedy(prompt, num_tokens));
    return Json{{"tokens", tokens}};
  }

  std::unique_ptr<EngineRunner> runner_;
  MachineFloor floor_;
};

}  // namespace

absl::Status RunEngineTurns(const EngineBenchOptions& options, std::istream& in, std::ostream& out) {
  if (options.threads.size() != 1 || options.contexts.size() != 1) {
    return absl::InvalidArgumentError("turns: expected one number of threads and one context");
  }
  TANDEM_ASSIGN_OR_RETURN(const KernelTable* kernels, SelectKernels(options.instruction_set));
  EngineRunner::Options runner_options;
  runner_options.threads = options.threads[0];
  runner_options.instruction_set = options.instruction_set;
  runner_options.weight_dtype = options.weight_dtype;
  runner_options.kv_type = options.kv_type;
  runner_options.tree = options.tree;
  runner_options.most_rows =
      options.rows.empty() ? 1 : *std::max_element(options.rows.begin(), options.rows.end());
  runner_options.most_context = std::max(options.prefill, options.contexts[0]);
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<const Model> model, LoadModel(options.model));
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<EngineRunner> runner, EngineRunner::Create(model, runner_options));
  model.reset();
  TANDEM_RETURN_IF_ERROR(runner->SetContext(options.contexts[0]));
  TANDEM_ASSIGN_OR_RETURN(MachineFloor floor,
                          MachineFloor::Create(options.threads[0], kernels->name, options.weight_dtype));
  Turns turns(std::move(runner), std::move(floor));
  const std::string detail =
      absl::StrCat(kernels->name, " kernels, ", std::string(WeightDtypeName(options.weight_dtype)));
  out << Json{{"ready", true}, {"name", "tandem"}, {"detail", detail}}.dump() << std::endl;
  for (std::string text; std::getline(in, text);) {
    const absl::StatusOr<Json> answer = turns.Answer(text);
    const Json line = answer.ok() ? *answer : Json{{"error", std::string(answer.status().message())}};
    out << line.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
  }
  return absl::OkStatus();
}

}  // namespace tandem
