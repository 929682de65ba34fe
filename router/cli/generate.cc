#include <ostream>
#include <string>

#include "absl/status/statusor.h"
#include "common/config/flags.h"
#include "nlohmann/json.hpp"
#include "router/cli/commands.h"
#include "router/cli/prompt_input.h"
#include "router/cli/text_renderer.h"
#include "router/cli/transcript.h"

namespace tandem::cli {
namespace {

absl::StatusOr<v1::GenerateRequest> BuildRequest(const GenerateCommand& command, std::istream& in) {
  v1::GenerateRequest request = command.generation.request;
  if (command.token_ids.has_value()) {
    request.mutable_token_ids()->mutable_ids()->Add(command.token_ids->begin(), command.token_ids->end());
    return request;
  }
  const absl::StatusOr<std::string> prompt = ReadPromptText(command.file, command.prompt, in);
  if (!prompt.ok()) return prompt.status();
  SetPrompt(*prompt, command.chat, &request);
  return request;
}

}  // namespace

int RunGenerate(const GenerateCommand& command, Terminal& terminal, const Clock& clock,
                Interrupts& interrupts) {
  using Output = GenerateCommand::Output;
  const absl::StatusOr<v1::GenerateRequest> request = BuildRequest(command, terminal.in);
  if (!request.ok()) {
    ReportFailure(request.status(), terminal.err);
    return kExitUsage;
  }
  const bool logprobs = request->output().has_logprobs();
  const bool color = UseColor(command.generation, terminal);
  TextRenderer renderer(terminal.out, {.color = color,
                                       .replace_controls = terminal.out_is_terminal,
                                       .parsed = !request->chat().tools().empty()});
  Transcript transcript(clock.Now());
  Client client(command.connection, interrupts);
  const auto on_event = [&](const v1::GenerateResponse& event) {
    transcript.Add(event, clock.Now());
    if (command.output == Output::kText) renderer.Write(event);
    if (command.output == Output::kJsonStream)
      terminal.out << DumpJson(EventJson(event, logprobs)) << std::flush;
    return terminal.out.good();
  };
  const absl::Status status =
      command.retry ? client.GenerateWithRetry(*request, on_event) : client.Generate(*request, on_event);
  transcript.End(clock.Now());

  renderer.EndLine();
  if (command.output == Output::kJson)
    terminal.out << DumpJson(transcript.ToJson(logprobs, status)) << std::flush;
  if (command.output == Output::kJsonStream && !status.ok()) {
    terminal.out << DumpJson({{"event", "error"}, {"error", ErrorJson(status)}}) << std::flush;
  }
  if (!status.ok()) ReportFailure(status, terminal.err);
  if (command.generation.stats) {
    if (color && command.output == Output::kText) terminal.err << TextRenderer::Legend();
    terminal.err << transcript.DescribeStats() << std::flush;
  }
  return status.ok() ? kExitOk : kExitFailure;
}

}  // namespace tandem::cli
