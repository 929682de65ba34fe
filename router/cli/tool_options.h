#pragma once

#include <string>

#include "absl/status/status.h"
#include "tandem/v1/generation.pb.h"

namespace CLI {
class App;
}  // namespace CLI

namespace tandem::cli {

// What `generate` was told of functions that the target may call.
struct ToolOptions {
  std::string file;
  std::string choice;  // "auto", "none", "required", or a function's name.
};

void AddTools(CLI::App* app, ToolOptions* options);

// Puts the tools into a request that is a chat, or will be (`is_chat`). InvalidArgument names the flag that
// is wrong.
absl::Status ReadTools(const ToolOptions& options, bool is_chat, v1::GenerateRequest* request);

}  // namespace tandem::cli
