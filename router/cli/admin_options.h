#pragma once

#include <functional>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "router/cli/options.h"

namespace tandem::cli {

// Adds `tandem tenants ...`, `tandem drafters ...` and `tandem verifiers ...` to the command line; parsing
// fills `command`.
// `add_connection` adds the flags that every command has.
void AddAdminCommands(CLI::App* app, AdminCommand* command,
                      const std::function<void(CLI::App*)>& add_connection);

// Likewise `tandem models ...`, which is returned.
CLI::App* AddModelsCommands(CLI::App* app, ModelsCommand* command,
                            const std::function<void(CLI::App*)>& add_connection);
CLI::App* AddAdaptersCommands(CLI::App* app, ModelsCommand* command,
                              const std::function<void(CLI::App*)>& add_connection);
// `load` and `unload` of `tandem drafters`, which AddAdminCommands has added; tells whether one was parsed.
std::function<bool()> AddDraftModelCommands(CLI::App* app, ModelsCommand* command,
                                            const std::function<void(CLI::App*)>& add_connection);

// What the parser cannot check. InvalidArgument names the flag.
absl::Status FinishAdminCommand(AdminCommand& command);

}  // namespace tandem::cli
