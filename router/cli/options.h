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
#include "common/config/secret.h"
#include "common/rpc/tls_files.h"
#include "tandem/v1/config.pb.h"
#include "tandem/v1/drafter.pb.h"
#include "tandem/v1/generation.pb.h"
#include "tandem/v1/verifier.pb.h"

namespace tandem::cli {

struct ConnectionOptions {
  std::string endpoint = "127.0.0.1:7001";
  std::vector<std::string> other_endpoints;  // Replicas of the router, for requests that are retried.
  Secret token;
  TlsFiles tls;
  absl::Duration timeout = absl::InfiniteDuration();  // For one request.
};

// The options that `generate` and `chat` share.
struct GenerationOptions {
  // The request without its prompt.
  v1::GenerateRequest request;
  // Colours: depending on the terminal, always, never.
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
  std::optional<std::string> prediction;  // A file: what the output may well be.
  bool chat = false;                      // The prompt is one message of the user.
  bool retry = false;                     // Go on where a router that is lost broke off.
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

struct ServersCommand {
  ConnectionOptions connection;
  bool json = false;
};

// `tandem tenants ...`, `tandem drafters ...` or `tandem verifiers ...`.
struct AdminCommand {
  enum class Kind { kTenants, kDrafters, kVerifiers };
  enum class Action { kList, kGet, kSet, kDelete, kSwap, kDrain, kWatch, kAdd, kRemove, kForget };

  ConnectionOptions connection;
  Kind kind = Kind::kTenants;
  Action action = Action::kList;
  std::string name;
  v1::VerifierConfig verifier;  // For kAdd and kRemove.
  // For kSet: the given settings, and their fields in the configuration.
  v1::TenantConfig tenant;
  v1::DrafterConfig drafter;
  std::vector<std::string> fields;
  v1::CanaryConfig canary;
  std::vector<std::string> canary_fields;  // Given settings of the canary; the others stay.
  std::string swap_to;
  std::string request_id;  // For kForget; empty: everything.
  bool running = false;
  bool undo = false;
  bool json = false;
};

// `tandem models ...` and `tandem adapters ...`, for a verifier.
struct ModelsCommand {
  enum class Action {
    kList,
    kLoad,
    kUnload,
    kListAdapters,
    kLoadAdapter,
    kUnloadAdapter,
    kLoadDraft,
    kUnloadDraft,
  };

  ConnectionOptions connection;
  Action action = Action::kList;
  v1::LoadModelRequest load;
  std::string name;  // For kUnload.
  v1::LoadAdapterRequest load_adapter;
  v1::UnloadAdapterRequest unload_adapter;
  v1::LoadDraftModelRequest load_draft;
  v1::UnloadDraftModelRequest unload_draft;
  bool json = false;
};

struct ExplainCommand {
  ConnectionOptions connection;
  v1::GenerateRequest request;  // All but the prompt.
  // Exactly one of the two is set. "-" is standard input.
  std::optional<std::string> prompt;
  std::optional<std::string> file;
  bool chat = false;  // The prompt is one message of the user.
  bool json = false;
};

struct CalibrateCommand {
  ConnectionOptions connection;
  v1::GenerateRequest request;        // What each prompt is generated with.
  std::string prompts;                // A file (ParsePrompts).
  std::vector<std::string> drafters;  // Empty: all.
  std::string output;                 // A file; empty: none.
  bool portable = false;              // Without what the machine decides.
};

struct HashTokenCommand {
  bool generate = false;  // Draw a token instead of reading one.
};

using Command = std::variant<GenerateCommand, ChatCommand, InfoCommand, ExplainCommand, CalibrateCommand,
                             HashTokenCommand, ServersCommand, AdminCommand, ModelsCommand>;

// Parses `arguments`, without the program's name. If there is nothing to run, returns the exit code: kExitOk
// after writing help or the version to `out`, kExitUsage after writing the error to `err`. Missing flags are
// taken from the environment (TANDEM_ENDPOINT, TANDEM_TOKEN, TANDEM_TLS_CA and so on).
std::variant<Command, int> ParseCommandLine(const std::vector<std::string>& arguments, std::ostream& out,
                                            std::ostream& err);

// Parses "1,2,3" as token ids. InvalidArgument names the invalid part.
absl::StatusOr<std::vector<uint32_t>> ParseTokenIds(const std::string& text);
// Parses "17=-2.5" as a token id and its bias.
absl::StatusOr<std::pair<uint32_t, float>> ParseLogitBias(const std::string& text);

}  // namespace tandem::cli
