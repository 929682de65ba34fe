#include "router/tenants/tenants.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace tandem::router {

Tenants::Tenants(const RoutingTable& table, const Tenants* before) : table_(table) {
  for (size_t i = 0; i < table.tenants.size(); ++i) {
    const std::optional<TokenDigest>& token = table.tenants[i].token;
    if (!token.has_value()) continue;
    if (token->salt.empty()) {
      unsalted_[token->digest].push_back(i);
    } else {
      salted_.emplace_back(i, *token);
    }
  }
  const auto same = [](const Entry& a, const Entry& b) {
    return a.first == b.first && a.second.salt == b.second.salt && a.second.digest == b.second.digest;
  };
  const bool goes_on = before != nullptr && std::equal(salted_.begin(), salted_.end(),
                                                       before->salted_.begin(), before->salted_.end(), same);
  memory_ = goes_on ? before->memory_ : std::make_shared<Memory>();
}

std::vector<size_t> Tenants::FindSalted(const Sha256Digest& token) const {
  if (salted_.empty()) return {};
  {
    absl::MutexLock lock(&memory_->mutex);
    const auto found = memory_->found.find(token);
    if (found != memory_->found.end()) return found->second;
    for (const auto& strangers : memory_->strangers) {
      if (strangers.contains(token)) return {};
    }
  }
  // Without the mutex: those whose tokens are known do not wait for it.
  std::vector<size_t> tenants;
  for (const auto& [tenant, digest] : salted_) {
    if (digest.Matches(token)) tenants.push_back(tenant);
  }
  absl::MutexLock lock(&memory_->mutex);
  memory_->num_salted_hashes += salted_.size();
  if (!tenants.empty()) {
    memory_->found.emplace(token, tenants);
    return tenants;
  }
  auto& [latest, earlier] = memory_->strangers;
  if (latest.size() >= kRememberedStrangers) {
    earlier = std::move(latest);
    latest.clear();
  }
  latest.emplace(token, true);
  return tenants;
}

size_t Tenants::num_salted_hashes() const {
  absl::MutexLock lock(&memory_->mutex);
  return memory_->num_salted_hashes;
}

std::optional<size_t> Tenants::Authenticate(std::optional<absl::string_view> authorization) const {
  if (!authorization.has_value()) return table_.anonymous;
  constexpr absl::string_view kScheme = "Bearer ";
  if (!absl::StartsWithIgnoreCase(*authorization, kScheme)) return std::nullopt;
  const absl::string_view token = absl::StripAsciiWhitespace(authorization->substr(kScheme.size()));
  if (token.empty()) return std::nullopt;

  const Sha256Digest digest = Sha256(token);
  std::vector<size_t> tenants = FindSalted(digest);
  const auto unsalted = unsalted_.find(digest);
  if (unsalted != unsalted_.end()) {
    tenants.insert(tenants.end(), unsalted->second.begin(), unsalted->second.end());
  }
  // There is no telling who calls with a token that two tenants have.
  if (tenants.size() != 1) return std::nullopt;
  return tenants.front();
}

}  // namespace tandem::router
