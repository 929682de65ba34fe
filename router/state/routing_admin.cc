#include "router/state/routing_admin.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "router/state/applied_config.h"
#include "tandem/v1/state.pb.h"

namespace tandem::router {
namespace {

template <class Record>
struct Versioned {
  Record record;
  uint64_t version = 0;
};

// The records of a listing, by name.
struct Records {
  std::map<std::string, Versioned<v1::TenantRecord>> tenants;
  std::map<std::string, Versioned<v1::DrafterRecord>> drafters;
  std::map<std::string, Versioned<v1::VerifierRecord>> verifiers;  // By model and endpoint.
};

template <class Record>
absl::Status ReadRecord(const StoredEntry& entry, absl::string_view prefix,
                        std::map<std::string, Versioned<Record>>* records) {
  if (!absl::StartsWith(entry.key, prefix)) return absl::OkStatus();
  Versioned<Record>& versioned = (*records)[entry.key.substr(prefix.size())];
  versioned.version = entry.version;
  if (versioned.record.ParseFromString(entry.value)) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("the state's record \"", absl::CHexEscape(entry.key), "\" is damaged"));
}

absl::StatusOr<Records> ReadRecords(const RoutingStore::Listing& listing) {
  Records records;
  for (const StoredEntry& entry : listing.entries) {
    TANDEM_RETURN_IF_ERROR(ReadRecord(entry, kTenantPrefix, &records.tenants));
    TANDEM_RETURN_IF_ERROR(ReadRecord(entry, kDrafterPrefix, &records.drafters));
    TANDEM_RETURN_IF_ERROR(ReadRecord(entry, kVerifierPrefix, &records.verifiers));
  }
  return records;
}

absl::StatusOr<Records> ReadRecords(RoutingState& state) {
  TANDEM_ASSIGN_OR_RETURN(const RoutingStore::Listing listing, state.List());
  return ReadRecords(listing);
}

v1::TenantInfo Describe(const Versioned<v1::TenantRecord>& tenant) {
  v1::TenantInfo info;
  *info.mutable_config() = tenant.record.config();
  info.set_version(tenant.version);
  info.set_rolled_back(tenant.record.rolled_back());
  return info;
}

v1::DrafterInfo Describe(const Versioned<v1::DrafterRecord>& drafter, const Records& records) {
  v1::DrafterInfo info;
  *info.mutable_config() = drafter.record.config();
  info.set_version(drafter.version);
  for (const auto& [name, tenant] : records.tenants) {
    const v1::TenantConfig& config = tenant.record.config();
    if (config.drafter() == info.config().name() || config.canary().drafter() == info.config().name()) {
      info.add_tenants(name);
    }
  }
  return info;
}

absl::Status NotFound(absl::string_view what, absl::string_view name) {
  return absl::NotFoundError(
      absl::StrCat("there is no ", what, " \"", absl::CHexEscape(name.substr(0, 128)), "\""));
}

template <class Map>
absl::StatusOr<typename Map::const_iterator> Find(const Map& records, absl::string_view what,
                                                  const std::string& name) {
  const auto found = records.find(name);
  if (found == records.end()) return NotFound(what, name);
  return found;
}

// Gives `target` the fields of `source` that are named, or all of them but the name.
absl::Status SetFields(const google::protobuf::Message& source,
                       const google::protobuf::RepeatedPtrField<std::string>& fields,
                       google::protobuf::Message* target) {
  if (fields.empty()) {
    target->CopyFrom(source);
    return absl::OkStatus();
  }
  const google::protobuf::Descriptor* type = source.GetDescriptor();
  for (const std::string& name : fields) {
    const google::protobuf::FieldDescriptor* field = type->FindFieldByName(name);
    if (field == nullptr || name == "name") {
      return absl::InvalidArgumentError(absl::StrCat("fields: \"", absl::CHexEscape(name.substr(0, 64)),
                                                     "\" is not a settable field of ", type->name()));
    }
    target->GetReflection()->ClearField(target, field);
    const std::unique_ptr<google::protobuf::Message> only(source.New());
    only->CopyFrom(source);
    for (int i = 0; i < type->field_count(); ++i) {
      if (type->field(i) != field) only->GetReflection()->ClearField(only.get(), type->field(i));
    }
    target->MergeFrom(*only);
  }
  return absl::OkStatus();
}

absl::Status CheckVersion(uint64_t expected, uint64_t version, absl::string_view what,
                          absl::string_view name) {
  if (expected == 0 || expected == version) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat(what, " \"", name, "\" has changed in the meantime: its version is ",
                                         version, ", expected ", expected));
}

// Tokens are checked here, because the configuration's check sees their digests only.
absl::Status CheckToken(const v1::TenantConfig& config) {
  if (!config.token().empty() && !config.token_sha256().empty()) {
    return absl::InvalidArgumentError("config: expected one of token and token_sha256, found both");
  }
  if (!std::all_of(config.token().begin(), config.token().end(),
                   [](char c) { return absl::ascii_isgraph(c); })) {
    return absl::InvalidArgumentError("config.token: expected printable ASCII characters without blanks");
  }
  return absl::OkStatus();
}

// Changes must leave somebody who can change things again.
absl::Status CheckAdminStays(const Records& records, const std::string& tenant) {
  for (const auto& [name, other] : records.tenants) {
    if (name != tenant && other.record.config().admin()) return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("tenant \"", tenant,
                   "\" is the last one with `admin`; without it, nobody could change the configuration"));
}

StoreChange WriteTenant(const v1::TenantRecord& record) {
  return {.key = absl::StrCat(kTenantPrefix, record.config().name()), .value = record.SerializeAsString()};
}

StoreChange WriteDrafter(const v1::DrafterRecord& record) {
  return {.key = absl::StrCat(kDrafterPrefix, record.config().name()), .value = record.SerializeAsString()};
}

// A drafter that is configured or has registered, by its name.
absl::Status CheckTakesSessions(const RoutingState& state, const Records& records, const std::string& name) {
  const auto found = records.drafters.find(name);
  if (found != records.drafters.end()) {
    if (!found->second.record.config().draining()) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("drafter \"", name, "\" is draining"));
  }
  const std::shared_ptr<const RoutingSnapshot> routing = state.snapshot();
  for (const Drafter& drafter : routing->table().drafters) {
    if (drafter.name == name && !drafter.absent) return absl::OkStatus();
  }
  return NotFound("drafter", name);
}

using Changes = absl::StatusOr<std::vector<StoreChange>>;

// A path names a different socket on each machine. Verifiers connect to it only if the operator's
// configuration says so, not at the request of anybody with an admin's token.
absl::Status CheckEndpoint(const std::string& endpoint) {
  if (!absl::StartsWith(endpoint, "unix:") && !absl::StartsWith(endpoint, "unix-abstract:"))
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("config.endpoint: \"", absl::CHexEscape(endpoint),
                   "\", expected host:port; sockets of one machine can only be named in "
                   "the configuration file"));
}

// NotFound for a model that is not served here. The rest ResolveConfig looks at.
absl::Status CheckVerifier(const v1::VerifierConfig& verifier, const v1::RouterConfig& base) {
  std::vector<std::string> names;
  for (const v1::TargetModelConfig& model : base.models()) {
    if (model.name() == verifier.model()) return absl::OkStatus();
    names.push_back(model.name());
  }
  const absl::Status missing = NotFound("model", verifier.model());
  return absl::NotFoundError(
      absl::StrCat(missing.message(), ", expected one of: ", absl::StrJoin(names, ", ")));
}

bool IsInFile(const v1::VerifierConfig& verifier, const v1::RouterConfig& base) {
  return std::any_of(base.models().begin(), base.models().end(), [&verifier](const auto& model) {
    return model.name() == verifier.model() &&
           std::count(model.verifiers().begin(), model.verifiers().end(), verifier.endpoint()) > 0;
  });
}

// What was said of it at run time; null for nothing.
const v1::VerifierRecord* SaidOf(const v1::VerifierConfig& verifier, const Records& records) {
  const auto found = records.verifiers.find(VerifierKey(verifier).substr(kVerifierPrefix.size()));
  return found == records.verifiers.end() ? nullptr : &found->second.record;
}

v1::VerifierInfo Describe(const v1::VerifierConfig& verifier, const v1::RouterConfig& base,
                          const Records& records) {
  v1::VerifierInfo info;
  *info.mutable_config() = verifier;
  info.set_in_file(IsInFile(verifier, base));
  const v1::VerifierRecord* said = SaidOf(verifier, records);
  info.set_removed(said != nullptr && said->removed());
  return info;
}

}  // namespace

absl::StatusOr<v1::ListTenantsResponse> ListTenants(RoutingState& state) {
  TANDEM_ASSIGN_OR_RETURN(const Records records, ReadRecords(state));
  v1::ListTenantsResponse response;
  for (const auto& [name, tenant] : records.tenants) *response.add_tenants() = Describe(tenant);
  return response;
}

absl::StatusOr<v1::TenantInfo> GetTenant(RoutingState& state, const std::string& name) {
  TANDEM_ASSIGN_OR_RETURN(const Records records, ReadRecords(state));
  TANDEM_ASSIGN_OR_RETURN(const auto found, Find(records.tenants, "tenant", name));
  return Describe(found->second);
}

absl::StatusOr<v1::TenantInfo> SetTenant(RoutingState& state, const v1::SetTenantRequest& request) {
  TANDEM_RETURN_IF_ERROR(CheckToken(request.config()));
  const v1::TenantConfig config = WithoutToken(request.config());
  // The store holds the digest, whichever of the two was given.
  google::protobuf::RepeatedPtrField<std::string> fields = request.fields();
  std::replace(fields.begin(), fields.end(), std::string("token"), std::string("token_sha256"));
  const absl::Status edited = state.Edit([&](const RoutingStore::Listing& listing) -> Changes {
    TANDEM_ASSIGN_OR_RETURN(const Records records, ReadRecords(listing));
    v1::TenantRecord record;
    uint64_t version = 0;
    if (const auto found = records.tenants.find(config.name()); found != records.tenants.end()) {
      record = found->second.record;
      version = found->second.version;
    }
    TANDEM_RETURN_IF_ERROR(CheckVersion(request.expected_version(), version, "tenant", config.name()));
    const v1::TenantConfig before = record.config();
    TANDEM_RETURN_IF_ERROR(SetFields(config, fields, record.mutable_config()));
    record.mutable_config()->set_name(config.name());
    if (record.config().token_sha256().empty()) {
      record.mutable_config()->set_token_sha256(before.token_sha256());
    }
    if (before.admin() && !record.config().admin()) {
      TANDEM_RETURN_IF_ERROR(CheckAdminStays(records, config.name()));
    }
    record.clear_rolled_back();
    return std::vector<StoreChange>{WriteTenant(record)};
  });
  TANDEM_RETURN_IF_ERROR(edited);
  return GetTenant(state, config.name());
}

absl::Status DeleteTenant(RoutingState& state, const std::string& name) {
  return state.Edit([&](const RoutingStore::Listing& listing) -> Changes {
    TANDEM_ASSIGN_OR_RETURN(const Records records, ReadRecords(listing));
    TANDEM_ASSIGN_OR_RETURN(const auto found, Find(records.tenants, "tenant", name));
    if (found->second.record.config().admin()) TANDEM_RETURN_IF_ERROR(CheckAdminStays(records, name));
    return std::vector<StoreChange>{{.key = absl::StrCat(kTenantPrefix, name)}};
  });
}

absl::StatusOr<v1::ListDraftersResponse> ListDrafters(RoutingState& state) {
  TANDEM_ASSIGN_OR_RETURN(const Records records, ReadRecords(state));
  v1::ListDraftersResponse response;
  for (const auto& [name, drafter] : records.drafters) *response.add_drafters() = Describe(drafter, records);
  return response;
}

absl::StatusOr<v1::DrafterInfo> GetDrafter(RoutingState& state, const std::string& name) {
  TANDEM_ASSIGN_OR_RETURN(const Records records, ReadRecords(state));
  TANDEM_ASSIGN_OR_RETURN(const auto found, Find(records.drafters, "drafter", name));
  return Describe(found->second, records);
}

absl::StatusOr<v1::DrafterInfo> SetDrafter(RoutingState& state, const v1::SetDrafterRequest& request) {
  const std::string& name = request.config().name();
  const absl::Status edited = state.Edit([&](const RoutingStore::Listing& listing) -> Changes {
    TANDEM_ASSIGN_OR_RETURN(const Records records, ReadRecords(listing));
    v1::DrafterRecord record;
    uint64_t version = 0;
    if (const auto found = records.drafters.find(name); found != records.drafters.end()) {
      record = found->second.record;
      version = found->second.version;
    }
    TANDEM_RETURN_IF_ERROR(CheckVersion(request.expected_version(), version, "drafter", name));
    const std::string endpoint = record.config().endpoint();
    TANDEM_RETURN_IF_ERROR(SetFields(request.config(), request.fields(), record.mutable_config()));
    if (record.config().endpoint() != endpoint)
      TANDEM_RETURN_IF_ERROR(CheckEndpoint(record.config().endpoint()));
    record.mutable_config()->set_name(name);
    return std::vector<StoreChange>{WriteDrafter(record)};
  });
  TANDEM_RETURN_IF_ERROR(edited);
  return GetDrafter(state, name);
}

absl::Status DeleteDrafter(RoutingState& state, const std::string& name) {
  return state.Edit([&](const RoutingStore::Listing& listing) -> Changes {
    TANDEM_ASSIGN_OR_RETURN(const Records records, ReadRecords(listing));
    TANDEM_RETURN_IF_ERROR(Find(records.drafters, "drafter", name).status());
    std::vector<std::string> users;
    for (const auto& [tenant, versioned] : records.tenants) {
      const v1::TenantConfig& config = versioned.record.config();
      const auto& allowed = config.allowed_drafters();
      if (config.drafter() == name || config.canary().drafter() == name || config.partner() == name ||
          std::find(allowed.begin(), allowed.end(), name) != allowed.end()) {
        users.push_back(absl::StrCat("\"", tenant, "\""));
      }
    }
    if (!users.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("drafter \"", name, "\" is in use by tenant ", absl::StrJoin(users, ", ")));
    }
    return std::vector<StoreChange>{{.key = absl::StrCat(kDrafterPrefix, name)}};
  });
}

absl::StatusOr<v1::DrafterInfo> DrainDrafter(RoutingState& state, const std::string& name, bool undo) {
  // Otherwise draining an unknown drafter would create it.
  TANDEM_RETURN_IF_ERROR(GetDrafter(state, name).status());
  v1::SetDrafterRequest request;
  request.mutable_config()->set_name(name);
  request.mutable_config()->set_draining(!undo);
  request.add_fields("draining");
  // One that was deleted meanwhile would come back without an endpoint, which does not resolve.
  return SetDrafter(state, request);
}

absl::StatusOr<v1::ListVerifiersResponse> ListVerifiers(RoutingState& state) {
  TANDEM_ASSIGN_OR_RETURN(const Records records, ReadRecords(state));
  v1::ListVerifiersResponse response;
  for (const v1::TargetModelConfig& model : state.base().models()) {
    for (const std::string& endpoint : model.verifiers()) {
      v1::VerifierConfig verifier;
      verifier.set_model(model.name());
      verifier.set_endpoint(endpoint);
      *response.add_verifiers() = Describe(verifier, state.base(), records);
    }
    for (const auto& [name, added] : records.verifiers) {
      const v1::VerifierConfig& verifier = added.record.config();
      if (verifier.model() != model.name() || IsInFile(verifier, state.base())) continue;
      if (!added.record.removed()) *response.add_verifiers() = Describe(verifier, state.base(), records);
    }
  }
  return response;
}

absl::StatusOr<v1::VerifierInfo> AddVerifier(RoutingState& state, const v1::VerifierConfig& verifier) {
  TANDEM_RETURN_IF_ERROR(CheckVerifier(verifier, state.base()));
  const bool in_file = IsInFile(verifier, state.base());
  if (!in_file) TANDEM_RETURN_IF_ERROR(CheckEndpoint(verifier.endpoint()));
  const absl::Status edited = state.Edit([&](const RoutingStore::Listing& listing) -> Changes {
    TANDEM_ASSIGN_OR_RETURN(const Records records, ReadRecords(listing));
    const v1::VerifierRecord* said = SaidOf(verifier, records);
    // A router with another file may have said that it is gone.
    if (said == nullptr ? in_file : !said->removed()) return std::vector<StoreChange>();
    if (in_file) return std::vector<StoreChange>{{.key = VerifierKey(verifier)}};
    v1::VerifierRecord record;
    *record.mutable_config() = verifier;
    return std::vector<StoreChange>{{.key = VerifierKey(verifier), .value = record.SerializeAsString()}};
  });
  TANDEM_RETURN_IF_ERROR(edited);
  v1::VerifierInfo info;
  *info.mutable_config() = verifier;
  info.set_in_file(in_file);
  return info;
}

absl::Status RemoveVerifier(RoutingState& state, const v1::VerifierConfig& verifier) {
  TANDEM_RETURN_IF_ERROR(CheckVerifier(verifier, state.base()));
  const bool in_file = IsInFile(verifier, state.base());
  return state.Edit([&](const RoutingStore::Listing& listing) -> Changes {
    TANDEM_ASSIGN_OR_RETURN(const Records records, ReadRecords(listing));
    const v1::VerifierRecord* said = SaidOf(verifier, records);
    if (said == nullptr ? !in_file : said->removed()) {
      return absl::NotFoundError(absl::StrCat(
          "model \"", verifier.model(), "\" has no verifier \"", absl::CHexEscape(verifier.endpoint()),
          "\" from the configuration or AddVerifier; a registered verifier leaves by itself"));
    }
    if (!in_file) return std::vector<StoreChange>{{.key = VerifierKey(verifier)}};
    v1::VerifierRecord record;
    *record.mutable_config() = verifier;
    record.set_removed(true);
    return std::vector<StoreChange>{{.key = VerifierKey(verifier), .value = record.SerializeAsString()}};
  });
}

absl::StatusOr<v1::SwapTenantDrafterResponse> SwapTenantDrafter(RoutingState& state,
                                                                const std::string& tenant,
                                                                const std::string& drafter) {
  v1::SwapTenantDrafterResponse response;
  const absl::Status edited = state.Edit([&](const RoutingStore::Listing& listing) -> Changes {
    TANDEM_ASSIGN_OR_RETURN(const Records records, ReadRecords(listing));
    TANDEM_ASSIGN_OR_RETURN(const auto found, Find(records.tenants, "tenant", tenant));
    TANDEM_RETURN_IF_ERROR(CheckTakesSessions(state, records, drafter));
    v1::TenantRecord record = found->second.record;
    response.set_previous_drafter(record.config().drafter());
    record.mutable_config()->set_drafter(drafter);
    record.mutable_config()->set_drafter_policy(v1::DRAFTER_POLICY_PINNED);
    record.mutable_config()->clear_canary();
    record.clear_rolled_back();
    return std::vector<StoreChange>{WriteTenant(record)};
  });
  TANDEM_RETURN_IF_ERROR(edited);
  TANDEM_ASSIGN_OR_RETURN(*response.mutable_tenant(), GetTenant(state, tenant));
  return response;
}

absl::StatusOr<bool> EndCanary(RoutingState& state, const std::string& tenant, const std::string& own,
                               const std::string& canary, CanaryEnd end, absl::string_view reason,
                               absl::Time now) {
  bool ended = false;
  const absl::Status edited = state.Edit([&](const RoutingStore::Listing& listing) -> Changes {
    ended = false;
    TANDEM_ASSIGN_OR_RETURN(const Records records, ReadRecords(listing));
    const auto found = records.tenants.find(tenant);
    if (found == records.tenants.end()) return std::vector<StoreChange>();
    v1::TenantRecord record = found->second.record;
    v1::TenantConfig& config = *record.mutable_config();
    if (config.drafter_policy() != v1::DRAFTER_POLICY_CANARY || config.drafter() != own ||
        config.canary().drafter() != canary) {
      return std::vector<StoreChange>();
    }
    config.set_drafter_policy(v1::DRAFTER_POLICY_PINNED);
    config.clear_canary();
    if (end == CanaryEnd::kPromoted) {
      config.set_drafter(canary);
      record.clear_rolled_back();
    } else {
      record.set_rolled_back(
          absl::StrCat(absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", now, absl::UTCTimeZone()), ": ", reason));
    }
    ended = true;
    return std::vector<StoreChange>{WriteTenant(record)};
  });
  TANDEM_RETURN_IF_ERROR(edited);
  return ended;
}

absl::StatusOr<std::vector<v1::WatchEvent>> ChangeFeed::Next(RoutingState& state) {
  TANDEM_ASSIGN_OR_RETURN(const RoutingStore::Listing listing, state.List());
  TANDEM_ASSIGN_OR_RETURN(const Records records, ReadRecords(listing));
  std::vector<v1::WatchEvent> events;
  std::map<std::string, v1::VerifierInfo> verifiers;
  for (const auto& [key, versioned] : records.verifiers) {
    v1::VerifierInfo& info = verifiers[key];
    info = Describe(versioned.record.config(), state.base(), records);
    const auto told = verifiers_.find(key);
    if (told != verifiers_.end() && told->second.SerializeAsString() == info.SerializeAsString()) continue;
    *events.emplace_back().mutable_verifier() = info;
  }
  for (const auto& [key, told] : verifiers_) {
    if (verifiers.count(key) > 0) continue;
    if (told.in_file()) {
      v1::VerifierInfo& info = *events.emplace_back().mutable_verifier();
      info = told;
      info.set_removed(false);
    } else {
      *events.emplace_back().mutable_deleted_verifier() = told.config();
    }
  }
  verifiers_ = std::move(verifiers);
  std::map<std::string, std::string> drafters;
  for (const auto& [name, drafter] : records.drafters) {
    v1::WatchEvent event;
    *event.mutable_drafter() = Describe(drafter, records);
    drafters[name] = event.SerializeAsString();
    if (drafters_[name] != drafters[name]) events.push_back(std::move(event));
  }
  std::map<std::string, std::string> tenants;
  for (const auto& [name, tenant] : records.tenants) {
    v1::WatchEvent event;
    *event.mutable_tenant() = Describe(tenant);
    tenants[name] = event.SerializeAsString();
    if (tenants_[name] != tenants[name]) events.push_back(std::move(event));
  }
  for (const auto& [name, told] : tenants_) {
    if (tenants.count(name) == 0) events.emplace_back().set_deleted_tenant(name);
  }
  for (const auto& [name, told] : drafters_) {
    if (drafters.count(name) == 0) events.emplace_back().set_deleted_drafter(name);
  }
  if (!synced_) events.emplace_back().set_synced(listing.version);
  synced_ = true;
  tenants_ = std::move(tenants);
  drafters_ = std::move(drafters);
  return events;
}

}  // namespace tandem::router
