#include "router/admission/shared_quotas.h"

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "router/state/memory_lease_store.h"

namespace tandem::router {
namespace {

// Out of reach when it is told so.
class FailingStore final : public LeaseStore {
 public:
  explicit FailingStore(LeaseStore* store) : store_(*store) {}
  bool fails = false;

  absl::StatusOr<std::vector<LeasedEntry>> ListLeased(absl::string_view prefix) override {
    if (fails) return absl::UnavailableError("unreachable");
    return store_.ListLeased(prefix);
  }
  absl::StatusOr<LeasedEntry> PutLeased(const Put& put) override {
    if (fails) return absl::UnavailableError("unreachable");
    return store_.PutLeased(put);
  }
  absl::Status RenewLease(const LeasedEntry& entry) override {
    if (fails) return absl::UnavailableError("unreachable");
    return store_.RenewLease(entry);
  }
  std::unique_ptr<RoutingStore::Watch> WatchPrefix(std::string prefix,
                                                   std::function<void()> on_change) override {
    return store_.WatchPrefix(std::move(prefix), std::move(on_change));
  }
  absl::Status health() const override { return store_.health(); }

 private:
  LeaseStore& store_;
};

class SharedQuotasTest : public ::testing::Test {
 protected:
  struct Router {
    Router(const SharedQuotasTest& test, const std::string& name)
        : admission(&test.clock_),
          store(test.leases_.get()),
          quotas({.router = name,
                  .table = [&test] { return test.table_; },
                  .clock = &test.clock_,
                  .interval = absl::InfiniteDuration()},
                 &admission, &store) {}
    Admission admission;
    FailingStore store;
    SharedQuotas quotas;
  };

  SharedQuotasTest() {
    auto table = std::make_shared<RoutingTable>();
    table->tenants.push_back({.name = "acme", .max_queued_requests = 100, .tokens_per_minute = 6000});
    table->tenants.push_back({.name = "zeta", .max_concurrent_requests = 6, .max_queued_requests = 100});
    table->tenants.push_back({.name = "free", .max_queued_requests = 100});
    table->max_concurrent_requests = 1000;
    table_ = table;
  }

  Router& Start() {
    routers_.push_back(std::make_unique<Router>(*this, absl::StrCat("r", routers_.size())));
    return *routers_.back();
  }
  void ExchangeAll() {
    for (const auto& router : routers_) router->quotas.Exchange().IgnoreError();
  }
  const Tenant& acme() const { return table_->tenants[0]; }
  // Requests of 50 tokens that use them all, as many as the router lets through.
  uint64_t Flood(Router& router) {
    uint64_t tokens = 0;
    while (router.admission.Reserve(acme(), 50).ok()) tokens += 50;
    return tokens;
  }
  // Requests of zeta that have places at the router.
  uint32_t Places(Router& router) const {
    const auto uses = router.admission.Uses(*table_);
    return uses.count("zeta") == 0 ? 0 : uses.at("zeta").in_flight;
  }

  ManualClock clock_;
  const std::shared_ptr<MemoryLeaseStore> leases_ = std::make_shared<MemoryLeaseStore>(&clock_);
  std::shared_ptr<const RoutingTable> table_;
  std::vector<std::unique_ptr<Router>> routers_;
};

// What is too much is what the others admit within a second, once, however long the flood lasts.
TEST_F(SharedQuotasTest, AFloodOverAllRoutersGetsOneQuota) {
  constexpr int kRouters = 4, kMinutes = 10;
  for (int i = 0; i < kRouters; ++i) Start();
  uint64_t tokens = 0;
  for (int second = 0; second < 60 * kMinutes; ++second) {
    for (const auto& router : routers_) tokens += Flood(*router);
    ExchangeAll();
    clock_.Advance(absl::Seconds(1));
  }
  // A full quota to begin with, and one every minute.
  EXPECT_GE(tokens, 6000u * (kMinutes + 1) - 1000);
  EXPECT_LE(tokens, 6000u * (kMinutes + kRouters));
  // Later on there is no such burst.
  uint64_t later = 0;
  for (int second = 0; second < 60; ++second) {
    for (const auto& router : routers_) later += Flood(*router);
    ExchangeAll();
    clock_.Advance(absl::Seconds(1));
  }
  EXPECT_LE(later, 6000u + 400u);
  EXPECT_GE(later, 6000u - 400u);
}

TEST_F(SharedQuotasTest, WhatOneRouterUsesOthersMiss) {
  Router& first = Start();
  Router& second = Start();
  ASSERT_EQ(first.admission.Reserve(acme(), 4000).value(), 4000u);
  ExchangeAll();
  ExchangeAll();
  EXPECT_FALSE(second.admission.Reserve(acme(), 2001).ok());
  EXPECT_TRUE(second.admission.Reserve(acme(), 2000).ok());
  // And are given back what it did not use.
  first.admission.Settle(acme(), 4000, 1000);
  ExchangeAll();
  ExchangeAll();
  EXPECT_FALSE(second.admission.Reserve(acme(), 3001).ok());
  EXPECT_TRUE(second.admission.Reserve(acme(), 3000).ok());
}

TEST_F(SharedQuotasTest, ARouterThatStartsHasNoQuotaOfItsOwn) {
  Router& first = Start();
  Flood(first);
  ExchangeAll();
  Router& second = Start();
  EXPECT_EQ(Flood(second), 0u);
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(Flood(second), 100u);
  // A router that is gone has used what it used.
  routers_.erase(routers_.begin());
  clock_.Advance(absl::Seconds(11));
  ExchangeAll();
  EXPECT_EQ(Flood(second), 1100u);
}

TEST_F(SharedQuotasTest, WithoutTheStoreEachRouterGivesItsPart) {
  for (int i = 0; i < 3; ++i) Start();
  ExchangeAll();
  for (const auto& router : routers_) {
    Flood(*router);
    router->store.fails = true;
  }
  uint64_t tokens = 0;
  for (int second = 0; second < 60 * 5; ++second) {
    clock_.Advance(absl::Seconds(1));
    ExchangeAll();
    for (const auto& router : routers_) {
      const uint64_t now = Flood(*router);
      if (second >= 60) tokens += now;
    }
  }
  EXPECT_LE(tokens, 6000u * 4 + 450u);
  EXPECT_GE(tokens, 6000u * 4 - 450u);
  for (const auto& router : routers_) router->store.fails = false;
  tokens = 0;
  for (int second = 0; second < 60 * 5; ++second) {
    clock_.Advance(absl::Seconds(1));
    ExchangeAll();
    for (const auto& router : routers_) tokens += Flood(*router);
  }
  EXPECT_LE(tokens, 6000u * 5 + 450u);
  EXPECT_GE(tokens, 6000u * 5 - 6000u);
}

TEST_F(SharedQuotasTest, RequestsInFlightAreCountedOverAllRouters) {
  Router& first = Start();
  Router& second = Start();
  std::vector<Admission::Ticket> tickets, others;
  const auto come = [this](Router& router, std::vector<Admission::Ticket>& to) {
    auto ticket = router.admission.Admit(*table_, 1, [](const absl::Status&) {});
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    to.push_back(*std::move(ticket));
  };
  for (int i = 0; i < 20; ++i) come(first, tickets);
  EXPECT_EQ(Places(first), 6u);
  ExchangeAll();
  ExchangeAll();
  // The other router's share among two, since all places are taken.
  for (int i = 0; i < 20; ++i) come(second, others);
  EXPECT_EQ(Places(second), 3u);
  // The first comes down to its own as its requests end.
  ExchangeAll();
  ExchangeAll();
  tickets.erase(tickets.begin(), tickets.begin() + 3);
  EXPECT_EQ(Places(first), 3u);
  ExchangeAll();
  EXPECT_EQ(Places(first) + Places(second), 6u);
  // Nothing waits at the second any more: the first has what is left over.
  others.clear();
  ExchangeAll();
  ExchangeAll();
  EXPECT_EQ(Places(first), 6u);
  // Tenants without limits are not written down.
  EXPECT_EQ(first.admission.Uses(*table_).count("free"), 0u);
}

TEST_F(SharedQuotasTest, WhatIsNoRecordIsLeftOut) {
  ASSERT_TRUE(leases_->PutLeased({.key = "quotas/x", .value = "nonsense", .ttl = absl::Seconds(60)}).ok());
  v1::QuotaUsage strange;
  strange.add_tenants()->set_tenant("acme");
  strange.mutable_tenants(0)->set_tokens(std::numeric_limits<double>::quiet_NaN());
  ASSERT_TRUE(
      leases_->PutLeased({.key = "quotas/y", .value = strange.SerializeAsString(), .ttl = absl::Seconds(60)})
          .ok());
  Router& router = Start();
  EXPECT_TRUE(router.quotas.Exchange().ok());
  EXPECT_EQ(Flood(router), 6000u);
}

// The answer to a write was lost, and the lease ended meanwhile.
TEST_F(SharedQuotasTest, WritesAgainWhatIsGone) {
  Router& router = Start();
  Router& other = Start();
  clock_.Advance(absl::Seconds(60));
  EXPECT_TRUE(router.quotas.Exchange().ok());
  ASSERT_TRUE(router.admission.Reserve(acme(), 6000).ok());
  EXPECT_TRUE(router.quotas.Exchange().ok());
  EXPECT_TRUE(other.quotas.Exchange().ok());
  EXPECT_EQ(Flood(other), 0u);
}

}  // namespace
}  // namespace tandem::router
