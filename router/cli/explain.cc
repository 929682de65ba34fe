#include <cmath>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/config/flags.h"
#include "router/cli/commands.h"
#include "router/cli/message_json.h"
#include "router/cli/prompt_input.h"

namespace tandem::cli {
namespace {

std::string Name(const std::string& drafter) {
  return drafter.empty() ? "none" : drafter;
}

std::string DescribeCandidate(const v1::CandidateExplanation& candidate, bool chosen) {
  std::string text = absl::StrFormat("%c %-16s ", chosen ? '*' : ' ', Name(candidate.drafter()));
  if (candidate.has_acceptance()) {
    const v1::PredictedAcceptance& acceptance = candidate.acceptance();
    absl::StrAppendFormat(&text, "%5.3f [%5.3f, %5.3f] %8.0f %9.3f %9.3f%c", acceptance.mean(),
                          acceptance.low(), acceptance.high(), candidate.samples(),
                          1e3 * candidate.exposed_level_seconds(), 1e3 * candidate.hidden_level_seconds(),
                          candidate.costs_measured() ? ' ' : '?');
  } else {
    absl::StrAppendFormat(&text, "%5s %16s %8s %9s %9s ", "-", "", "-", "-", "-");
  }
  absl::StrAppendFormat(&text, " %6d %8.2f %10.1f\n", candidate.window(), candidate.correction(),
                        candidate.tokens_per_second());
  return text;
}

std::string Describe(const v1::ChoiceExplanation& explanation) {
  std::string text = absl::StrFormat("%s, %d prompt tokens, perplexity %.1f\n", explanation.model(),
                                     explanation.prompt_tokens(), std::exp(explanation.nats_per_token()));
  absl::StrAppend(&text, "features", explanation.features_fitted() ? ":" : " (not fitted to prompts yet):");
  for (double feature : explanation.features()) absl::StrAppendFormat(&text, " %.2f", feature);
  absl::StrAppend(&text, "\nround, ms by window:");
  for (double seconds : explanation.verify_seconds()) absl::StrAppendFormat(&text, " %.2f", 1e3 * seconds);
  if (explanation.verify_seconds().empty()) absl::StrAppend(&text, " not measured yet");
  absl::StrAppendFormat(&text, "\n\n  %-16s %5s %16s %8s %9s %9s  %6s %8s %10s\n", "CANDIDATE", "ACC.",
                        "[5 %, 95 %]", "SAMPLES", "EXPOSED", "HIDDEN", "WINDOW", "CORRECT.", "TOKENS/S");
  for (const v1::CandidateExplanation& candidate : explanation.candidates()) {
    text += DescribeCandidate(candidate, candidate.drafter() == explanation.drafter());
  }
  for (const std::string& drafter : explanation.unfit_drafters()) {
    absl::StrAppend(&text, "  ", Name(drafter), ": skipped, it has another vocabulary\n");
  }
  absl::StrAppend(&text, "\nchoice: ", Name(explanation.drafter()), " (", explanation.reason(), ")\n");
  return text;
}

}  // namespace

int RunExplain(const ExplainCommand& command, Terminal& terminal, Interrupts& interrupts) {
  const absl::StatusOr<std::string> prompt = ReadPromptText(command.file, command.prompt, terminal.in);
  if (!prompt.ok()) {
    ReportFailure(prompt.status(), terminal.err);
    return kExitUsage;
  }
  v1::ExplainChoiceRequest request;
  *request.mutable_request() = command.request;
  SetPrompt(*prompt, command.chat, request.mutable_request());
  const absl::StatusOr<v1::ChoiceExplanation> explanation =
      Client(command.connection, interrupts).ExplainChoice(request);
  if (!explanation.ok()) {
    ReportFailure(explanation.status(), terminal.err);
    return kExitFailure;
  }
  if (!command.json) {
    terminal.out << Describe(*explanation) << std::flush;
    return kExitOk;
  }
  terminal.out << MessageJson(*explanation, /*pretty=*/false) << std::flush;
  return kExitOk;
}

}  // namespace tandem::cli
