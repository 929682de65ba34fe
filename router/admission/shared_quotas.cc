#include "router/admission/shared_quotas.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace tandem::router {
namespace {

constexpr absl::string_view kPrefix = "quotas/";

// `base`: tokens that tenants had used when the record began.
v1::QuotaUsage RecordOf(const std::map<std::string, Admission::Use>& uses,
                        const std::map<std::string, double>& base) {
  v1::QuotaUsage record;
  for (const auto& [tenant, use] : uses) {
    const auto before = base.find(tenant);
    v1::TenantUsage& usage = *record.add_tenants();
    usage.set_tenant(tenant);
    usage.set_tokens(use.tokens - (before == base.end() ? 0.0 : before->second));
    usage.set_tokens_left(use.tokens_left);
    usage.set_in_flight(use.in_flight);
    usage.set_waiting(use.waiting);
  }
  return record;
}

bool IsFinite(const v1::QuotaUsage& record) {
  return std::all_of(record.tenants().begin(), record.tenants().end(), [](const v1::TenantUsage& usage) {
    return std::isfinite(usage.tokens()) && std::isfinite(usage.tokens_left());
  });
}

}  // namespace

SharedQuotas::SharedQuotas(Options options, Admission* admission, LeaseStore* store)
    : options_(std::move(options)),
      admission_(*admission),
      store_(*store),
      key_(absl::StrCat(kPrefix, options_.router)),
      last_exchange_(options_.clock->Now()) {
  Exchange().IgnoreError();  // Logged.
  if (options_.interval < absl::InfiniteDuration()) thread_ = std::thread([this] { Run(); });
}

SharedQuotas::~SharedQuotas() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void SharedQuotas::Run() {
  bool stopping = false;
  while (!stopping) {
    {
      absl::MutexLock lock(&mutex_);
      stopping = mutex_.AwaitWithTimeout(absl::Condition(&stopping_), options_.interval);
    }
    Exchange().IgnoreError();  // Logged.
  }
}

absl::Status SharedQuotas::Exchange() {
  absl::MutexLock lock(&mutex_);
  absl::Status status = Write();
  if (status.ok()) status = Read();
  const absl::Time now = options_.clock->Now();
  if (status.ok()) {
    if (std::exchange(alone_, false)) LogInfo("tenants' limits are shared with the other routers again", {});
    last_exchange_ = now;
    return status;
  }
  if (!alone_ && now - last_exchange_ >= options_.ttl) {
    alone_ = begins_ = true;
    seen_.clear();
    // What it uses now is its part; when the others hear of it again it begins like a router that starts.
    key_ = absl::StrCat(kPrefix, options_.router, "-", ++num_times_alone_);
    written_ = {};
    admission_.SetElsewhere(*options_.table(), {}, 1.0 / static_cast<double>(num_routers_));
    LogWarning("the state store is unreachable: this router applies its share of tenants' limits",
               {{"routers", absl::StrCat(num_routers_)}, {"error", std::string(status.message())}});
  }
  return status;
}

absl::Status SharedQuotas::Write() {
  const std::map<std::string, Admission::Use> uses = admission_.Uses(*options_.table());
  if (begins_ && written_.version == 0) {
    base_.clear();
    for (const auto& [tenant, use] : uses) base_[tenant] = use.tokens;
  }
  std::string value = RecordOf(uses, base_).SerializeAsString();
  const absl::Time now = options_.clock->Now();
  if (written_.version != 0 && value == written_.value) {
    if (now - renewed_ < options_.ttl / 3) return absl::OkStatus();
    const absl::Status renewed = store_.RenewLease(written_);
    if (renewed.ok()) renewed_ = now;
    if (!absl::IsNotFound(renewed)) return renewed;
    written_ = {};
  }
  absl::StatusOr<LeasedEntry> entry = store_.PutLeased({.key = key_,
                                                        .value = std::move(value),
                                                        .ttl = options_.ttl,
                                                        .expected_version = written_.version,
                                                        .replaced_lease = written_.lease});
  if (absl::IsAborted(entry.status())) {
    // The lease has ended, or the answer to the write before was lost: what is there is replaced the next
    // time.
    TANDEM_ASSIGN_OR_RETURN(std::vector<LeasedEntry> entries, store_.ListLeased(key_));
    written_ = {};
    for (LeasedEntry& there : entries) {
      if (there.key == key_) written_ = std::move(there);
    }
    written_.value.clear();
    return absl::OkStatus();
  }
  TANDEM_RETURN_IF_ERROR(entry.status());
  written_ = *std::move(entry);
  renewed_ = now;
  return absl::OkStatus();
}

void SharedQuotas::TakeRecord(const v1::QuotaUsage& record, const Used* before, Used& now,
                              Admission::Elsewhere& elsewhere) const {
  for (const v1::TenantUsage& usage : record.tenants()) {
    Admission::ElsewhereUse& use = elsewhere[usage.tenant()];
    now[usage.tenant()] = usage.tokens();
    if (begins_) {
      use.tokens_left = std::min(use.tokens_left.value_or(usage.tokens_left()), usage.tokens_left());
    } else {
      // A router that was not there before has used all that it says since.
      const auto used_before = before == nullptr ? Used::const_iterator() : before->find(usage.tenant());
      use.tokens +=
          usage.tokens() - (before == nullptr || used_before == before->end() ? 0.0 : used_before->second);
    }
    use.in_flight += usage.in_flight();
    use.routers += usage.in_flight() > 0 || usage.waiting() ? 1 : 0;
  }
}

absl::Status SharedQuotas::Read() {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<LeasedEntry> entries, store_.ListLeased(kPrefix));
  std::map<std::string, Used> seen;
  Admission::Elsewhere elsewhere;
  for (const LeasedEntry& entry : entries) {
    if (entry.key == key_) continue;
    v1::QuotaUsage record;
    if (!record.ParseFromString(entry.value) || !IsFinite(record)) {
      LogWarning("another router's record of tenants' limits cannot be read", {{"key", entry.key}});
      continue;
    }
    const auto before = seen_.find(entry.key);
    TakeRecord(record, before == seen_.end() ? nullptr : &before->second, seen[entry.key], elsewhere);
  }
  seen_ = std::move(seen);
  num_routers_ = seen_.size() + 1;
  begins_ = false;
  admission_.SetElsewhere(*options_.table(), elsewhere, /*part=*/1.0);
  return absl::OkStatus();
}

}  // namespace tandem::router
