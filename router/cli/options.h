#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::cli {

struct ConnectionOptions {
  std::string endpoint = "127.0.0.1:7001";
  std::string token;
  absl::Duration timeout = absl::InfiniteDuration();  // For one request.
};

// What `generate` and `chat` share.
struct GenerationOptions {
  // Everything a request carries but the prompt.
  v1::GenerateRequest request;
  // Colours: by the terminal, always, never.
  enum class Color { kAuto, kAlways, kNever } color = Color::kAuto;
  bool stats = false;
};

struct GenerateCommand {
  ConnectionOptions connection;
  GenerationOptions generation;
  // Exactly one of these three is set. A prompt or file named "-" is standard input.
  std::optional<std::string> prompt;
  std::optional<std::string> file;
  std::optional<std::vector<uint32_t>> token_ids;
  bool chat = false;  // The prompt is one message of the user.
  enum class Output { kText, kJson, kJsonStream } output = Output::kText;
};

struct ChatCommand {
  ConnectionOptions connection;
  GenerationOptions generation;
  std::string system;  // Opens the conversation when not empty.
};

struct InfoCommand {
  ConnectionOptions connection;
  bool json = false;
};

using Command = std::variant<GenerateCommand, ChatCommand, InfoCommand>;

// Parses `arguments`, without the program's name. Where there is nothing to run, the exit code instead:
// kExitOk after writing help or the version to `out`, kExitUsage after writing what is wrong to `err`. Flags
// that are not given are left to the environment (TANDEM_ENDPOINT, TANDEM_TOKEN).
std::variant<Command, int> ParseCommandLine(const std::vector<std::string>& arguments, std::ostream& out,
                                            std::ostream& err);

// "1,2,3" as token ids; InvalidArgument names the part that is none.
absl::StatusOr<std::vector<uint32_t>> ParseTokenIds(const std::string& text);
// "17=-2.5" as a token id and its bias.
absl::StatusOr<std::pair<uint32_t, float>> ParseLogitBias(const std::string& text);

}  // namespace tandem::cli
