#include <istream>
#include <iterator>
#include <ostream>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/config/flags.h"
#include "nlohmann/json.hpp"
#include "router/cli/commands.h"
#include "router/cli/text_renderer.h"
#include "router/cli/transcript.h"

namespace tandem::cli {
namespace {

// More than any router accepts.
constexpr size_t kMaxPromptBytes = size_t{4} << 20;

absl::StatusOr<std::string> ReadPrompt(const GenerateCommand& command, std::istream& in) {
  if (command.file.value_or(command.prompt.value_or("")) != "-") {
    if (command.file.has_value()) return ReadFile(*command.file, kMaxPromptBytes);
    return *command.prompt;
  }
  std::string text(kMaxPromptBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() <= kMaxPromptBytes) return text;
  return absl::InvalidArgumentError(
      absl::StrCat("standard input is longer than ", kMaxPromptBytes, " bytes"));
}

absl::StatusOr<v1::GenerateRequest> BuildRequest(const GenerateCommand& command, std::istream& in) {
  v1::GenerateRequest request = command.generation.request;
  if (command.token_ids.has_value()) {
    request.mutable_token_ids()->mutable_ids()->Add(command.token_ids->begin(), command.token_ids->end());
    return request;
  }
  absl::StatusOr<std::string> prompt = ReadPrompt(command, in);
  if (!prompt.ok()) return prompt.status();
  if (command.chat) {
    v1::ChatMessage& message = *request.mutable_chat()->add_messages();
    message.set_role("user");
    message.set_content(*std::move(prompt));
  } else {
    request.set_text(*std::move(prompt));
  }
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
  TextRenderer renderer(terminal.out, {.color = color, .replace_controls = terminal.out_is_terminal});
  Transcript transcript(clock.Now());
  Client client(command.connection, interrupts);
  const absl::Status status = client.Generate(*request, [&](const v1::GenerateResponse& event) {
    transcript.Add(event, clock.Now());
    if (command.output == Output::kText) renderer.Write(event);
    if (command.output == Output::kJsonStream)
      terminal.out << DumpJson(EventJson(event, logprobs)) << std::flush;
    return terminal.out.good();
  });
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
