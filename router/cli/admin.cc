#include <algorithm>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "common/config/flags.h"
#include "google/protobuf/util/field_mask_util.h"
#include "router/cli/commands.h"
#include "router/cli/message_json.h"
#include "router/cli/table.h"

namespace tandem::cli {
namespace {

using Action = AdminCommand::Action;
using Kind = AdminCommand::Kind;
using Stub = v1::RouterAdmin::Stub;

// An edit is done at once, but moving running sessions takes as long as verifiers do.
constexpr absl::Duration kAdminTimeout = absl::Seconds(60);

std::string OrDash(const std::string& text) {
  return text.empty() ? "-" : text;
}

std::string LimitText(uint32_t limit) {
  return limit == 0 ? "-" : absl::StrCat(limit);
}

std::string PolicyText(const v1::TenantConfig& tenant) {
  if (tenant.drafter_policy() == v1::DRAFTER_POLICY_UNSPECIFIED)
    return tenant.drafter().empty() ? "none" : "pinned";
  return absl::AsciiStrToLower(
      absl::StripPrefix(v1::DrafterPolicy_Name(tenant.drafter_policy()), "DRAFTER_POLICY_"));
}

std::string CanaryText(const v1::TenantConfig& tenant) {
  if (!tenant.has_canary()) return "-";
  return absl::StrCat(tenant.canary().drafter(), " ", tenant.canary().percent(), "%");
}

std::string StateText(const v1::TenantInfo& info) {
  return info.rolled_back().empty() ? "ok" : "rolled back";
}

std::string Table(const v1::ListTenantsResponse& list) {
  std::vector<std::vector<std::string>> rows = {
      {"TENANT", "POLICY", "DRAFTER", "CANARY", "WEIGHT", "CONCURRENT", "TOKENS/MIN", "ADMIN", "STATE"}};
  for (const v1::TenantInfo& info : list.tenants()) {
    const v1::TenantConfig& tenant = info.config();
    rows.push_back({tenant.name(), PolicyText(tenant), OrDash(tenant.drafter()), CanaryText(tenant),
                    absl::StrCat(std::max(tenant.weight(), 1u)), LimitText(tenant.max_concurrent_requests()),
                    LimitText(tenant.tokens_per_minute()), tenant.admin() ? "yes" : "-", StateText(info)});
  }
  return FormatTable(rows);
}

std::string Table(const v1::ListDraftersResponse& list) {
  std::vector<std::vector<std::string>> rows = {{"DRAFTER", "DRAFT MODEL", "ADDRESS", "STATE", "TENANTS"}};
  for (const v1::DrafterInfo& info : list.drafters()) {
    const v1::DrafterConfig& drafter = info.config();
    rows.push_back({drafter.name(), drafter.draft_model(), drafter.endpoint(),
                    drafter.draining() ? "draining" : "ok", OrDash(absl::StrJoin(info.tenants(), ","))});
  }
  return FormatTable(rows);
}

std::string StateText(const v1::VerifierInfo& info) {
  if (info.removed()) return "removed";
  return info.in_file() ? "configured" : "added";
}

std::string Table(const v1::ListVerifiersResponse& list) {
  std::vector<std::vector<std::string>> rows = {{"MODEL", "ADDRESS", "STATE"}};
  for (const v1::VerifierInfo& info : list.verifiers()) {
    rows.push_back({info.config().model(), info.config().endpoint(), StateText(info)});
  }
  return FormatTable(rows);
}

std::string Table(const v1::VerifierInfo& info) {
  return FormatTable(
      {{"model", info.config().model()}, {"address", info.config().endpoint()}, {"state", StateText(info)}});
}

std::string Table(const v1::TenantInfo& info) {
  const v1::TenantConfig& tenant = info.config();
  return FormatTable(
      {{"tenant", tenant.name()},
       {"policy", PolicyText(tenant)},
       {"drafter", OrDash(tenant.drafter())},
       {"canary", CanaryText(tenant)},
       {"allowed drafters",
        tenant.allowed_drafters().empty() ? "all" : absl::StrJoin(tenant.allowed_drafters(), ",")},
       {"adapter", OrDash(tenant.adapter())},
       {"allowed adapters",
        tenant.allowed_adapters().empty() ? "all" : absl::StrJoin(tenant.allowed_adapters(), ",")},
       {"models", tenant.models().empty() ? "all" : absl::StrJoin(tenant.models(), ",")},
       {"window policy", OrDash(tenant.window_policy())},
       {"allowed window policies", tenant.allowed_window_policies().empty()
                                       ? "all"
                                       : absl::StrJoin(tenant.allowed_window_policies(), ",")},
       {"concurrent requests", LimitText(tenant.max_concurrent_requests())},
       {"queued requests",
        tenant.has_max_queued_requests() ? absl::StrCat(tenant.max_queued_requests()) : "default"},
       {"tokens per minute", LimitText(tenant.tokens_per_minute())},
       {"weight", absl::StrCat(std::max(tenant.weight(), 1u))},
       {"text drafting", tenant.text_drafting() ? "yes" : "no"},
       {"traffic recorded", tenant.record_traffic() ? "yes" : "no"},
       {"unknown fields", tenant.unknown_fields() == v1::UNKNOWN_FIELDS_REFUSE ? "refused" : "ignored"},
       {"admin", tenant.admin() ? "yes" : "no"},
       {"state", info.rolled_back().empty() ? "ok" : absl::StrCat("rolled back: ", info.rolled_back())},
       {"version", absl::StrCat(info.version())}});
}

std::string Table(const v1::DrafterInfo& info) {
  const v1::DrafterConfig& drafter = info.config();
  return FormatTable({{"drafter", drafter.name()},
                      {"draft model", drafter.draft_model()},
                      {"address", drafter.endpoint()},
                      {"trusted", drafter.trusted() ? "yes" : "no"},
                      {"state", drafter.draining() ? "draining" : "ok"},
                      {"tenants", OrDash(absl::StrJoin(info.tenants(), ","))},
                      {"version", absl::StrCat(info.version())}});
}

std::string Table(const v1::SwapTenantDrafterResponse& swapped) {
  return absl::StrCat("tenant ", swapped.tenant().config().name(), ": ",
                      swapped.previous_drafter().empty() ? "no drafter" : swapped.previous_drafter(), " -> ",
                      swapped.tenant().config().drafter(), "\n");
}

// One line for each event of a watch.
std::string EventText(const v1::WatchEvent& event) {
  switch (event.event_case()) {
    case v1::WatchEvent::kTenant: {
      const v1::TenantConfig& tenant = event.tenant().config();
      std::string text = absl::StrCat("tenant ", tenant.name(), " policy=", PolicyText(tenant),
                                      " drafter=", OrDash(tenant.drafter()), " canary=", CanaryText(tenant));
      if (!event.tenant().rolled_back().empty()) {
        absl::StrAppend(&text, " rolled back: ", event.tenant().rolled_back());
      }
      return text + "\n";
    }
    case v1::WatchEvent::kDrafter: {
      const v1::DrafterConfig& drafter = event.drafter().config();
      return absl::StrCat("drafter ", drafter.name(), " address=", drafter.endpoint(),
                          " draft_model=", drafter.draft_model(), drafter.draining() ? " draining" : "",
                          "\n");
    }
    case v1::WatchEvent::kVerifier:
      return absl::StrCat("verifier ", event.verifier().config().endpoint(), " of ",
                          event.verifier().config().model(), " ", StateText(event.verifier()), "\n");
    case v1::WatchEvent::kDeletedVerifier:
      return absl::StrCat("verifier ", event.deleted_verifier().endpoint(), " of ",
                          event.deleted_verifier().model(), " removed\n");
    case v1::WatchEvent::kDeletedTenant:
      return absl::StrCat("tenant ", event.deleted_tenant(), " deleted\n");
    case v1::WatchEvent::kDeletedDrafter:
      return absl::StrCat("drafter ", event.deleted_drafter(), " deleted\n");
    default:
      return "";
  }
}

// Whether `watch` of that kind shows the event.
bool Concerns(const v1::WatchEvent& event, Kind kind) {
  switch (event.event_case()) {
    case v1::WatchEvent::kTenant:
    case v1::WatchEvent::kDeletedTenant:
      return kind == Kind::kTenants;
    case v1::WatchEvent::kDrafter:
    case v1::WatchEvent::kDeletedDrafter:
      return kind == Kind::kDrafters;
    case v1::WatchEvent::kVerifier:
    case v1::WatchEvent::kDeletedVerifier:
      return kind == Kind::kVerifiers;
    default:
      return false;
  }
}

class AdminRun {
 public:
  AdminRun(const AdminCommand& command, Client& client, std::ostream& out)
      : command_(command), of_tenants_(command.kind == Kind::kTenants), client_(client), out_(out) {}

  absl::Status Run() {
    switch (command_.action) {
      case Action::kList:
        if (command_.kind == Kind::kVerifiers)
          return Show<v1::ListVerifiersResponse>(&Stub::ListVerifiers, v1::ListVerifiersRequest());
        return of_tenants_ ? Show<v1::ListTenantsResponse>(&Stub::ListTenants, v1::ListTenantsRequest())
                           : Show<v1::ListDraftersResponse>(&Stub::ListDrafters, v1::ListDraftersRequest());
      case Action::kGet:
        return of_tenants_ ? Show<v1::TenantInfo>(&Stub::GetTenant, Named<v1::GetTenantRequest>())
                           : Show<v1::DrafterInfo>(&Stub::GetDrafter, Named<v1::GetDrafterRequest>());
      case Action::kSet:
        return of_tenants_ ? SetTenant() : SetDrafter();
      case Action::kDelete:
        return Delete();
      case Action::kSwap:
        return Swap();
      case Action::kDrain: {
        auto request = Named<v1::DrainDrafterRequest>();
        request.set_undo(command_.undo);
        return Show<v1::DrafterInfo>(&Stub::DrainDrafter, request);
      }
      case Action::kWatch:
        return Watch();
      case Action::kForget:
        return Forget();
      case Action::kAdd:
        return Show<v1::VerifierInfo>(&Stub::AddVerifier, OfVerifier<v1::AddVerifierRequest>());
      case Action::kRemove: {
        v1::RemoveVerifierResponse response;
        return Call(&Stub::RemoveVerifier, OfVerifier<v1::RemoveVerifierRequest>(), &response);
      }
    }
    return absl::InternalError("unknown command");
  }

 private:
  template <class Request>
  Request Named() const {
    Request request;
    request.set_name(command_.name);
    return request;
  }

  template <class Request>
  Request OfVerifier() const {
    Request request;
    *request.mutable_config() = command_.verifier;
    return request;
  }

  template <class Request, class Response>
  absl::Status Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request, Response* response) {
    return client_.CallAdmin([&](Stub& stub, grpc::ClientContext& context) {
      return (stub.*method)(&context, request, response);
    });
  }

  // Calls, and prints the answer.
  template <class Response, class Request>
  absl::Status Show(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request) {
    Response response;
    TANDEM_RETURN_IF_ERROR(Call(method, request, &response));
    out_ << (command_.json ? MessageJson(response, true) : Table(response)) << std::flush;
    return absl::OkStatus();
  }

  absl::Status SetTenant() {
    v1::SetTenantRequest request;
    *request.mutable_config() = command_.tenant;
    request.mutable_config()->set_name(command_.name);
    request.mutable_fields()->Add(command_.fields.begin(), command_.fields.end());
    if (!command_.canary_fields.empty()) {
      // The trial's settings that are not given stay as they are.
      v1::TenantInfo before;
      const absl::Status status = Call(&Stub::GetTenant, Named<v1::GetTenantRequest>(), &before);
      if (!status.ok() && !absl::IsNotFound(status)) return status;
      *request.mutable_config()->mutable_canary() = before.config().canary();
      google::protobuf::FieldMask mask;
      for (const std::string& field : command_.canary_fields) mask.add_paths(field);
      // Fields that are given as their default, such as 0 percent, too.
      google::protobuf::util::FieldMaskUtil::MergeMessageTo(
          command_.canary, mask, google::protobuf::util::FieldMaskUtil::MergeOptions(),
          request.mutable_config()->mutable_canary());
      request.set_expected_version(before.version());
    }
    return Show<v1::TenantInfo>(&Stub::SetTenant, request);
  }

  absl::Status SetDrafter() {
    v1::SetDrafterRequest request;
    *request.mutable_config() = command_.drafter;
    request.mutable_config()->set_name(command_.name);
    request.mutable_fields()->Add(command_.fields.begin(), command_.fields.end());
    return Show<v1::DrafterInfo>(&Stub::SetDrafter, request);
  }

  absl::Status Delete() {
    v1::DeleteTenantResponse tenant;
    v1::DeleteDrafterResponse drafter;
    return of_tenants_ ? Call(&Stub::DeleteTenant, Named<v1::DeleteTenantRequest>(), &tenant)
                       : Call(&Stub::DeleteDrafter, Named<v1::DeleteDrafterRequest>(), &drafter);
  }

  absl::Status Swap() {
    v1::SwapTenantDrafterRequest request;
    request.set_tenant(command_.name);
    request.set_drafter(command_.swap_to);
    request.set_running(command_.running);
    v1::SwapTenantDrafterResponse response;
    TANDEM_RETURN_IF_ERROR(Call(&Stub::SwapTenantDrafter, request, &response));
    out_ << (command_.json ? MessageJson(response, true) : Table(response));
    if (command_.running && !command_.json) {
      out_ << "running sessions: " << response.num_moved() << " moved, " << response.num_failed()
           << " not moved";
      if (!response.failure().empty()) out_ << ": " << response.failure();
      out_ << "\n";
    }
    out_ << std::flush;
    return absl::OkStatus();
  }

  absl::Status Forget() {
    v1::DeleteRecordsRequest request;
    request.set_tenant(command_.name);
    request.set_request_id(command_.request_id);
    v1::DeleteRecordsResponse response;
    TANDEM_RETURN_IF_ERROR(Call(&Stub::DeleteRecords, request, &response));
    if (command_.json) {
      out_ << MessageJson(response, true);
    } else if (command_.request_id.empty()) {
      out_ << response.removed_files() << " files removed; "
           << (response.removed_key() ? "the key is deleted" : "there was no key") << "\n";
    } else {
      out_ << "readers skip the request from now on\n";
    }
    out_ << std::flush;
    return absl::OkStatus();
  }

  absl::Status Watch() {
    return client_.CallAdmin([&](Stub& stub, grpc::ClientContext& context) {
      const auto reader = stub.Watch(&context, v1::WatchRequest());
      v1::WatchEvent event;
      while (reader->Read(&event)) {
        if (!Concerns(event, command_.kind)) continue;
        out_ << (command_.json ? MessageJson(event, false) : EventText(event)) << std::flush;
      }
      return reader->Finish();
    });
  }

  const AdminCommand& command_;
  const bool of_tenants_;  // Otherwise of drafters, where both have the action.
  Client& client_;
  std::ostream& out_;
};

}  // namespace

int RunAdmin(const AdminCommand& command, Terminal& terminal, Interrupts& interrupts) {
  ConnectionOptions connection = command.connection;
  const bool watches = command.action == Action::kWatch;
  if (!watches) connection.timeout = std::min(connection.timeout, kAdminTimeout);
  Client client(connection, interrupts);
  const absl::Status status = AdminRun(command, client, terminal.out).Run();
  // Interrupting is how a watch ends.
  if (status.ok() || (watches && absl::IsCancelled(status))) return kExitOk;
  ReportFailure(status, terminal.err);
  return kExitFailure;
}

}  // namespace tandem::cli
