#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
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

// A router whose store is out of reach takes some seconds.
constexpr absl::Duration kServersTimeout = absl::Seconds(30);
constexpr size_t kShownDigits = 12;

// SERVER_STATE_NOT_SERVING as "not serving".
std::string Word(const std::string& name, absl::string_view prefix) {
  std::string word = absl::AsciiStrToLower(absl::StripPrefix(name, prefix));
  std::replace(word.begin(), word.end(), '_', ' ');
  return word;
}

std::string RoleOf(const v1::KnownServer& server) {
  return Word(v1::ServerRole_Name(server.role()), "SERVER_ROLE_");
}

std::string SourceOf(const v1::KnownServer& server) {
  return Word(v1::ServerSource_Name(server.source()), "SERVER_SOURCE_");
}

std::string StateOf(const v1::KnownServer& server) {
  return Word(v1::ServerState_Name(server.state()), "SERVER_STATE_");
}

// What a registered drafter says of the draft model that is called like this.
v1::RegisteredDraftModel DraftModelOf(const v1::KnownServer& server) {
  for (const v1::RegisteredDraftModel& model : server.registration().drafter().models()) {
    if (model.model().name() == server.name()) return model;
  }
  return {};
}

std::string WeightsOf(const v1::KnownServer& server) {
  return absl::BytesToHexString(server.role() == v1::SERVER_ROLE_VERIFIER
                                    ? server.registration().verifier().weights_sha256()
                                    : DraftModelOf(server).weights_sha256());
}

std::string SpeedOf(const v1::KnownServer& server) {
  const auto& rounds = server.registration().verifier().round_seconds();
  if (!rounds.empty()) {
    return absl::StrFormat("%.2f ms for %d %s", rounds[0].seconds() * 1e3, rounds[0].rows(),
                           rounds[0].rows() == 1 ? "row" : "rows");
  }
  const v1::RegisteredDraftModel model = DraftModelOf(server);
  if (!model.model().has_level_seconds()) return "-";
  return absl::StrFormat("%.2f ms a level", model.model().level_seconds() * 1e3);
}

// Of a draft head, what it is and which target it was trained for.
std::string KindOf(const v1::KnownServer& server) {
  if (server.role() == v1::SERVER_ROLE_VERIFIER || !server.has_registration()) return "-";
  const v1::RegisteredDraftModel model = DraftModelOf(server);
  if (model.model().head_kind().empty()) {
    if (model.model().vocabulary_fingerprint() == 0) return "source";
    int bridged = 0, by_text = 0;
    for (const v1::BridgedVocabulary& other : model.model().bridged_vocabularies()) {
      ++(other.by_text() ? by_text : bridged);
    }
    std::string kind = "draft model";
    if (!model.model().version().empty()) absl::StrAppend(&kind, " ", model.model().version());
    if (bridged > 0) absl::StrAppend(&kind, ", bridged to ", bridged);
    if (by_text > 0) absl::StrAppend(&kind, ", by text for ", by_text);
    return kind;
  }
  const std::string kind = absl::StrCat(absl::CHexEscape(model.model().head_kind()), " head");
  if (model.model().target_fingerprint() == 0) return kind;
  return absl::StrFormat("%s of %016x", kind, model.model().target_fingerprint());
}

std::string ServersTable(const v1::ListServersResponse& list) {
  std::vector<std::vector<std::string>> rows = {
      {"ROLE", "NAME", "ADDRESS", "SOURCE", "STATE", "IN FLIGHT", "VERSION", "WEIGHTS", "SPEED", "KIND"}};
  for (const v1::KnownServer& server : list.servers()) {
    const bool verifies = server.role() == v1::SERVER_ROLE_VERIFIER;
    const bool registered = server.has_registration();
    const std::string weights = WeightsOf(server).substr(0, kShownDigits);
    rows.push_back({RoleOf(server), server.name(), server.address(), SourceOf(server), StateOf(server),
                    verifies ? absl::StrCat(server.in_flight(), " of ", server.max_in_flight()) : "-",
                    registered ? absl::CHexEscape(server.registration().version()) : "-",
                    weights.empty() ? "-" : weights, SpeedOf(server), KindOf(server)});
  }
  return FormatTable(rows);
}

json RegistrationJson(const v1::KnownServer& server) {
  const v1::ServerRegistration& registration = server.registration();
  json result = {
      {"name", registration.instance().name()},
      {"started",
       absl::FormatTime(absl::FromUnixMillis(static_cast<int64_t>(registration.instance().started_unix_ms())),
                        absl::UTCTimeZone())},
      {"version", registration.version()},
      {"max_running", registration.capacity().max_running()},
      {"max_waiting", registration.capacity().max_waiting()},
      {"kv_tokens", registration.capacity().kv_tokens()},
      {"weights_sha256", WeightsOf(server)}};
  if (registration.has_verifier()) {
    result["arithmetic"] = registration.verifier().arithmetic();
    result["round_seconds"] = json::array();
    for (const v1::RoundSeconds& round : registration.verifier().round_seconds()) {
      result["round_seconds"].push_back({{"rows", round.rows()}, {"seconds", round.seconds()}});
    }
  }
  if (registration.has_drafter()) {
    const v1::ModelInfo model = DraftModelOf(server).model();
    if (model.has_level_seconds()) result["level_seconds"] = model.level_seconds();
    result["model_version"] = model.version();
    result["head_kind"] = model.head_kind();
    result["target_fingerprint"] = absl::StrFormat("%016x", model.target_fingerprint());
    result["vocabulary_fingerprint"] = absl::StrFormat("%016x", model.vocabulary_fingerprint());
    result["bridged_vocabularies"] = json::array();
    result["text_vocabularies"] = json::array();
    for (const v1::BridgedVocabulary& other : model.bridged_vocabularies()) {
      result[other.by_text() ? "text_vocabularies" : "bridged_vocabularies"].push_back(
          absl::StrFormat("%016x", other.fingerprint()));
    }
  }
  return result;
}

json ServersJson(const v1::ListServersResponse& list) {
  json result = json::array();
  for (const v1::KnownServer& server : list.servers()) {
    json entry = {{"role", RoleOf(server)},
                  {"name", server.name()},
                  {"address", server.address()},
                  {"source", SourceOf(server)},
                  {"state", StateOf(server)}};
    if (server.role() == v1::SERVER_ROLE_VERIFIER) {
      entry["in_flight"] = server.in_flight();
      entry["max_in_flight"] = server.max_in_flight();
    }
    if (server.has_registration()) entry["registration"] = RegistrationJson(server);
    result.push_back(std::move(entry));
  }
  return result;
}

}  // namespace

int RunServers(const ServersCommand& command, Terminal& terminal, Interrupts& interrupts) {
  ConnectionOptions connection = command.connection;
  connection.timeout = std::min(connection.timeout, kServersTimeout);
  Client client(connection, interrupts);
  v1::ListServersResponse list;
  const absl::Status status =
      client.CallAdmin([&list](v1::RouterAdmin::Stub& stub, grpc::ClientContext& context) {
        return stub.ListServers(&context, v1::ListServersRequest(), &list);
      });
  if (!status.ok()) {
    ReportFailure(status, terminal.err);
    return kExitFailure;
  }
  terminal.out << (command.json ? DumpJson(ServersJson(list)) : ServersTable(list)) << std::flush;
  return kExitOk;
}

}  // namespace tandem::cli
