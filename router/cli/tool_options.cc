#include "router/cli/tool_options.h"

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/file.h"
#include "nlohmann/json.hpp"
#include "router/models/tool_json.h"

namespace tandem::cli {
namespace {

// As much as a router takes.
constexpr size_t kMostToolBytes = size_t{1} << 20;

}  // namespace

void AddTools(CLI::App* app, ToolOptions* options) {
  app->add_option("--tools", options->file,
                  "With --chat: JSON file with the functions that the model may call, as a list in the "
                  "OpenAI API's format")
      ->group("Prompt");
  app->add_option("--tool-choice", options->choice,
                  "With --tools: auto, none, required, or the name of the function to call")
      ->group("Prompt");
}

absl::Status ReadTools(const ToolOptions& options, bool is_chat, v1::GenerateRequest* request) {
  if (options.file.empty()) {
    return options.choice.empty() ? absl::OkStatus()
                                  : absl::InvalidArgumentError("--tool-choice: expected --tools as well");
  }
  if (!is_chat) return absl::InvalidArgumentError("--tools: expected --chat as well");
  const absl::StatusOr<std::string> text = ReadFile(options.file, kMostToolBytes);
  if (!text.ok()) return absl::InvalidArgumentError(absl::StrCat("--tools: ", text.status().message()));
  const auto json = nlohmann::ordered_json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded())
    return absl::InvalidArgumentError(absl::StrCat("--tools: ", options.file, ": expected JSON"));
  v1::ChatPrompt& chat = *request->mutable_chat();
  if (absl::Status read = router::ReadTools(json, "--tools", chat); !read.ok()) return read;
  if (options.choice.empty()) return absl::OkStatus();
  v1::ToolChoice& choice = *chat.mutable_tool_choice();
  if (options.choice != "auto" && options.choice != "none" && options.choice != "required") {
    choice.set_name(options.choice);
    return absl::OkStatus();
  }
  return router::ReadToolChoice(options.choice, "--tool-choice", choice);
}

}  // namespace tandem::cli
