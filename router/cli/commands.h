#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "router/cli/client.h"
#include "router/cli/options.h"

namespace tandem::cli {

// A command's input and output, and what the output can show.
struct Terminal {
  std::istream& in;
  std::ostream& out;
  std::ostream& err;
  bool in_is_terminal = false;
  bool out_is_terminal = false;
  bool no_color = false;  // NO_COLOR is set to anything but nothing.
};

// Runs the command line and returns the exit code: kExitOk, kExitFailure if a request failed, kExitUsage.
// Output goes to `terminal.out`; errors, statistics and prompts for input go to `terminal.err`.
int Run(const std::vector<std::string>& arguments, Terminal& terminal, const Clock& clock,
        Interrupts& interrupts);

int RunGenerate(const GenerateCommand& command, Terminal& terminal, const Clock& clock,
                Interrupts& interrupts);
int RunChat(const ChatCommand& command, Terminal& terminal, const Clock& clock, Interrupts& interrupts);
int RunInfo(const InfoCommand& command, Terminal& terminal, Interrupts& interrupts);
int RunServers(const ServersCommand& command, Terminal& terminal, Interrupts& interrupts);
int RunModels(const ModelsCommand& command, Terminal& terminal, Interrupts& interrupts);
int RunAdmin(const AdminCommand& command, Terminal& terminal, Interrupts& interrupts);
int RunExplain(const ExplainCommand& command, Terminal& terminal, Interrupts& interrupts);
int RunHashToken(const HashTokenCommand& command, Terminal& terminal);
int RunCalibrate(const CalibrateCommand& command, Terminal& terminal, Interrupts& interrupts);

// Writes "tandem: NOT_FOUND: ..." to `err`, or "tandem: interrupted" if an interrupt cancelled the request.
void ReportFailure(const absl::Status& status, std::ostream& err);
bool UseColor(const GenerationOptions& options, const Terminal& terminal);

}  // namespace tandem::cli
