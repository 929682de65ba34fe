#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "router/registry/registrar.h"
#include "router/registry/testing/registrations.h"
#include "router/state/memory_lease_store.h"

namespace tandem::router::testing {

inline constexpr absl::Duration kTtl = absl::Seconds(15);

// A store that several routers share and that may be out of reach of some of them.
class SharedLeases final : public LeaseStore {
 public:
  explicit SharedLeases(MemoryLeaseStore* store) : store_(store) {}

  absl::StatusOr<std::vector<LeasedEntry>> ListLeased(absl::string_view prefix) override {
    if (away) return Away();
    return store_->ListLeased(prefix);
  }
  absl::StatusOr<LeasedEntry> PutLeased(const Put& put) override {
    if (away) return Away();
    return store_->PutLeased(put);
  }
  absl::Status RenewLease(const LeasedEntry& entry) override {
    if (away) return Away();
    return store_->RenewLease(entry);
  }
  std::unique_ptr<RoutingStore::Watch> WatchPrefix(std::string prefix,
                                                   std::function<void()> on_change) override {
    on_change_ = on_change;
    return store_->WatchPrefix(std::move(prefix), std::move(on_change));
  }
  absl::Status health() const override { return away ? Away() : absl::OkStatus(); }
  // As a store does for leases that end, and when it answers again.
  void Tell() {
    if (!away) on_change_();
  }

  bool away = false;

 private:
  static absl::Status Away() { return absl::UnavailableError("the store is out of reach"); }

  MemoryLeaseStore* const store_;
  std::function<void()> on_change_;
};

// A router's registrar and what it was told to use.
class RegistryRouter {
 public:
  // Null `leases`: its own.
  RegistryRouter(const Clock* clock, LeaseStore* leases, absl::Duration ttl = kTtl) {
    Registrar::Options options;
    options.servers.registration = {.verifiers = true, .drafters = true, .ttl = ttl};
    options.servers.models = {{.name = "letters", .vocabulary_fingerprint = kVocabulary}};
    options.leases = leases;
    options.clock = clock;
    options.is_configured = [this](const std::string& name) { return configured.count(name) > 0; };
    options.set_verifiers = [this](size_t, const std::vector<RegisteredEndpoint>& told) { verifiers = told; };
    options.set_drafters = [this](const std::vector<Drafter>& told) { drafters = told; };
    options.set_counts = [this](size_t num_verifiers, size_t num_drafters) {
      counts = {num_verifiers, num_drafters};
    };
    registrar = std::make_unique<Registrar>(std::move(options));
  }

  absl::Status Register(const v1::ServerRegistration& server) {
    v1::RegisterRequest request;
    *request.mutable_server() = server;
    return registrar->Register(request).status();
  }
  absl::Status Deregister(const v1::ServerRegistration& server) {
    v1::DeregisterRequest request;
    *request.mutable_server() = server;
    return registrar->Deregister(request);
  }
  std::vector<std::string> addresses() const {
    std::vector<std::string> found;
    for (const RegisteredEndpoint& verifier : verifiers) found.push_back(verifier.address);
    return found;
  }
  // Names of those that are there.
  std::vector<std::string> drafter_names() const {
    std::vector<std::string> found;
    for (const Drafter& drafter : drafters) {
      if (!drafter.absent) found.push_back(drafter.name);
    }
    return found;
  }

  std::set<std::string> configured;
  std::vector<RegisteredEndpoint> verifiers;
  std::vector<Drafter> drafters;
  std::pair<size_t, size_t> counts;
  std::unique_ptr<Registrar> registrar;
};

}  // namespace tandem::router::testing
