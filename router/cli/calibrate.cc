#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "common/config/flags.h"
#include "common/config/sealed_bytes.h"
#include "router/cli/commands.h"
#include "router/cli/prompt_file.h"
#include "router/cli/prompt_input.h"

namespace tandem::cli {
namespace {

constexpr size_t kMaxPromptFileBytes = size_t{64} << 20;

// All drafters that the router knows, unless the command names some.
absl::StatusOr<std::vector<std::string>> DraftersOf(const CalibrateCommand& command, Client& client) {
  if (!command.drafters.empty()) return command.drafters;
  TANDEM_ASSIGN_OR_RETURN(const v1::ServerInfo info, client.GetServerInfo());
  std::vector<std::string> drafters;
  for (const v1::DrafterTarget& drafter : info.drafters()) drafters.push_back(drafter.name());
  if (drafters.empty()) return absl::FailedPreconditionError("the router has no drafters to calibrate");
  return drafters;
}

// Generates with the drafter pinned, and tells what it came to.
absl::StatusOr<v1::CalibrationOutcome> Try(const CalibrateCommand& command, const FilePrompt& prompt,
                                           const std::string& drafter, Client& client) {
  v1::GenerateRequest request = command.request;
  SetPrompt(prompt.text, prompt.chat, &request);
  request.mutable_speculation()->set_drafter(drafter);
  request.mutable_speculation()->set_mode(v1::SPECULATION_MODE_ON);
  v1::SpeculationStats stats;
  TANDEM_RETURN_IF_ERROR(client.Generate(request, [&stats](const v1::GenerateResponse& event) {
    if (event.has_finished()) stats = event.finished().speculation();
    return true;
  }));
  if (!stats.drafter_lost().empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("drafter \"", drafter, "\" was lost: ", stats.drafter_lost()));
  }
  v1::CalibrationOutcome outcome;
  outcome.set_drafter(drafter);
  const uint32_t trials = stats.drafter_accepted_tokens() + stats.drafter_rejections();
  outcome.set_trials(trials);
  if (trials > 0) outcome.set_acceptance(static_cast<double>(stats.drafter_accepted_tokens()) / trials);
  return outcome;
}

// Seconds, and how they compare with what was predicted, are those of the machines that served.
v1::LearnedRouting WithoutTimes(v1::LearnedRouting state) {
  for (v1::LearnedModel& model : *state.mutable_models()) {
    model.clear_verify_seconds();
    model.clear_plain_correction();
    for (v1::LearnedDrafter& drafter : *model.mutable_drafters()) {
      drafter.clear_exposed_level_seconds();
      drafter.clear_hidden_level_seconds();
      drafter.clear_correction();
    }
  }
  return state;
}

absl::Status Calibrate(const CalibrateCommand& command, Terminal& terminal, Interrupts& interrupts) {
  absl::StatusOr<std::string> content = ReadFile(command.prompts, kMaxPromptFileBytes);
  if (!content.ok()) return content.status();
  const absl::StatusOr<std::vector<FilePrompt>> prompts = ParsePrompts(*content);
  if (!prompts.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(command.prompts, ": ", prompts.status().message()));
  }
  Client client(command.connection, interrupts);
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> drafters, DraftersOf(command, client));
  v1::CalibrateRequest request;
  request.set_model(command.request.model());
  for (size_t i = 0; i < prompts->size(); ++i) {
    v1::CalibrationSample& sample = *request.add_samples();
    const FilePrompt& prompt = (*prompts)[i];
    if (prompt.chat) {
      v1::GenerateRequest with_prompt;
      SetPrompt(prompt.text, /*chat=*/true, &with_prompt);
      *sample.mutable_chat() = with_prompt.chat();
    } else {
      sample.set_text(prompt.text);
    }
    for (const std::string& drafter : drafters) {
      TANDEM_ASSIGN_OR_RETURN(*sample.add_outcomes(), Try(command, prompt, drafter, client));
    }
    if (terminal.out_is_terminal)
      terminal.err << "\rprompt " << i + 1 << " of " << prompts->size() << std::flush;
  }
  if (terminal.out_is_terminal) terminal.err << "\n";
  TANDEM_ASSIGN_OR_RETURN(const v1::CalibrateResponse response, client.Calibrate(request));
  terminal.out << absl::StrFormat("%d prompts, %d drafters\n", prompts->size(), drafters.size());
  for (const std::string& drafter : drafters) {
    // A prompt on which nothing was drafted tells no acceptance.
    double sum = 0.0;
    size_t tried = 0;
    for (const v1::CalibrationSample& sample : request.samples()) {
      for (const v1::CalibrationOutcome& outcome : sample.outcomes()) {
        if (outcome.drafter() != drafter || outcome.trials() == 0) continue;
        sum += outcome.acceptance();
        ++tried;
      }
    }
    const auto error = response.held_out_error().find(drafter);
    if (tried == 0) {
      terminal.out << absl::StrFormat("%-16s drafted nothing\n", drafter);
      continue;
    }
    terminal.out << absl::StrFormat("%-16s mean acceptance %.3f, ", drafter,
                                    sum / static_cast<double>(tried));
    if (error == response.held_out_error().end()) {
      terminal.out << "too few prompts to estimate the error\n";
    } else {
      terminal.out << absl::StrFormat("error on held-out prompts %.3f\n", error->second);
    }
  }
  terminal.out << std::flush;
  if (command.output.empty()) return absl::OkStatus();
  const v1::LearnedRouting state = command.portable ? WithoutTimes(response.state()) : response.state();
  return ReplaceFile(command.output, Seal(state.SerializeAsString()));
}

}  // namespace

int RunCalibrate(const CalibrateCommand& command, Terminal& terminal, Interrupts& interrupts) {
  const absl::Status status = Calibrate(command, terminal, interrupts);
  if (status.ok()) return kExitOk;
  ReportFailure(status, terminal.err);
  return kExitFailure;
}

}  // namespace tandem::cli
