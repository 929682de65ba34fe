#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "common/config/flags.h"
#include "nlohmann/json.hpp"
#include "router/cli/commands.h"
#include "router/cli/table.h"
#include "router/cli/transcript.h"

namespace tandem::cli {
namespace {

using nlohmann::json;

// A server that is there answers at once.
constexpr absl::Duration kInfoTimeout = absl::Seconds(10);

std::string RoleName(v1::ServerRole role) {
  return absl::AsciiStrToLower(absl::StripPrefix(v1::ServerRole_Name(role), "SERVER_ROLE_"));
}

std::string FingerprintText(uint64_t fingerprint) {
  return absl::StrFormat("%016x", fingerprint);
}

json InfoJson(const v1::ServerInfo& info) {
  json result = {{"role", RoleName(info.role())},
                 {"version", info.version()},
                 {"uptime_seconds", info.uptime_seconds()},
                 {"serving", info.serving()},
                 {"unserved_models", info.unserved_models()},
                 {"models", json::array()},
                 {"drafters", json::array()},
                 {"device", info.device()},
                 {"running", info.running()},
                 {"waiting", info.waiting()},
                 {"kv_tokens_used", info.kv_tokens_used()},
                 {"kv_tokens_total", info.kv_tokens_total()},
                 {"window_policy", info.window_policy()}};
  for (const v1::ModelInfo& model : info.models()) {
    result["models"].push_back({{"name", model.name()},
                                {"architecture", model.architecture()},
                                {"context_length", model.context_length()},
                                {"vocabulary_size", model.vocabulary_size()},
                                {"vocabulary_fingerprint", FingerprintText(model.vocabulary_fingerprint())},
                                {"head_kind", model.head_kind()},
                                {"target_fingerprint", FingerprintText(model.target_fingerprint())},
                                {"target_hidden_size", model.target_hidden_size()},
                                {"level_seconds", model.level_seconds()},
                                {"parameters", model.parameters()},
                                {"weight_type", model.weight_type()},
                                {"adapters", json::array()},
                                {"bridged_vocabularies", json::array()}});
    for (const v1::BridgedVocabulary& bridged : model.bridged_vocabularies()) {
      result["models"].back()["bridged_vocabularies"].push_back(
          {{"fingerprint", FingerprintText(bridged.fingerprint())},
           {"vocabulary_size", bridged.vocabulary_size()},
           {"moved_tokens", bridged.moved_tokens()},
           {"target_only_tokens", bridged.target_only_tokens()},
           {"draft_only_tokens", bridged.draft_only_tokens()},
           {"by_text", bridged.by_text()}});
    }
    for (const v1::AdapterInfo& adapter : model.adapters())
      result["models"].back()["adapters"].push_back(adapter.name());
  }
  for (const v1::DrafterTarget& drafter : info.drafters()) {
    result["drafters"].push_back(
        {{"name", drafter.name()}, {"endpoint", drafter.endpoint()}, {"draft_model", drafter.draft_model()}});
  }
  return result;
}

// Of a drafter with draft heads: what they were trained for.
void AppendHeads(const v1::ServerInfo& info, std::string* text) {
  std::vector<std::vector<std::string>> rows = {{"HEAD", "KIND", "TARGET", "TARGET WIDTH"}};
  for (const v1::ModelInfo& model : info.models()) {
    if (model.head_kind().empty()) continue;
    rows.push_back({model.name(), model.head_kind(),
                    model.target_fingerprint() == 0 ? "unknown" : FingerprintText(model.target_fingerprint()),
                    absl::StrCat(model.target_hidden_size())});
  }
  if (rows.size() > 1) absl::StrAppend(text, "\n", FormatTable(rows));
}

// Of a drafter, the targets whose vocabularies are not quite those of its models.
void AppendBridges(const v1::ServerInfo& info, std::string* text) {
  std::vector<std::vector<std::string>> rows = {
      {"BRIDGED MODEL", "TO FINGERPRINT", "VOCABULARY", "MOVED", "TARGET ONLY", "DRAFT MODEL ONLY"}};
  for (const v1::ModelInfo& model : info.models()) {
    for (const v1::BridgedVocabulary& bridged : model.bridged_vocabularies()) {
      const auto tokens = [&bridged](uint32_t count) {
        return bridged.by_text() ? std::string("by text") : absl::StrCat(count);
      };
      rows.push_back({model.name(), FingerprintText(bridged.fingerprint()),
                      absl::StrCat(bridged.vocabulary_size()), tokens(bridged.moved_tokens()),
                      tokens(bridged.target_only_tokens()), tokens(bridged.draft_only_tokens())});
    }
  }
  if (rows.size() > 1) absl::StrAppend(text, "\n", FormatTable(rows));
}

std::string DescribeServer(const v1::ServerInfo& info, const std::string& endpoint) {
  std::string text =
      absl::StrCat("tandem-", RoleName(info.role()), " ", info.version(), " at ", endpoint, ", up ",
                   absl::FormatDuration(absl::Seconds(static_cast<int64_t>(info.uptime_seconds()))), ", ",
                   info.running(), " running, ", info.waiting(), " waiting\n");
  if (!info.unserved_models().empty()) {
    absl::StrAppend(&text, "no verifier serves ", absl::StrJoin(info.unserved_models(), ", "), "\n");
  }
  if (!info.serving()) {
    absl::StrAppend(&text, info.unserved_models().empty() ? "not serving: it is loading or draining\n"
                                                          : "not serving until then\n");
  }
  if (!info.device().empty()) absl::StrAppend(&text, "device: ", info.device(), "\n");
  if (info.kv_tokens_total() > 0) {
    absl::StrAppend(&text, "keys and values: ", info.kv_tokens_used(), " of ", info.kv_tokens_total(),
                    " tokens in use\n");
  }
  if (!info.window_policy().empty()) absl::StrAppend(&text, "window policy: ", info.window_policy(), "\n");
  if (!info.random_drafters().empty()) {
    absl::StrAppend(&text, "guess as if at random: ", absl::StrJoin(info.random_drafters(), ", "), "\n");
  }

  if (!info.models().empty()) {
    std::vector<std::vector<std::string>> rows = {
        {"MODEL", "ARCHITECTURE", "CONTEXT", "VOCABULARY", "FINGERPRINT"}};
    for (const v1::ModelInfo& model : info.models()) {
      rows.push_back({model.name(), model.architecture(), absl::StrCat(model.context_length()),
                      absl::StrCat(model.vocabulary_size()),
                      FingerprintText(model.vocabulary_fingerprint())});
    }
    absl::StrAppend(&text, "\n", FormatTable(rows));
  }
  AppendHeads(info, &text);
  AppendBridges(info, &text);
  if (!info.drafters().empty()) {
    std::vector<std::vector<std::string>> rows = {{"DRAFTER", "DRAFT MODEL", "ENDPOINT"}};
    for (const v1::DrafterTarget& drafter : info.drafters()) {
      rows.push_back({drafter.name(), drafter.draft_model(), drafter.endpoint()});
    }
    absl::StrAppend(&text, "\n", FormatTable(rows));
  }
  return text;
}

}  // namespace

int RunInfo(const InfoCommand& command, Terminal& terminal, Interrupts& interrupts) {
  ConnectionOptions connection = command.connection;
  connection.timeout = std::min(connection.timeout, kInfoTimeout);
  const absl::StatusOr<v1::ServerInfo> info = Client(connection, interrupts).GetServerInfo();
  if (!info.ok()) {
    ReportFailure(info.status(), terminal.err);
    return kExitFailure;
  }
  terminal.out << (command.json ? DumpJson(InfoJson(*info)) : DescribeServer(*info, connection.endpoint))
               << std::flush;
  return kExitOk;
}

}  // namespace tandem::cli
