#include "router/state/routing_state.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "router/state/applied_config.h"
#include "router/state/memory_store.h"
#include "tandem/v1/state.pb.h"

namespace tandem::router {
namespace {

// How often an edit begins again because another one came between.
constexpr int kMaxEditAttempts = 50;
constexpr char kEditsKey[] = "routing/edits";
// Of names in messages.
constexpr size_t kShownName = 64;

// The listing after `changes`, for looking at before they are made.
RoutingStore::Listing Changed(const RoutingStore::Listing& listing, const std::vector<StoreChange>& changes) {
  std::map<std::string, std::string> values;
  for (const StoredEntry& entry : listing.entries) values[entry.key] = entry.value;
  for (const StoreChange& change : changes) {
    if (change.value.has_value()) {
      values[change.key] = *change.value;
    } else {
      values.erase(change.key);
    }
  }
  RoutingStore::Listing changed{.version = listing.version};
  for (auto& [key, value] : values) changed.entries.push_back({.key = key, .value = std::move(value)});
  return changed;
}

using Reading = std::function<absl::StatusOr<RoutingStore::Listing>()>;

// Returns the store's version after the changes; 0: there was nothing to change.
absl::StatusOr<uint64_t> EditStore(const v1::RouterConfig& base, RoutingStore& store, const Reading& read,
                                   const RoutingState::Decide& decide) {
  absl::Status status;
  for (int attempt = 0; attempt < kMaxEditAttempts; ++attempt) {
    TANDEM_ASSIGN_OR_RETURN(const RoutingStore::Listing listing, read());
    TANDEM_ASSIGN_OR_RETURN(std::vector<StoreChange> changes, decide(listing));
    if (changes.empty()) return 0;
    TANDEM_ASSIGN_OR_RETURN(const v1::RouterConfig outcome, ConfigOf(base, Changed(listing, changes)));
    if (const absl::Status resolved = ResolveConfig(outcome).status(); !resolved.ok()) {
      return absl::Status(resolved.code(), WithNames(outcome, resolved.message()));
    }
    // What resolves together must be written together: every edit changes this one key, and so none comes
    // between another's reading and writing.
    uint64_t edits_version = 0;
    for (const StoredEntry& entry : listing.entries) {
      if (entry.key == kEditsKey) edits_version = entry.version;
    }
    changes.push_back({.key = kEditsKey, .value = "", .expected_version = edits_version});
    const absl::StatusOr<uint64_t> version = store.Update(changes);
    if (!absl::IsAborted(version.status())) return version;
    status = version.status();
  }
  return status;
}

// The same for every record that can be damaged: whether it can be read.
bool IsReadable(const StoredEntry& entry) {
  if (absl::StartsWith(entry.key, kTenantPrefix)) return v1::TenantRecord().ParseFromString(entry.value);
  if (absl::StartsWith(entry.key, kDrafterPrefix)) return v1::DrafterRecord().ParseFromString(entry.value);
  if (absl::StartsWith(entry.key, kVerifierPrefix)) return v1::VerifierRecord().ParseFromString(entry.value);
  if (absl::StartsWith(entry.key, kAppliedPrefix)) return v1::AppliedConfig().ParseFromString(entry.value);
  return true;
}

// What was said at run time of a verifier of one of the models.
void ApplyVerifier(const v1::VerifierRecord& record, v1::RouterConfig* config) {
  for (v1::TargetModelConfig& model : *config->mutable_models()) {
    if (model.name() != record.config().model()) continue;
    auto& verifiers = *model.mutable_verifiers();
    const auto found = std::find(verifiers.begin(), verifiers.end(), record.config().endpoint());
    if (record.removed() && found != verifiers.end()) verifiers.erase(found);
    if (!record.removed() && found == verifiers.end()) *verifiers.Add() = record.config().endpoint();
  }
}

}  // namespace

std::string VerifierKey(const v1::VerifierConfig& verifier) {
  return absl::StrCat(kVerifierPrefix, verifier.model(), " ", verifier.endpoint());
}

std::string WithNames(const v1::RouterConfig& config, absl::string_view message) {
  std::vector<std::pair<std::string, std::string>> names;
  const auto add = [&names](absl::string_view list, int index, absl::string_view what,
                            absl::string_view name) {
    names.emplace_back(absl::StrCat(list, "[", index, "]"),
                       absl::StrCat(what, " \"", absl::CHexEscape(name.substr(0, kShownName)), "\""));
  };
  for (int i = 0; i < config.models_size(); ++i) add("models", i, "model", config.models(i).name());
  for (int i = 0; i < config.tenants_size(); ++i) add("tenants", i, "tenant", config.tenants(i).name());
  for (int i = 0; i < config.drafters_size(); ++i) add("drafters", i, "drafter", config.drafters(i).name());
  return absl::StrReplaceAll(message, names);
}

absl::StatusOr<v1::RouterConfig> ConfigOf(const v1::RouterConfig& base,
                                          const RoutingStore::Listing& listing) {
  v1::RouterConfig config = base;
  const auto damaged = [](const StoredEntry& entry) {
    return absl::DataLossError(
        absl::StrCat("the state's record \"", absl::CHexEscape(entry.key), "\" is damaged"));
  };
  for (const StoredEntry& entry : listing.entries) {
    if (absl::StartsWith(entry.key, kTenantPrefix)) {
      v1::TenantRecord record;
      if (!record.ParseFromString(entry.value)) return damaged(entry);
      *config.add_tenants() = std::move(*record.mutable_config());
    } else if (absl::StartsWith(entry.key, kDrafterPrefix)) {
      v1::DrafterRecord record;
      if (!record.ParseFromString(entry.value)) return damaged(entry);
      *config.add_drafters() = std::move(*record.mutable_config());
    } else if (absl::StartsWith(entry.key, kVerifierPrefix)) {
      v1::VerifierRecord record;
      if (!record.ParseFromString(entry.value)) return damaged(entry);
      ApplyVerifier(record, &config);
    }
  }
  return config;
}

absl::StatusOr<std::unique_ptr<RoutingState>> RoutingState::Open(const v1::RouterConfig& file,
                                                                 std::unique_ptr<RoutingStore> store) {
  // By itself first, so that errors have the file's own paths.
  TANDEM_RETURN_IF_ERROR(ResolveConfig(file).status());
  v1::RouterConfig base = file;
  base.clear_tenants();
  base.clear_drafters();
  // Damage is an error here, because there is no earlier version to use.
  const absl::StatusOr<uint64_t> applied = EditStore(
      base, *store, [&store] { return store->List(kRoutingPrefix); },
      [&file](const RoutingStore::Listing& listing) { return ApplyConfigFile(file, listing); });
  TANDEM_RETURN_IF_ERROR(applied.status());
  TANDEM_ASSIGN_OR_RETURN(const RoutingStore::Listing listing, store->List(kRoutingPrefix));
  TANDEM_RETURN_IF_ERROR(ConfigOf(base, listing).status());
  auto state = std::unique_ptr<RoutingState>(new RoutingState(std::move(base), std::move(store)));
  // Before the first reading, so that no change falls between.
  state->watch_ = state->store_->WatchPrefix(std::string(kRoutingPrefix.data(), kRoutingPrefix.size()),
                                             [self = state.get()] { self->Follow(); });
  TANDEM_RETURN_IF_ERROR(state->Reload());
  return state;
}

absl::StatusOr<std::unique_ptr<RoutingState>> RoutingState::InMemory(const v1::RouterConfig& file) {
  return Open(file, std::make_unique<MemoryStore>());
}

RoutingState::RoutingState(v1::RouterConfig base, std::unique_ptr<RoutingStore> store)
    : base_(std::move(base)), store_(std::move(store)) {}

RoutingState::~RoutingState() {
  watch_.reset();
}

absl::Status RoutingState::Edit(const Decide& decide) {
  TANDEM_ASSIGN_OR_RETURN(const uint64_t version, EditStore(
                                                      base_, *store_, [this] { return List(); }, decide));
  // A store elsewhere calls the watch some time later.
  if (snapshot()->version() < version) Follow();
  return absl::OkStatus();
}

absl::Status RoutingState::ApplyFile(const v1::RouterConfig& file) {
  TANDEM_RETURN_IF_ERROR(ResolveConfig(file).status());
  return Edit([&file](const RoutingStore::Listing& listing) { return ApplyConfigFile(file, listing); });
}

absl::StatusOr<RoutingStore::Listing> RoutingState::List() {
  TANDEM_ASSIGN_OR_RETURN(RoutingStore::Listing listing, store_->List(kRoutingPrefix));
  absl::MutexLock lock(&mutex_);
  WithoutDamage(&listing);
  return listing;
}

std::map<std::string, uint64_t> RoutingState::WithoutDamage(RoutingStore::Listing* listing) const {
  std::map<std::string, uint64_t> damaged;
  std::vector<StoredEntry> entries;
  for (StoredEntry& entry : listing->entries) {
    if (!IsReadable(entry)) {
      damaged[entry.key] = entry.version;
      const auto before = readable_.find(entry.key);
      if (before == readable_.end()) continue;
      entry.value = before->second;
    }
    entries.push_back(std::move(entry));
  }
  listing->entries = std::move(entries);
  return damaged;
}

void RoutingState::Remember(const RoutingStore::Listing& listing, std::map<std::string, uint64_t> damaged) {
  readable_.clear();
  for (const StoredEntry& entry : listing.entries) readable_[entry.key] = entry.value;
  for (const auto& [key, version] : damaged) {
    const auto known = damaged_.find(key);
    if (known != damaged_.end() && known->second == version) continue;
    LogError("a record of the state is damaged; routing keeps its last good value",
             {{"key", absl::CHexEscape(key)}});
  }
  damaged_ = std::move(damaged);
  condition_.damaged_records = damaged_.size();
}

RoutingState::Condition RoutingState::condition() const {
  absl::MutexLock lock(&mutex_);
  return condition_;
}

std::shared_ptr<const RoutingSnapshot> RoutingState::snapshot() const {
  absl::MutexLock lock(&mutex_);
  return snapshot_;
}

void RoutingState::Follow() {
  const absl::Status status = Reload();
  if (status.ok()) return;
  LogError("the state cannot be used; routing keeps the previous state",
           {{"error", std::string(status.message())}});
}

absl::Status RoutingState::Reload() {
  absl::MutexLock reload_lock(&reload_mutex_);
  const absl::StatusOr<std::shared_ptr<const RoutingSnapshot>> snapshot = Read();
  {
    absl::MutexLock lock(&mutex_);
    condition_.stale = !snapshot.ok();
    if (snapshot.ok()) snapshot_ = *snapshot;
  }
  if (snapshot.ok() && tell_verifiers_) tell_verifiers_((*snapshot)->table());
  return snapshot.status();
}

void RoutingState::TellVerifiers(std::function<void(const RoutingTable&)> tell) {
  absl::MutexLock lock(&reload_mutex_);
  tell_verifiers_ = std::move(tell);
  if (tell_verifiers_) tell_verifiers_(snapshot()->table());
}

absl::StatusOr<std::shared_ptr<const RoutingSnapshot>> RoutingState::Read() {
  TANDEM_ASSIGN_OR_RETURN(RoutingStore::Listing listing, store_->List(kRoutingPrefix));
  {
    absl::MutexLock lock(&mutex_);
    std::map<std::string, uint64_t> damaged = WithoutDamage(&listing);
    Remember(listing, std::move(damaged));
  }
  TANDEM_ASSIGN_OR_RETURN(v1::RouterConfig config, ConfigOf(base_, listing));
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<const RoutingSnapshot> snapshot, Resolve(config, listing.version));
  resolved_ = std::move(config);
  return snapshot;
}

absl::StatusOr<std::shared_ptr<const RoutingSnapshot>> RoutingState::Resolve(const v1::RouterConfig& config,
                                                                             uint64_t version) const {
  absl::StatusOr<RoutingTable> table = ResolveConfig(config, registered_);
  if (!table.ok()) return absl::Status(table.status().code(), WithNames(config, table.status().message()));
  const std::shared_ptr<const RoutingSnapshot> before = snapshot();
  return std::make_shared<const RoutingSnapshot>(*std::move(table), version, before.get());
}

bool RoutingState::IsConfigured(const std::string& drafter) const {
  absl::MutexLock lock(&reload_mutex_);
  return std::any_of(resolved_.drafters().begin(), resolved_.drafters().end(),
                     [&drafter](const v1::DrafterConfig& config) { return config.name() == drafter; });
}

void RoutingState::SetRegistered(std::vector<Drafter> drafters) {
  absl::MutexLock reload_lock(&reload_mutex_);
  registered_ = std::move(drafters);
  // Of what is in force, without asking the store, which may be out of reach. It resolved before, and whoever
  // registers takes no name from anybody.
  absl::StatusOr<std::shared_ptr<const RoutingSnapshot>> snapshot =
      Resolve(resolved_, this->snapshot()->version());
  if (!snapshot.ok()) {
    LogError("registered drafters cannot be used", {{"error", std::string(snapshot.status().message())}});
    return;
  }
  absl::MutexLock lock(&mutex_);
  snapshot_ = *std::move(snapshot);
}

}  // namespace tandem::router
