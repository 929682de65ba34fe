#include "router/admission/admission.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/status.h"

namespace tandem::router {
namespace {

// Bounds on how long refused clients are told to wait.
constexpr absl::Duration kMinRetryDelay = absl::Milliseconds(100);
constexpr absl::Duration kMaxRetryDelay = absl::Seconds(30);
// Weight of the latest turn in the smoothed one.
constexpr double kTurnSmoothing = 0.1;

absl::Status ShuttingDown() {
  return absl::UnavailableError("the router is shutting down");
}

}  // namespace

Admission::Ticket& Admission::Ticket::operator=(Ticket&& other) noexcept {
  if (this == &other) return *this;
  Release();
  admission_ = std::exchange(other.admission_, nullptr);
  id_ = other.id_;
  waits_at_first_ = other.waits_at_first_;
  return *this;
}

void Admission::Ticket::Release() {
  if (admission_ != nullptr) std::exchange(admission_, nullptr)->Release(id_);
}

void Admission::Ticket::GiveBackPlace() {
  if (admission_ != nullptr) admission_->Deliver(id_);
}

absl::StatusOr<Admission::Ticket> Admission::Admit(const RoutingTable& table, size_t tenant_index,
                                                   OnPlace on_place, size_t model, int32_t priority) {
  const Tenant& tenant = table.tenants[tenant_index];
  std::vector<OnPlace> placed;
  absl::StatusOr<Ticket> ticket = [&]() -> absl::StatusOr<Ticket> {
    absl::MutexLock lock(&mutex_);
    if (draining_) return ShuttingDown();
    tenants_[tenant.name].limit = tenant.max_concurrent_requests;
    total_limit_ = table.max_concurrent_requests;
    keeps_spare_ = spare_percent_ > 0 && table.tenants.size() > 1;
    // A limit may have been raised.
    placed = FillPlaces();
    return AdmitNext(tenant, model, std::move(on_place), priority);
  }();
  for (const OnPlace& call : placed) {
    if (call) call(absl::OkStatus());
  }
  return ticket;
}

void Admission::SetPlaces(size_t model, std::optional<uint32_t> places) {
  std::vector<OnPlace> placed;
  {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(models_[model].places, places) == places) return;
    placed = FillPlaces();
  }
  for (const OnPlace& call : placed) {
    if (call) call(absl::OkStatus());
  }
}

absl::StatusOr<Admission::Ticket> Admission::AdmitNext(const Tenant& tenant, size_t model_index,
                                                       OnPlace on_place, int32_t priority) {
  ModelState& model = models_[model_index];
  TANDEM_RETURN_IF_ERROR(CheckQuotaLocked(tenant));
  Enter(model, tenant);
  // Whoever waits and could have a place has one, so that nobody is overtaken here.
  const bool has_place = total_ < total_limit_ && HasRoom(tenant.name) && MayTakePlace(model, tenant.name);
  if (!has_place && NumQueued(tenant.name) >= tenant.max_queued_requests) {
    Leave(model, tenant.name);
    return QueueFull(tenant, model);
  }
  const uint64_t id = next_id_++;
  requests_[id] = {.tenant = tenant.name, .model = model_index, .has_place = has_place};
  if (has_place) {
    TakePlace(model, tenant.name);
  } else {
    requests_[id].on_place = std::move(on_place);
    if (NumQueued() == 0) last_turn_ = clock_.Now();
    model.queue.Push(id, tenant.name, tenant.weight, /*size=*/1, priority);
  }
  return Ticket(this, id, !has_place);
}

absl::Status Admission::QueueFull(const Tenant& tenant, const ModelState& model) const {
  const TenantState& state = tenants_.at(tenant.name);
  std::string what;
  if (!HasRoom(tenant.name)) {
    what = absl::StrCat("tenant \"", tenant.name, "\" has ", state.in_flight, " requests in flight, ",
                        state.in_flight_elsewhere > 0 ? absl::StrCat("and ", state.in_flight_elsewhere,
                                                                     " at other routers, which is its limit")
                                                      : "its limit");
  } else if (!HasRoom(model)) {
    what = absl::StrCat("the model has ", model.in_flight,
                        " requests in flight, which is all that its verifiers take");
  } else if (total_ < total_limit_) {
    what = absl::StrCat("the model has ", model.in_flight,
                        " requests in flight, and the remaining places are kept for other tenants");
  } else {
    what = absl::StrCat("the router has ", total_, " requests in flight, its limit");
  }
  if (tenant.max_queued_requests > 0) {
    absl::StrAppend(&what, ", and ", NumQueued(tenant.name),
                    " of the tenant's requests wait, which is the limit");
  }
  const absl::Duration delay = turn_ * static_cast<double>(NumQueued() + 1);
  return WithRetryAfter(absl::ResourceExhaustedError(absl::StrCat(what, "; retry later")),
                        std::clamp(delay, kMinRetryDelay, kMaxRetryDelay));
}

absl::Status Admission::CheckQuotaLocked(const Tenant& tenant) {
  if (tenant.tokens_per_minute == 0) return absl::OkStatus();
  const absl::Duration wait = tenants_[tenant.name].tokens.WaitTime(1.0, QuotaOf(tenant), clock_.Now());
  if (wait <= absl::ZeroDuration()) return absl::OkStatus();
  return WithRetryAfter(
      absl::ResourceExhaustedError(absl::StrCat("tenant \"", tenant.name, "\" has used up its ",
                                                tenant.tokens_per_minute, " tokens per minute; retry later")),
      wait);
}

absl::Status Admission::CheckQuota(const Tenant& tenant) {
  absl::MutexLock lock(&mutex_);
  return CheckQuotaLocked(tenant);
}

void Admission::TakeTokens(const Tenant& tenant, double tokens) {
  TenantState& state = tenants_[tenant.name];
  state.tokens.Take(tokens, QuotaOf(tenant), clock_.Now());
  state.used += tokens;
}

void Admission::Charge(const Tenant& tenant, uint64_t spent) {
  Settle(tenant, 0, std::min<uint64_t>(spent, tenant.tokens_per_minute));
}

absl::StatusOr<uint64_t> Admission::Reserve(const Tenant& tenant, uint64_t tokens, uint64_t spent) {
  if (tenant.tokens_per_minute == 0) return 0;
  absl::MutexLock lock(&mutex_);
  const double quota = QuotaOf(tenant);
  const uint64_t reserved = std::min(tokens, static_cast<uint64_t>(quota));
  TokenBucket& bucket = tenants_[tenant.name].tokens;
  absl::Duration wait = bucket.WaitTime(static_cast<double>(reserved), quota, clock_.Now());
  if (wait > absl::ZeroDuration()) {
    TakeTokens(tenant, static_cast<double>(std::min<uint64_t>(spent, tenant.tokens_per_minute)));
    wait = bucket.WaitTime(static_cast<double>(reserved), quota, clock_.Now());
    return WithRetryAfter(absl::ResourceExhaustedError(absl::StrCat(
                              "tenant \"", tenant.name, "\": the prompt and stopping.max_tokens come to ",
                              tokens, " tokens, and of its ", tenant.tokens_per_minute, " tokens per minute ",
                              static_cast<int64_t>(bucket.level()), " are left; retry later")),
                          wait);
  }
  TakeTokens(tenant, static_cast<double>(reserved));
  return reserved;
}

void Admission::Settle(const Tenant& tenant, uint64_t reserved, uint64_t used) {
  if (tenant.tokens_per_minute == 0) return;
  absl::MutexLock lock(&mutex_);
  TakeTokens(tenant, static_cast<double>(used) - static_cast<double>(reserved));
}

std::map<std::string, Admission::Use> Admission::Uses(const RoutingTable& table) {
  const absl::Time now = clock_.Now();
  std::map<std::string, Use> uses;
  absl::MutexLock lock(&mutex_);
  for (const Tenant& tenant : table.tenants) {
    const auto found = tenants_.find(tenant.name);
    if (found == tenants_.end()) continue;
    if (tenant.tokens_per_minute == 0 && tenant.max_concurrent_requests == 0) continue;
    TenantState& state = found->second;
    Use& use = uses[tenant.name];
    use.tokens = state.used;
    if (tenant.tokens_per_minute > 0) use.tokens_left = state.tokens.Level(QuotaOf(tenant), now);
    use.in_flight = state.in_flight;
    use.waiting = NumQueued(tenant.name) > 0;
  }
  return uses;
}

void Admission::SetElsewhere(const RoutingTable& table, const Elsewhere& elsewhere, double part) {
  const absl::Time now = clock_.Now();
  std::vector<OnPlace> placed;
  {
    absl::MutexLock lock(&mutex_);
    part_ = part;
    for (auto& [name, state] : tenants_) state.in_flight_elsewhere = state.routers_elsewhere = 0;
    for (const Tenant& tenant : table.tenants) {
      const auto found = elsewhere.find(tenant.name);
      if (found == elsewhere.end()) continue;
      const ElsewhereUse& use = found->second;
      TenantState& state = tenants_[tenant.name];
      state.limit = tenant.max_concurrent_requests;
      state.in_flight_elsewhere = use.in_flight;
      state.routers_elsewhere = use.routers;
      if (tenant.tokens_per_minute == 0) continue;
      state.tokens.Take(use.tokens, QuotaOf(tenant), now);
      if (use.tokens_left.has_value()) state.tokens.LowerTo(*use.tokens_left, QuotaOf(tenant), now);
    }
    placed = FillPlaces();
  }
  for (const OnPlace& on_place : placed) {
    if (on_place) on_place(absl::OkStatus());
  }
}

void Admission::Drain(absl::Time deadline) {
  std::vector<OnPlace> refused;
  {
    absl::MutexLock lock(&mutex_);
    draining_ = true;
    for (auto& [index, model] : models_) {
      while (const std::optional<FairQueue::Id> id =
                 model.queue.Pop([](const std::string&) { return true; })) {
        const auto request = requests_.find(*id);
        refused.push_back(std::move(request->second.on_place));
        Leave(model, request->second.tenant);
        requests_.erase(request);
      }
    }
  }
  for (const OnPlace& on_place : refused) {
    if (on_place) on_place(ShuttingDown());
  }
  const auto idle = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return total_ == 0 && delivering_ == 0; };
  absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithDeadline(absl::Condition(&idle), deadline);
}

uint32_t Admission::in_flight() const {
  absl::MutexLock lock(&mutex_);
  return total_;
}

size_t Admission::queued() const {
  absl::MutexLock lock(&mutex_);
  return NumQueued();
}

size_t Admission::NumQueued() const {
  size_t count = 0;
  for (const auto& [index, model] : models_) count += model.queue.size();
  return count;
}

size_t Admission::NumQueued(const std::string& tenant) const {
  size_t count = 0;
  for (const auto& [index, model] : models_) count += model.queue.size(tenant);
  return count;
}

void Admission::Displace(uint64_t id, Request& request) {
  if (request.delivers) return;
  ModelState& model = models_.at(request.model);
  if (request.has_place) {
    --tenants_[request.tenant].in_flight;
    --model.present.at(request.tenant).in_flight;
    --model.in_flight;
    --total_;
  } else {
    model.queue.Remove(id);
  }
  Leave(model, request.tenant);
}

void Admission::Deliver(uint64_t id) {
  std::vector<OnPlace> placed;
  OnPlace dropped;  // May hold what must not be destroyed under the mutex.
  {
    absl::MutexLock lock(&mutex_);
    const auto found = requests_.find(id);
    if (found == requests_.end() || found->second.delivers) return;
    Request& request = found->second;
    dropped = std::move(request.on_place);
    Displace(id, request);
    request.delivers = true;
    ++delivering_;
    placed = FillPlaces();
  }
  for (const OnPlace& on_place : placed) {
    if (on_place) on_place(absl::OkStatus());
  }
}

void Admission::Release(uint64_t id) {
  std::vector<OnPlace> placed;
  OnPlace dropped;  // As above.
  {
    absl::MutexLock lock(&mutex_);
    const auto found = requests_.find(id);
    if (found == requests_.end()) return;  // Refused by Drain.
    dropped = std::move(found->second.on_place);
    Displace(id, found->second);
    if (found->second.delivers) --delivering_;
    requests_.erase(found);
    placed = FillPlaces();
  }
  for (const OnPlace& on_place : placed) {
    if (on_place) on_place(absl::OkStatus());
  }
}

bool Admission::HasRoom(const std::string& tenant) const {
  const TenantState& state = tenants_.at(tenant);
  if (state.limit == 0) return true;
  if (part_ < 1.0) return state.in_flight < std::max(state.limit * part_, 1.0);
  const uint32_t share = std::max(state.limit / (state.routers_elsewhere + 1), 1u);
  return state.in_flight < std::max(share, state.limit - std::min(state.limit, state.in_flight_elsewhere));
}

bool Admission::MayTakePlace(const ModelState& model, const std::string& tenant) const {
  if (!HasRoom(model)) return false;
  if (!model.places.has_value() || !keeps_spare_) return true;
  const uint64_t places = *model.places;
  // Rounded up, but never all.
  const uint64_t spare = std::min((places * spare_percent_ + 99) / 100, places - 1);
  if (model.in_flight < places - spare) return true;
  const Present& present = model.present.at(tenant);
  // One at least, or a tenant of little weight might wait for ever.
  const uint64_t share = std::max<uint64_t>((places - spare) * present.weight / model.present_weight, 1);
  return present.in_flight < std::min(spare, share);
}

void Admission::Enter(ModelState& model, const Tenant& tenant) {
  Present& present = model.present[tenant.name];
  if (present.requests++ > 0) model.present_weight -= present.weight;
  present.weight = std::max<uint32_t>(tenant.weight, 1);
  model.present_weight += present.weight;
}

void Admission::TakePlace(ModelState& model, const std::string& tenant) {
  ++tenants_[tenant].in_flight;
  ++model.present.at(tenant).in_flight;
  ++model.in_flight;
  ++total_;
}

void Admission::Leave(ModelState& model, const std::string& tenant) {
  const auto present = model.present.find(tenant);
  if (--present->second.requests > 0) return;
  model.present_weight -= present->second.weight;
  model.present.erase(present);
}

std::optional<Admission::OnPlace> Admission::FillPlace(ModelState& model) {
  if (!HasRoom(model)) return std::nullopt;
  const std::optional<FairQueue::Id> id =
      model.queue.Pop([this, &model](const std::string& tenant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return HasRoom(tenant) && MayTakePlace(model, tenant);
      });
  if (!id.has_value()) return std::nullopt;
  Request& request = requests_.at(*id);
  request.has_place = true;
  TakePlace(model, request.tenant);
  const absl::Time now = clock_.Now();
  turn_ += kTurnSmoothing * (std::max(now - last_turn_, absl::ZeroDuration()) - turn_);
  last_turn_ = now;
  return std::move(request.on_place);
}

std::vector<Admission::OnPlace> Admission::FillPlaces() {
  std::vector<OnPlace> placed;
  // Ends when every model in turn has had nothing for a place.
  for (size_t in_vain = 0; in_vain < models_.size() && total_ < total_limit_;) {
    auto model = models_.upper_bound(last_model_);
    if (model == models_.end()) model = models_.begin();
    last_model_ = model->first;
    std::optional<OnPlace> on_place = FillPlace(model->second);
    in_vain = on_place.has_value() ? 0 : in_vain + 1;
    if (on_place.has_value()) placed.push_back(*std::move(on_place));
  }
  return placed;
}

}  // namespace tandem::router
