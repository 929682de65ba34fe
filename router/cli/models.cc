#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/config/flags.h"
#include "router/cli/commands.h"
#include "router/cli/message_json.h"
#include "router/cli/table.h"

namespace tandem::cli {
namespace {

using ModelsAction = ModelsCommand::Action;
using VerifierStub = v1::Verifier::Stub;
using DrafterStub = v1::Drafter::Stub;

std::string ModelsTable(const v1::ServerInfo& info) {
  std::vector<std::vector<std::string>> rows = {
      {"MODEL", "ARCHITECTURE", "STATE", "RUNNING", "WAITING", "KV TOKENS"}};
  for (const v1::ModelInfo& model : info.models()) {
    // A verifier with one model tells of itself.
    bool serving = info.serving();
    v1::HeldModel held;
    held.set_running(info.running());
    held.set_waiting(info.waiting());
    held.set_kv_tokens_used(info.kv_tokens_used());
    held.set_kv_tokens_total(info.kv_tokens_total());
    for (const v1::HeldModel& own : info.held_models()) {
      if (own.name() != model.name()) continue;
      held = own;
      serving = own.serving();
    }
    rows.push_back({model.name(), model.architecture(), serving ? "serving" : "not serving",
                    absl::StrCat(held.running()), absl::StrCat(held.waiting()),
                    absl::StrCat(held.kv_tokens_used(), " of ", held.kv_tokens_total())});
  }
  return FormatTable(rows);
}

absl::Status ListModels(const ModelsCommand& command, Client& client, std::ostream& out) {
  TANDEM_ASSIGN_OR_RETURN(const v1::ServerInfo info, client.GetServerInfo());
  if (info.role() == v1::SERVER_ROLE_DRAFTER) {
    return absl::FailedPreconditionError("a drafter's models are shown by `tandem info`");
  }
  out << (command.json ? MessageJson(info, true) : ModelsTable(info)) << std::flush;
  return absl::OkStatus();
}

absl::Status LoadModel(const ModelsCommand& command, Client& client, std::ostream& out) {
  v1::LoadModelResponse response;
  TANDEM_RETURN_IF_ERROR(client.CallVerifier([&](VerifierStub& stub, grpc::ClientContext& context) {
    return stub.LoadModel(&context, command.load, &response);
  }));
  out << (command.json ? MessageJson(response, true)
                       : absl::StrCat(response.model().name(), " is served, with room for ",
                                      response.kv_tokens(), " tokens\n"))
      << std::flush;
  return absl::OkStatus();
}

absl::Status UnloadModel(const ModelsCommand& command, Client& client) {
  v1::UnloadModelRequest request;
  request.set_name(command.name);
  v1::UnloadModelResponse response;
  return client.CallVerifier([&](VerifierStub& stub, grpc::ClientContext& context) {
    return stub.UnloadModel(&context, request, &response);
  });
}

std::string AdaptersTable(const v1::ServerInfo& info) {
  std::vector<std::vector<std::string>> rows = {{"ADAPTER", "MODEL", "RANK", "PARAMETERS"}};
  for (const v1::ModelInfo& model : info.models()) {
    for (const v1::AdapterInfo& adapter : model.adapters()) {
      rows.push_back(
          {adapter.name(), model.name(), absl::StrCat(adapter.rank()), absl::StrCat(adapter.parameters())});
    }
  }
  return FormatTable(rows);
}

absl::Status ListAdapters(const ModelsCommand& command, Client& client, std::ostream& out) {
  TANDEM_ASSIGN_OR_RETURN(const v1::ServerInfo info, client.GetServerInfo());
  out << (command.json ? MessageJson(info, true) : AdaptersTable(info)) << std::flush;
  return absl::OkStatus();
}

absl::Status LoadAdapter(const ModelsCommand& command, Client& client, std::ostream& out) {
  v1::LoadAdapterResponse response;
  TANDEM_RETURN_IF_ERROR(client.CallVerifier([&](VerifierStub& stub, grpc::ClientContext& context) {
    return stub.LoadAdapter(&context, command.load_adapter, &response);
  }));
  const v1::AdapterInfo& adapter = response.adapter();
  out << (command.json ? MessageJson(response, true)
                       : absl::StrCat(adapter.name(), " is served: ", adapter.parameters(),
                                      " parameters, rank ", adapter.rank(), "\n"))
      << std::flush;
  return absl::OkStatus();
}

absl::Status UnloadAdapter(const ModelsCommand& command, Client& client, std::ostream& out) {
  v1::UnloadAdapterResponse response;
  TANDEM_RETURN_IF_ERROR(client.CallVerifier([&](VerifierStub& stub, grpc::ClientContext& context) {
    return stub.UnloadAdapter(&context, command.unload_adapter, &response);
  }));
  out << (command.json ? MessageJson(response, true)
                       : absl::StrCat(response.requests(), " requests go on with it\n"))
      << std::flush;
  return absl::OkStatus();
}

absl::Status LoadDraftModel(const ModelsCommand& command, Client& client, std::ostream& out) {
  v1::LoadDraftModelResponse response;
  TANDEM_RETURN_IF_ERROR(client.CallDrafter([&](DrafterStub& stub, grpc::ClientContext& context) {
    return stub.LoadDraftModel(&context, command.load_draft, &response);
  }));
  if (command.json) {
    out << MessageJson(response, true) << std::flush;
    return absl::OkStatus();
  }
  const v1::ModelInfo& model = response.model();
  out << model.name() << (model.version().empty() ? "" : absl::StrCat(" (", model.version(), ")"))
      << absl::StrFormat(" is served, with room for %d tokens, in %.1f MiB", response.kv_tokens(),
                         static_cast<double>(response.memory_bytes()) / (1 << 20));
  if (command.load_draft.replace()) out << "; " << response.sessions() << " sessions finish on the old one";
  out << "\n" << std::flush;
  return absl::OkStatus();
}

absl::Status UnloadDraftModel(const ModelsCommand& command, Client& client, std::ostream& out) {
  v1::UnloadDraftModelResponse response;
  TANDEM_RETURN_IF_ERROR(client.CallDrafter([&](DrafterStub& stub, grpc::ClientContext& context) {
    return stub.UnloadDraftModel(&context, command.unload_draft, &response);
  }));
  out << (command.json ? MessageJson(response, true)
                       : absl::StrCat(response.sessions(), " sessions go on with it\n"))
      << std::flush;
  return absl::OkStatus();
}

}  // namespace

int RunModels(const ModelsCommand& command, Terminal& terminal, Interrupts& interrupts) {
  Client client(command.connection, interrupts);
  absl::Status status;
  switch (command.action) {
    case ModelsAction::kList:
      status = ListModels(command, client, terminal.out);
      break;
    case ModelsAction::kLoad:
      status = LoadModel(command, client, terminal.out);
      break;
    case ModelsAction::kUnload:
      status = UnloadModel(command, client);
      break;
    case ModelsAction::kListAdapters:
      status = ListAdapters(command, client, terminal.out);
      break;
    case ModelsAction::kLoadAdapter:
      status = LoadAdapter(command, client, terminal.out);
      break;
    case ModelsAction::kUnloadAdapter:
      status = UnloadAdapter(command, client, terminal.out);
      break;
    case ModelsAction::kLoadDraft:
      status = LoadDraftModel(command, client, terminal.out);
      break;
    case ModelsAction::kUnloadDraft:
      status = UnloadDraftModel(command, client, terminal.out);
      break;
  }
  if (status.ok()) return kExitOk;
  ReportFailure(status, terminal.err);
  return kExitFailure;
}

}  // namespace tandem::cli
