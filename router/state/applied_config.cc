#include "router/state/applied_config.h"

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/config/secret.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "router/config/config.h"
#include "router/state/routing_state.h"
#include "tandem/v1/state.pb.h"

namespace tandem::router {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

template <class M>
M OnlyField(const M& message, const FieldDescriptor* field) {
  M only = message;
  const google::protobuf::Reflection* reflection = only.GetReflection();
  for (int i = 0; i < only.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* other = only.GetDescriptor()->field(i);
    if (other != field) reflection->ClearField(&only, other);
  }
  return only;
}

// Gives `live` the fields in which `file` differs from `before`. Fields of `group` belong together: if one
// differs, all are taken.
template <class M>
void MergeChanges(const M& before, const M& file, const std::set<absl::string_view>& group, M* live) {
  std::vector<const FieldDescriptor*> fields;
  bool group_differs = false;
  for (int i = 0; i < file.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = file.GetDescriptor()->field(i);
    const bool differs =
        OnlyField(file, field).SerializeAsString() != OnlyField(before, field).SerializeAsString();
    const bool in_group = group.count(field->name()) > 0;
    group_differs = group_differs || (in_group && differs);
    if (differs && !in_group) fields.push_back(field);
  }
  for (int i = 0; group_differs && i < file.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = file.GetDescriptor()->field(i);
    if (group.count(field->name()) > 0) fields.push_back(field);
  }
  for (const FieldDescriptor* field : fields) {
    live->GetReflection()->ClearField(live, field);
    live->MergeFrom(OnlyField(file, field));
  }
}

// One kind of record: how it is kept and how the file's word on it is.
struct TenantKind {
  using Config = v1::TenantConfig;
  using Record = v1::TenantRecord;
  static constexpr absl::string_view kPrefix = kTenantPrefix;
  static Config* Applied(v1::AppliedConfig* applied) { return applied->mutable_tenant(); }
  static std::set<absl::string_view> Group() { return {"drafter", "drafter_policy", "canary"}; }
  static void OnChange(Record* record) { record->clear_rolled_back(); }
};

struct DrafterKind {
  using Config = v1::DrafterConfig;
  using Record = v1::DrafterRecord;
  static constexpr absl::string_view kPrefix = kDrafterPrefix;
  static Config* Applied(v1::AppliedConfig* applied) { return applied->mutable_drafter(); }
  static std::set<absl::string_view> Group() { return {}; }
  static void OnChange(Record*) {}
};

class Applier {
 public:
  explicit Applier(const RoutingStore::Listing& listing) {
    for (const StoredEntry& entry : listing.entries) entries_[entry.key] = &entry;
  }

  template <class Kind, class Configs>
  absl::Status Apply(const Configs& configs) {
    std::set<std::string> applied_keys;
    for (const auto& config : configs) {
      TANDEM_RETURN_IF_ERROR(ApplyOne<Kind>(config));
      applied_keys.insert(AppliedKey<Kind>(config.name()));
    }
    const std::string prefix = AppliedKey<Kind>("");
    for (auto entry = entries_.lower_bound(prefix);
         entry != entries_.end() && absl::StartsWith(entry->first, prefix); ++entry) {
      if (applied_keys.count(entry->first) > 0) continue;
      Write(entry->first, std::nullopt);
      const std::string record_key = entry->first.substr(kAppliedPrefix.size());
      if (entries_.count(record_key) > 0) Write(record_key, std::nullopt);
    }
    return absl::OkStatus();
  }

  std::vector<StoreChange> TakeChanges() { return std::move(changes_); }

 private:
  template <class Kind>
  static std::string AppliedKey(absl::string_view name) {
    return absl::StrCat(kAppliedPrefix, Kind::kPrefix, name);
  }

  template <class Kind>
  absl::Status ApplyOne(const typename Kind::Config& config) {
    const std::string record_key = absl::StrCat(Kind::kPrefix, config.name());
    const std::string applied_key = AppliedKey<Kind>(config.name());
    v1::AppliedConfig before;
    TANDEM_ASSIGN_OR_RETURN(const bool was_applied, Read(applied_key, &before));
    typename Kind::Record record;
    TANDEM_ASSIGN_OR_RETURN(const bool exists, Read(record_key, &record));
    v1::AppliedConfig now;
    *Kind::Applied(&now) = config;
    if (was_applied && now.SerializeAsString() == before.SerializeAsString()) return absl::OkStatus();
    Write(applied_key, now.SerializeAsString());
    if (exists) {
      MergeChanges(*Kind::Applied(&before), config, Kind::Group(), record.mutable_config());
      Kind::OnChange(&record);
    } else {
      *record.mutable_config() = config;
    }
    Write(record_key, record.SerializeAsString());
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Read(const std::string& key, Message* message) const {
    const auto found = entries_.find(key);
    if (found == entries_.end()) return false;
    if (!message->ParseFromString(found->second->value)) {
      return absl::DataLossError(
          absl::StrCat("the state's record \"", absl::CHexEscape(key), "\" is damaged"));
    }
    return true;
  }

  void Write(const std::string& key, std::optional<std::string> value) {
    const auto found = entries_.find(key);
    changes_.push_back({.key = key,
                        .value = std::move(value),
                        .expected_version = found == entries_.end() ? 0 : found->second->version});
  }

  std::map<std::string, const StoredEntry*, std::less<>> entries_;
  std::vector<StoreChange> changes_;
};

}  // namespace

v1::TenantConfig WithoutToken(v1::TenantConfig tenant) {
  if (tenant.token().empty()) return tenant;
  const Sha256Digest digest = Sha256(tenant.token());
  tenant.set_token_sha256(
      absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size())));
  Cleanse(*tenant.mutable_token());
  return tenant;
}

void HashTokens(v1::RouterConfig& config) {
  for (v1::TenantConfig& tenant : *config.mutable_tenants()) tenant = WithoutToken(std::move(tenant));
}

absl::StatusOr<std::vector<StoreChange>> ApplyConfigFile(const v1::RouterConfig& file,
                                                         const RoutingStore::Listing& listing) {
  std::vector<v1::TenantConfig> tenants;
  for (const v1::TenantConfig& tenant : file.tenants()) tenants.push_back(WithoutToken(tenant));
  Applier applier(listing);
  TANDEM_RETURN_IF_ERROR(applier.Apply<DrafterKind>(file.drafters()));
  TANDEM_RETURN_IF_ERROR(applier.Apply<TenantKind>(tenants));
  return applier.TakeChanges();
}

}  // namespace tandem::router
