#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/registry/testing/registry_world.h"
#include "router/state/etcd/etcd_store.h"
#include "router/state/etcd/testing/fake_etcd.h"

namespace tandem::router {
namespace {

using ::testing::ElementsAre;
using testing::FakeEtcd;
using ::testing::IsEmpty;
using testing::RegistryRouter;
using testing::VerifierAt;

constexpr absl::Duration kLeasePatience = absl::Seconds(60);
constexpr absl::Duration kLeaseTtl = absl::Seconds(60);

std::unique_ptr<EtcdStore> OpenLeases(const std::string& endpoint) {
  EtcdStore::Options options;
  options.client.endpoints = {endpoint};
  options.prefix = "/tandem/v1/";
  options.ping_interval = absl::Milliseconds(50);
  options.patience = absl::Milliseconds(300);
  options.retry_interval = absl::Milliseconds(20);
  return EtcdStore::Open(options).value();
}

template <class Condition>
bool Soon(const Condition& condition) {
  const absl::Time deadline = absl::Now() + kLeasePatience;
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return true;
}

TEST(EtcdLeasesTest, AValueEndsWithItsLease) {
  FakeEtcd etcd;
  const auto store = OpenLeases(etcd.endpoint());
  const LeasedEntry entry = store->PutLeased({.key = "registered/a", .value = "1", .ttl = kLeaseTtl}).value();
  EXPECT_GT(entry.version, 0u);
  EXPECT_NE(entry.lease, 0);
  EXPECT_EQ(etcd.Value("/tandem/v1/registered/a"), "1");
  const auto listed = store->ListLeased("registered/").value();
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_EQ(listed[0].version, entry.version);
  EXPECT_EQ(listed[0].lease, entry.lease);
  // Whoever reads it may renew it.
  EXPECT_TRUE(store->RenewLease(listed[0]).ok());
  EXPECT_EQ(etcd.num_renewals(), 1u);
  etcd.EndLeases();
  EXPECT_EQ(store->RenewLease(entry).code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(store->ListLeased("registered/").value(), IsEmpty());
}

TEST(EtcdLeasesTest, AConflictLeavesNoLeaseBehind) {
  FakeEtcd etcd;
  const auto store = OpenLeases(etcd.endpoint());
  const LeasedEntry first = store->PutLeased({.key = "a", .value = "1", .ttl = kLeaseTtl}).value();
  EXPECT_EQ(store->PutLeased({.key = "a", .value = "2", .ttl = kLeaseTtl}).status().code(),
            absl::StatusCode::kAborted);
  EXPECT_EQ(etcd.num_leases(), 1u);
  const LeasedEntry second = store
                                 ->PutLeased({.key = "a",
                                              .value = "2",
                                              .ttl = kLeaseTtl,
                                              .expected_version = first.version,
                                              .replaced_lease = first.lease})
                                 .value();
  EXPECT_EQ(etcd.num_leases(), 1u);
  EXPECT_EQ(etcd.Value("/tandem/v1/a"), "2")
      << "the new value has nothing to do with the lease of the old one";
  EXPECT_TRUE(store->RenewLease(second).ok());
}

TEST(EtcdLeasesTest, AValueWhoseAnswerWasLostIsWrittenOnce) {
  FakeEtcd etcd;
  const auto store = OpenLeases(etcd.endpoint());
  etcd.FailTransactions(1, {grpc::StatusCode::UNAVAILABLE, "lost"}, /*done=*/true);
  const absl::StatusOr<LeasedEntry> entry = store->PutLeased({.key = "a", .value = "1", .ttl = kLeaseTtl});
  ASSERT_TRUE(entry.ok()) << entry.status();
  EXPECT_EQ(store->ListLeased("a").value()[0].version, entry->version);
  EXPECT_TRUE(store->RenewLease(*entry).ok());
  EXPECT_EQ(etcd.num_transactions(), 1u);
}

// Two routers with registrars on one etcd.
void RoutersAgree(const std::string& endpoint) {
  const SystemClock clock;
  const auto first_store = OpenLeases(endpoint);
  const auto second_store = OpenLeases(endpoint);
  RegistryRouter first(&clock, first_store.get(), kLeaseTtl);
  RegistryRouter second(&clock, second_store.get(), kLeaseTtl);
  const v1::ServerRegistration verifier = VerifierAt("v", "v:1", 1);
  ASSERT_TRUE(first.Register(verifier).ok());
  const auto second_knows = [&](size_t count) {
    return Soon([&] {
      second.registrar->Tick();
      return second.verifiers.size() == count;
    });
  };
  EXPECT_TRUE(second_knows(1));
  EXPECT_TRUE(second.Register(verifier).ok()) << "renewed by way of another router";
  EXPECT_EQ(second.Register(VerifierAt("v", "v:2", 2)).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(second.Register(VerifierAt("v", "v:1", 2)).ok());
  EXPECT_EQ(first.Register(verifier).code(), absl::StatusCode::kFailedPrecondition) << "was replaced";
  ASSERT_TRUE(first.Deregister(VerifierAt("v", "v:1", 2)).ok());
  EXPECT_TRUE(second_knows(0));
}

TEST(EtcdLeasesTest, RoutersAgreeOnWhoIsThere) {
  FakeEtcd etcd;
  RoutersAgree(etcd.endpoint());
}

TEST(EtcdLeasesTest, WhoseLeaseEndsIsGoneEverywhere) {
  FakeEtcd etcd;
  const SystemClock clock;
  const auto store = OpenLeases(etcd.endpoint());
  const auto other = OpenLeases(etcd.endpoint());
  // The first router has heard it itself; the second knows of it by etcd alone.
  RegistryRouter first(&clock, store.get(), kLeaseTtl);
  RegistryRouter second(&clock, other.get(), kLeaseTtl);
  ASSERT_TRUE(first.Register(VerifierAt("v", "v:1", 1)).ok());
  EXPECT_TRUE(Soon([&] {
    second.registrar->Tick();
    return !second.verifiers.empty();
  }));
  etcd.EndLeases();
  EXPECT_TRUE(Soon([&] {
    second.registrar->Tick();
    return second.verifiers.empty();
  }));
  first.registrar->Tick();
  EXPECT_THAT(first.addresses(), ElementsAre("v:1")) << "for as long as the call is young";
  EXPECT_TRUE(first.Register(VerifierAt("v", "v:1", 1)).ok());
  EXPECT_TRUE(Soon([&] {
    second.registrar->Tick();
    return !second.verifiers.empty();
  }));
}

}  // namespace
}  // namespace tandem::router
