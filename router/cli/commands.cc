#include "router/cli/commands.h"

#include <ostream>
#include <variant>

#include "common/config/flags.h"

namespace tandem::cli {

int Run(const std::vector<std::string>& arguments, Terminal& terminal, const Clock& clock,
        Interrupts& interrupts) {
  const std::variant<Command, int> parsed = ParseCommandLine(arguments, terminal.out, terminal.err);
  if (const int* exit_code = std::get_if<int>(&parsed)) return *exit_code;
  const Command& command = std::get<Command>(parsed);
  if (const auto* generate = std::get_if<GenerateCommand>(&command)) {
    return RunGenerate(*generate, terminal, clock, interrupts);
  }
  if (const auto* chat = std::get_if<ChatCommand>(&command))
    return RunChat(*chat, terminal, clock, interrupts);
  if (const auto* admin = std::get_if<AdminCommand>(&command)) return RunAdmin(*admin, terminal, interrupts);
  if (const auto* servers = std::get_if<ServersCommand>(&command)) {
    return RunServers(*servers, terminal, interrupts);
  }
  if (const auto* models = std::get_if<ModelsCommand>(&command)) {
    return RunModels(*models, terminal, interrupts);
  }
  if (const auto* explain = std::get_if<ExplainCommand>(&command)) {
    return RunExplain(*explain, terminal, interrupts);
  }
  if (const auto* calibrate = std::get_if<CalibrateCommand>(&command)) {
    return RunCalibrate(*calibrate, terminal, interrupts);
  }
  if (const auto* hash_token = std::get_if<HashTokenCommand>(&command)) {
    return RunHashToken(*hash_token, terminal);
  }
  return RunInfo(std::get<InfoCommand>(command), terminal, interrupts);
}

void ReportFailure(const absl::Status& status, std::ostream& err) {
  if (status.code() == absl::StatusCode::kCancelled) {
    err << "tandem: interrupted\n";
  } else {
    err << "tandem: " << absl::StatusCodeToString(status.code()) << ": " << status.message() << "\n";
  }
}

bool UseColor(const GenerationOptions& options, const Terminal& terminal) {
  using Color = GenerationOptions::Color;
  if (options.color == Color::kAuto) return terminal.out_is_terminal && !terminal.no_color;
  return options.color == Color::kAlways;
}

}  // namespace tandem::cli
