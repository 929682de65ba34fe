#pragma once

#include <functional>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "router/cli/options.h"

namespace tandem::cli {

// Adds `tandem tenants ...`, `tandem drafters ...` and `tandem verifiers ...` to the command line. Parsing
// fills `command`. `add_connection` adds the flags common to all commands.
void AddAdminCommands(CLI::App* app, AdminCommand* command,
                      const std::function<void(CLI::App*)>& add_connection);

// Adds `tandem models ...` in the same way, and returns it.
CLI::App* AddModelsCommands(CLI::App* app, ModelsCommand* command,
                            const std::function<void(CLI::App*)>& add_connection);
CLI::App* AddAdaptersCommands(CLI::App* app, ModelsCommand* command,
                              const std::function<void(CLI::App*)>& add_connection);
// Adds `load` and `unload` to `tandem drafters`, which AddAdminCommands has added. The result tells whether
// one of them was parsed.
std::function<bool()> AddDraftModelCommands(CLI::App* app, ModelsCommand* command,
                                            const std::function<void(CLI::App*)>& add_connection);

// The checks that the parser cannot make. InvalidArgument names the flag.
absl::Status FinishAdminCommand(AdminCommand& command);

}  // namespace tandem::cli
