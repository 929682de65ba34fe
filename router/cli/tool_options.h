#pragma once

#include <string>

#include "absl/status/status.h"
#include "tandem/v1/generation.pb.h"

namespace CLI {
class App;
}  // namespace CLI

namespace tandem::cli {

// The options of `generate` for functions that the target may call.
struct ToolOptions {
  std::string file;
  std::string choice;  // "auto", "none", "required", or a function's name.
};

void AddTools(CLI::App* app, ToolOptions* options);

// Adds the tools to a request that is a chat, or will be (`is_chat`). InvalidArgument names the wrong flag.
absl::Status ReadTools(const ToolOptions& options, bool is_chat, v1::GenerateRequest* request);

}  // namespace tandem::cli
