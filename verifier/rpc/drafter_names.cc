#include "verifier/rpc/drafter_names.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

constexpr absl::string_view kList = "ipv4:";
// A name that no request has named for so long is not looked at.
constexpr absl::Duration kNameIdleAfter = absl::Minutes(5);

}  // namespace

DrafterNames::DrafterNames(const Options& options, Callbacks callbacks, const Clock* clock)
    : options_(options), callbacks_(std::move(callbacks)), clock_(clock), thread_([this] { Run(); }) {}

DrafterNames::~DrafterNames() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

absl::StatusOr<PoolId> DrafterNames::Acquire(const std::string& endpoint) {
  const bool is_list = absl::StartsWith(endpoint, kList) && absl::StrContains(endpoint, ',');
  Name name{.endpoint = endpoint, .last_used = clock_->Now()};
  if (is_list) {
    name.addresses = absl::StrSplit(absl::string_view(endpoint).substr(kList.size()), ',', absl::SkipEmpty());
    if (name.addresses.size() > kMaxAddresses) {
      return absl::InvalidArgumentError(
          absl::StrCat("a list of ", name.addresses.size(), " drafters, expected at most ", kMaxAddresses));
    }
  } else {
    TANDEM_ASSIGN_OR_RETURN(const std::optional<DnsName> dns, ParseDnsName(endpoint));
    if (!dns.has_value()) return PoolId{0};
    name.dns = *dns;
  }
  PoolId id = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (const auto found = ids_.find(endpoint); found != ids_.end()) {
      Name& known = names_.at(found->second);
      // One that was left alone is looked at at once.
      if (name.last_used - known.last_used > kNameIdleAfter) known.last_look = absl::InfinitePast();
      known.last_used = name.last_used;
      changed_ = true;
      id = found->second;
    } else {
      if (names_.size() >= kMostNames) DropOne();
      id = next_id_++;
      ids_[endpoint] = id;
      names_[id] = name;
      changed_ = true;
    }
  }
  // Before the request that names it arrives where it is placed.
  if (is_list) callbacks_.on_members(id, std::move(name.addresses), "");
  return id;
}

void DrafterNames::Hurry() {
  absl::MutexLock lock(&mutex_);
  hurry_ = clock_->Now();
  changed_ = true;
}

void DrafterNames::DropOne() {
  const auto longest = std::min_element(names_.begin(), names_.end(), [](const auto& a, const auto& b) {
    return a.second.last_used < b.second.last_used;
  });
  ids_.erase(longest->second.endpoint);
  callbacks_.on_gone(longest->first);
  names_.erase(longest);
}

absl::Time DrafterNames::NextLook(PoolId* pool) const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, name] : names_) {
    if (name.dns.host.empty() || clock_->Now() - name.last_used > kNameIdleAfter) continue;
    absl::Time due = name.last_look + options_.interval;
    if (hurry_ > name.last_look) due = std::min(due, name.last_look + options_.least_interval);
    if (due >= next) continue;
    next = due;
    *pool = id;
  }
  return next;
}

void DrafterNames::Run() {
  for (;;) {
    PoolId pool = 0;
    DnsName dns;
    {
      absl::MutexLock lock(&mutex_);
      const absl::Time due = NextLook(&pool);
      const auto woken = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return changed_ || stopping_; };
      changed_ = false;
      if (due > clock_->Now()) {
        mutex_.AwaitWithTimeout(absl::Condition(&woken), due - clock_->Now());
        if (stopping_) return;
        continue;
      }
      if (stopping_) return;
      Name& name = names_.at(pool);
      name.last_look = clock_->Now();
      dns = name.dns;
    }
    absl::StatusOr<std::vector<std::string>> found = options_.resolve(dns);
    if (!found.ok()) {
      // Who was there stays: to lose one's drafters to a name server's troubles helps nobody.
      LogWarning("a drafter pool's name cannot be resolved",
                 {{"name", dns.host}, {"error", std::string(found.status().message())}});
      continue;
    }
    callbacks_.on_members(pool, *std::move(found), dns.host);
  }
}

}  // namespace tandem
