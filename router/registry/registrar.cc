#include "router/registry/registrar.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "router/state/memory_lease_store.h"
#include "tandem/v1/state.pb.h"

namespace tandem::router {
namespace {

// How often a registration begins again because the store was not as it was thought to be.
constexpr int kMaxAttempts = 5;
// Of a ttl: what a server may lose two of without its lease ending.
constexpr int kRenewalsPerTtl = 3;
// A router that has not looked for so long has stood still, or its clock was set.
constexpr absl::Duration kStandstill = absl::Seconds(2);

std::string KindOf(const v1::ServerRegistration& server) {
  return server.has_verifier() ? "verifier" : "drafter";
}

bool IsOutOfReach(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

// Whether it is the process that is registered.
bool IsThere(const ServerList::Known* known, const v1::ServerInstance& instance) {
  return known != nullptr && !known->left && known->server.instance().instance() == instance.instance();
}

}  // namespace

Registrar::Registrar(Options options)
    : options_(std::move(options)),
      own_leases_(options_.leases != nullptr ? nullptr : std::make_unique<MemoryLeaseStore>(options_.clock)),
      leases_(options_.leases != nullptr ? options_.leases : own_leases_.get()),
      list_(options_.servers),
      last_look_(options_.clock->Now()),
      told_verifiers_(options_.servers.models.size()) {
  options_.set_counts(0, 0);
  watch_ = leases_->WatchPrefix(std::string(kRegisteredPrefix.data(), kRegisteredPrefix.size()), [this] {
    absl::MutexLock lock(&change_mutex_);
    changed_ = true;
  });
}

Registrar::~Registrar() {
  watch_.reset();
}

void Registrar::AwaitChange(absl::Duration timeout) {
  absl::MutexLock lock(&change_mutex_);
  change_mutex_.AwaitWithTimeout(absl::Condition(&changed_), timeout);
}

bool Registrar::TakeChange() {
  absl::MutexLock lock(&change_mutex_);
  return std::exchange(changed_, false);
}

v1::RegisterResponse Registrar::Answer() const {
  const double ttl = absl::ToDoubleSeconds(options_.servers.registration.ttl);
  v1::RegisterResponse response;
  response.set_ttl_seconds(ttl);
  response.set_renew_after_seconds(ttl / kRenewalsPerTtl);
  return response;
}

absl::StatusOr<v1::RegisterResponse> Registrar::Register(const v1::RegisterRequest& request,
                                                         std::optional<PeerAddress> from) {
  v1::ServerRegistration server = request.server();
  // What a later version says is not this one's to keep.
  server.DiscardUnknownFields();
  TANDEM_RETURN_IF_ERROR(CheckRegistration(server));
  absl::MutexLock lock(&mutex_);
  Look();
  return RegisterLocked(server, from);
}

absl::Status Registrar::CheckShare(PeerAddress from) {
  std::erase_if(registered_from_, [this](const auto& one) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return list_.Find(one.first) == nullptr;
  });
  const auto count = std::count_if(registered_from_.begin(), registered_from_.end(),
                                   [from](const auto& one) { return one.second == from; });
  const uint32_t most = options_.servers.registration.max_per_address;
  if (count < most) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      count,
      " servers have registered from this address, which is the limit (registration.max_per_address)"));
}

absl::StatusOr<v1::RegisterResponse> Registrar::RegisterLocked(const v1::ServerRegistration& server,
                                                               std::optional<PeerAddress> from) {
  const std::string key = RegistrationKey(server.instance(), server.has_verifier());
  // What the store has of it may have ended since.
  if (own_leases_ != nullptr) TANDEM_RETURN_IF_ERROR(Reread());
  if (from.has_value() && list_.Find(key) == nullptr) TANDEM_RETURN_IF_ERROR(CheckShare(*from));
  absl::Status status;
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    status = Write(server, key);
    if (status.ok() || (!absl::IsAborted(status) && !absl::IsNotFound(status))) break;
    if (const absl::Status read = Reread(); !read.ok()) status = read;
    if (IsOutOfReach(status)) break;
  }
  // Routing goes on as it was while the store is out of reach, and so does the server's part in it.
  if (IsOutOfReach(status) && IsThere(list_.Find(key), server.instance())) status = absl::OkStatus();
  EndOutdated(server);
  if (!status.ok()) {
    Publish();
    return status;
  }
  list_.Heard(key, options_.clock->Now());
  if (from.has_value()) registered_from_.insert_or_assign(key, *from);
  Publish();
  return Answer();
}

absl::Status Registrar::Write(const v1::ServerRegistration& server, const std::string& key) {
  TANDEM_ASSIGN_OR_RETURN(const ServerList::Step step, list_.Decide(server, options_.is_configured));
  const ServerList::Known* const present = list_.Find(key);
  if (step == ServerList::Step::kRenew) return leases_->RenewLease(present->entry);
  const bool is_new = !IsThere(present, server.instance());
  TANDEM_RETURN_IF_ERROR(Put(server, /*left=*/false, key));
  if (is_new) {
    LogInfo("server registered", {{"kind", KindOf(server)},
                                  {"name", server.instance().name()},
                                  {"address", server.address()},
                                  {"version", Shown(server.version())}});
  }
  return absl::OkStatus();
}

absl::Status Registrar::Put(const v1::ServerRegistration& server, bool left, const std::string& key) {
  const ServerList::Known* const present = list_.Find(key);
  v1::RegistrationRecord record;
  *record.mutable_server() = server;
  record.set_left(left);
  TANDEM_ASSIGN_OR_RETURN(
      const LeasedEntry entry,
      leases_->PutLeased({.key = key,
                          .value = record.SerializeAsString(),
                          .ttl = options_.servers.registration.ttl,
                          .expected_version = present == nullptr ? 0 : present->entry.version,
                          .replaced_lease = present == nullptr ? 0 : present->entry.lease}));
  list_.Stored(entry, server, left);
  return absl::OkStatus();
}

void Registrar::EndOutdated(const v1::ServerRegistration& server) {
  for (const std::string& key : list_.OutdatedBy(server)) {
    const v1::ServerRegistration before = list_.Find(key)->server;
    const absl::Status status = Put(before, /*left=*/true, key);
    LogInfo("server replaced: another one started at its address", {{"kind", KindOf(before)},
                                                                    {"name", before.instance().name()},
                                                                    {"address", before.address()},
                                                                    {"store", status.ToString()}});
  }
}

absl::Status Registrar::Deregister(const v1::DeregisterRequest& request) {
  v1::ServerRegistration server = request.server();
  server.DiscardUnknownFields();
  TANDEM_RETURN_IF_ERROR(CheckRegistration(server));
  const std::string key = RegistrationKey(server.instance(), server.has_verifier());
  absl::MutexLock lock(&mutex_);
  Look();
  absl::Status status;
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    // The store may know of somebody who came later.
    TANDEM_RETURN_IF_ERROR(Reread());
    if (!list_.IsToLeave(server)) return absl::OkStatus();
    const bool was_there = IsThere(list_.Find(key), server.instance());
    status = Put(server, /*left=*/true, key);
    if (status.ok() && was_there) {
      LogInfo("server left",
              {{"kind", KindOf(server)}, {"name", server.instance().name()}, {"address", server.address()}});
    }
    if (!absl::IsAborted(status)) break;
  }
  Publish();
  return status;
}

ServerList::Signs Registrar::Signs() const {
  return {.now = options_.clock->Now(), .doubt_until = doubt_until_};
}

absl::Status Registrar::Reread() {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<LeasedEntry> entries, leases_->ListLeased(kRegisteredPrefix));
  std::vector<std::string> damaged;
  LogGone(list_.Merge(entries, Signs(), &damaged));
  for (const std::string& key : damaged) {
    if (damaged_.count(key) > 0) continue;
    LogError("the record of a registered server is invalid and ignored",
             {{"key", absl::CHexEscape(Shown(key))}});
  }
  damaged_ = std::set<std::string>(damaged.begin(), damaged.end());
  Publish();
  return absl::OkStatus();
}

void Registrar::LogGone(const std::vector<v1::ServerRegistration>& gone) const {
  for (const v1::ServerRegistration& server : gone) {
    LogWarning("server gone: its registration expired",
               {{"kind", KindOf(server)}, {"name", server.instance().name()}, {"address", server.address()}});
  }
}

std::vector<v1::ServerRegistration> Registrar::Servers() const {
  absl::MutexLock lock(&mutex_);
  std::vector<v1::ServerRegistration> servers;
  for (const ServerList::Known* known : list_.InUse()) servers.push_back(known->server);
  return servers;
}

void Registrar::Look() {
  const absl::Time now = options_.clock->Now();
  const absl::Duration ttl = options_.servers.registration.ttl;
  const absl::Duration since = now - std::exchange(last_look_, now);
  const bool stood_still = since < absl::ZeroDuration() || since > std::max(kStandstill, ttl / 4);
  const bool is_away = !leases_->health().ok();
  const bool was_away = std::exchange(away_, is_away);
  if (stood_still || (was_away && !is_away)) doubt_until_ = now + ttl;
}

void Registrar::Tick() {
  absl::MutexLock lock(&mutex_);
  Look();
  // Taken whatever comes of it, or AwaitChange would not wait.
  if (TakeChange()) to_read_ = true;
  if (away_) return;
  if (own_leases_ != nullptr || to_read_) {
    const absl::Status status = Reread();
    to_read_ = !status.ok();
    const std::string error(status.message());
    if (std::exchange(read_error_, error) != error && !status.ok()) {
      LogError("the registered servers cannot be read; keeping the known ones", {{"error", error}});
    }
    return;
  }
  LogGone(list_.Expire(Signs()));
  Publish();
}

void Registrar::Publish() {
  for (size_t model = 0; model < told_verifiers_.size(); ++model) {
    std::vector<RegisteredEndpoint> verifiers;
    for (const ServerList::Known* known : list_.Verifiers(model)) {
      const v1::ServerCapacity& capacity = known->server.capacity();
      const uint64_t room = uint64_t{capacity.max_running()} + capacity.max_waiting();
      verifiers.push_back({.address = known->server.address(),
                           .max_in_flight = static_cast<uint32_t>(std::min<uint64_t>(room, UINT32_MAX))});
    }
    if (told_verifiers_[model] == verifiers) continue;
    options_.set_verifiers(model, verifiers);
    told_verifiers_[model] = std::move(verifiers);
  }
  const std::vector<Drafter> drafters = list_.Drafters();
  std::vector<std::string> described;
  for (const Drafter& drafter : drafters)
    described.push_back(absl::StrCat(drafter.name, " ", drafter.endpoint));
  if (described != told_drafters_) {
    options_.set_drafters(drafters);
    told_drafters_ = std::move(described);
  }
  options_.set_counts(list_.num_verifiers(), list_.num_drafters());
}

}  // namespace tandem::router
