#include "router/state/routing_state.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/config/token_digest.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/state/applied_config.h"
#include "router/state/memory_store.h"
#include "router/testing/test_router.h"
#include "tandem/v1/state.pb.h"

namespace tandem::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::RouterConfig File() {
  return testing::LettersConfig({"verifier:7002"});
}

v1::TenantConfig& TenantOf(v1::RouterConfig& config, const std::string& name) {
  for (v1::TenantConfig& tenant : *config.mutable_tenants()) {
    if (tenant.name() == name) return tenant;
  }
  ADD_FAILURE() << "no tenant " << name;
  return *config.add_tenants();
}

std::vector<std::string> TenantNames(const RoutingState& state) {
  std::vector<std::string> names;
  for (const Tenant& tenant : state.snapshot()->table().tenants) names.push_back(tenant.name);
  return names;
}

const Tenant& TenantNamed(const RoutingSnapshot& snapshot, const std::string& name) {
  for (const Tenant& tenant : snapshot.table().tenants) {
    if (tenant.name == name) return tenant;
  }
  ADD_FAILURE() << "no tenant " << name;
  return snapshot.table().tenants.front();
}

absl::Status PutTenant(RoutingStore& store, const v1::TenantConfig& tenant) {
  v1::TenantRecord record;
  *record.mutable_config() = WithoutToken(tenant);
  return store
      .Update({{.key = absl::StrCat(kTenantPrefix, tenant.name()), .value = record.SerializeAsString()}})
      .status();
}

// A store that outlives the state that uses it, as a file does.
class Shared final : public RoutingStore {
 public:
  explicit Shared(std::shared_ptr<RoutingStore> store) : store_(std::move(store)) {}
  absl::StatusOr<Listing> List(absl::string_view prefix) override { return store_->List(prefix); }
  absl::StatusOr<std::optional<StoredEntry>> Get(absl::string_view key) override { return store_->Get(key); }
  absl::StatusOr<uint64_t> Update(absl::Span<const StoreChange> changes) override {
    return store_->Update(changes);
  }
  std::unique_ptr<Watch> WatchPrefix(std::string prefix, std::function<void()> on_change) override {
    return store_->WatchPrefix(std::move(prefix), std::move(on_change));
  }

 private:
  std::shared_ptr<RoutingStore> store_;
};

std::unique_ptr<RoutingState> OpenOn(const std::shared_ptr<RoutingStore>& store,
                                     const v1::RouterConfig& file) {
  return RoutingState::Open(file, std::make_unique<Shared>(store)).value();
}

TEST(RoutingStateTest, ServesWhatTheFileSays) {
  const auto state = RoutingState::InMemory(File()).value();
  const auto snapshot = state->snapshot();
  EXPECT_THAT(TenantNames(*state), ElementsAre("acme", "zeta"));
  EXPECT_EQ(snapshot->table().drafters.size(), 2u);
  EXPECT_EQ(snapshot->tenants().Authenticate("Bearer secret-a"), 0u);
  EXPECT_EQ(snapshot->table().models[0].verifiers, std::vector<std::string>{"verifier:7002"});
}

TEST(RoutingStateTest, KeepsNoTokens) {
  const auto state = RoutingState::InMemory(File()).value();
  const RoutingStore::Listing listing = state->store().List("").value();
  for (const StoredEntry& entry : listing.entries) {
    EXPECT_EQ(entry.value.find("secret"), std::string::npos) << entry.key;
  }
}

TEST(RoutingStateTest, ErrorsHaveTheFilesOwnPaths) {
  v1::RouterConfig file = File();
  file.mutable_tenants(1)->set_drafter("prose");
  const auto state = RoutingState::InMemory(file);
  EXPECT_EQ(state.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(state.status().message(),
              HasSubstr("tenants[1].drafter: \"prose\" is not a configured drafter"));
}

TEST(RoutingStateTest, AChangeIsANewSnapshotAndTheOldOneStays) {
  const auto state = RoutingState::InMemory(File()).value();
  const auto before = state->snapshot();
  v1::RouterConfig changed = File();
  TenantOf(changed, "acme").set_drafter("math");
  ASSERT_TRUE(PutTenant(state->store(), TenantOf(changed, "acme")).ok());

  const auto after = state->snapshot();
  EXPECT_GT(after->version(), before->version());
  EXPECT_EQ(after->table().drafters[*TenantNamed(*after, "acme").drafter].name, "math");
  EXPECT_EQ(before->table().drafters[*TenantNamed(*before, "acme").drafter].name, "code");
}

TEST(RoutingStateTest, WhatDoesNotResolveChangesNothing) {
  const auto state = RoutingState::InMemory(File()).value();
  const auto before = state->snapshot();
  v1::TenantConfig broken = File().tenants(0);
  broken.set_drafter("prose");
  ASSERT_TRUE(PutTenant(state->store(), broken).ok());
  EXPECT_EQ(state->snapshot(), before);
  ASSERT_TRUE(PutTenant(state->store(), File().tenants(0)).ok());
  EXPECT_NE(state->snapshot(), before);
}

TEST(RoutingStateTest, DamageIsWhatItWasAndOthersChange) {
  const auto store = std::make_shared<MemoryStore>();
  const auto state = OpenOn(store, File());
  ASSERT_TRUE(store->Update({{.key = "routing/tenants/acme", .value = "\xff\xff"}}).ok());
  ASSERT_TRUE(store->Update({{.key = "routing/drafters/never", .value = "\xff\xff"}}).ok());
  EXPECT_EQ(state->condition().damaged_records, 2u);
  EXPECT_FALSE(state->condition().stale);
  v1::TenantConfig zeta = File().tenants(1);
  zeta.set_weight(7);
  ASSERT_TRUE(PutTenant(*store, zeta).ok());
  const auto snapshot = state->snapshot();
  EXPECT_EQ(snapshot->table().drafters[*TenantNamed(*snapshot, "acme").drafter].name, "code");
  EXPECT_EQ(TenantNamed(*snapshot, "zeta").weight, 7u);
  EXPECT_EQ(snapshot->table().drafters.size(), 2u);
  ASSERT_TRUE(PutTenant(*store, File().tenants(0)).ok());
  EXPECT_EQ(state->condition().damaged_records, 1u);
  // A start has nothing to go on with.
  const auto second = RoutingState::Open(File(), std::make_unique<Shared>(store));
  EXPECT_EQ(second.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(second.status().message(), HasSubstr("routing/drafters/never"));
}

TEST(RoutingStateTest, AFileIsAppliedToWhatRuns) {
  const auto state = RoutingState::InMemory(File()).value();
  v1::TenantConfig extra;
  extra.set_name("extra");
  extra.set_token("secret-e");
  ASSERT_TRUE(PutTenant(state->store(), extra).ok());
  v1::RouterConfig file = File();
  file.mutable_tenants()->DeleteSubrange(0, 1);
  ASSERT_TRUE(state->ApplyFile(file).ok());
  EXPECT_THAT(TenantNames(*state), ElementsAre("extra", "zeta"));
  const auto before = state->snapshot();
  file.mutable_tenants(0)->set_drafter("nobody");
  EXPECT_EQ(state->ApplyFile(file).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(state->snapshot(), before);
}

TEST(RoutingStateTest, TheSameFileLeavesTheStoreAlone) {
  const auto store = std::make_shared<MemoryStore>();
  {
    const auto state = OpenOn(store, File());
    v1::RouterConfig changed = File();
    TenantOf(changed, "acme").set_drafter("math");
    ASSERT_TRUE(PutTenant(*store, TenantOf(changed, "acme")).ok());
    ASSERT_TRUE(store->Update({{.key = "routing/tenants/zeta"}}).ok());
  }
  const uint64_t version = store->List("")->version;
  const auto state = OpenOn(store, File());
  EXPECT_EQ(store->List("")->version, version);
  EXPECT_THAT(TenantNames(*state), ElementsAre("acme")) << "deleted tenants stay deleted";
  const auto snapshot = state->snapshot();
  EXPECT_EQ(snapshot->table().drafters[*TenantNamed(*snapshot, "acme").drafter].name, "math");
}

TEST(RoutingStateTest, FieldsChangedInTheFileWinOthersAreKept) {
  const auto store = std::make_shared<MemoryStore>();
  {
    const auto state = OpenOn(store, File());
    v1::TenantConfig acme = File().tenants(0);
    acme.set_drafter("math");
    ASSERT_TRUE(PutTenant(*store, acme).ok());
  }
  v1::RouterConfig file = File();
  TenantOf(file, "acme").set_max_concurrent_requests(7);
  TenantOf(file, "acme").set_token("secret-b");
  const auto snapshot = OpenOn(store, file)->snapshot();
  const Tenant& acme = TenantNamed(*snapshot, "acme");
  EXPECT_EQ(acme.max_concurrent_requests, 7u);
  EXPECT_TRUE(acme.token->Matches(Sha256("secret-b")));
  EXPECT_EQ(snapshot->table().drafters[*acme.drafter].name, "math") << "set in the store, not in the file";
}

TEST(RoutingStateTest, WhatTheFileDropsIsDeletedAndWhatItNeverHadIsKept) {
  const auto store = std::make_shared<MemoryStore>();
  {
    const auto state = OpenOn(store, File());
    v1::TenantConfig extra;
    extra.set_name("extra");
    extra.set_token("secret-e");
    ASSERT_TRUE(PutTenant(*store, extra).ok());
  }
  v1::RouterConfig file = File();
  file.mutable_tenants()->DeleteSubrange(0, 1);
  const auto state = OpenOn(store, file);
  EXPECT_THAT(TenantNames(*state), ElementsAre("extra", "zeta"));
}

TEST(RoutingStateTest, AFileThatContradictsTheStoreChangesNothing) {
  const auto store = std::make_shared<MemoryStore>();
  {
    const auto state = OpenOn(store, File());
    v1::TenantConfig extra;
    extra.set_name("extra");
    extra.set_token("secret-e");
    extra.set_drafter("math");
    ASSERT_TRUE(PutTenant(*store, extra).ok());
  }
  v1::RouterConfig file = File();
  file.mutable_drafters()->DeleteSubrange(1, 1);
  file.mutable_tenants()->DeleteSubrange(1, 1);
  const uint64_t version = store->List("")->version;
  const auto state = RoutingState::Open(file, std::make_unique<Shared>(store));
  EXPECT_EQ(state.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(state.status().message(), HasSubstr("\"math\" is not a configured drafter"));
  EXPECT_EQ(store->List("")->version, version);
}

TEST(RoutingStateTest, ReadersAndWritersDoNotDisturbOneAnother) {
  const auto state = RoutingState::InMemory(File()).value();
  constexpr int kWrites = 200;
  std::thread writer([&] {
    for (int i = 0; i < kWrites; ++i) {
      v1::TenantConfig acme = File().tenants(0);
      acme.set_drafter(i % 2 == 0 ? "math" : "code");
      ASSERT_TRUE(PutTenant(state->store(), acme).ok());
    }
  });
  uint64_t version = 0;
  while (version < static_cast<uint64_t>(kWrites)) {
    const auto snapshot = state->snapshot();
    ASSERT_GE(snapshot->version(), version);
    version = snapshot->version();
    ASSERT_TRUE(snapshot->tenants().Authenticate("Bearer secret-a").has_value());
  }
  writer.join();
}

TEST(MemoryStoreTest, TransactionsGoByVersions) {
  MemoryStore store;
  EXPECT_EQ(
      store.Update({{.key = "a", .value = "1", .expected_version = 0}, {.key = "b", .value = "2"}}).value(),
      1u);
  EXPECT_EQ(store.Update({{.key = "a", .value = "3", .expected_version = 1}}).value(), 2u);
  const auto conflict =
      store.Update({{.key = "b", .value = "4"}, {.key = "a", .value = "5", .expected_version = 1}});
  EXPECT_EQ(conflict.status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(conflict.status().message(), HasSubstr("\"a\" has changed in the meantime"));
  EXPECT_EQ(store.Get("b").value()->value, "2") << "nothing of a failed transaction is kept";
  EXPECT_EQ(store.Update({{.key = "c", .expected_version = 3}}).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(store.Update({{.key = "d"}, {.key = "d", .value = "x"}}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store.Update({{.value = "x"}}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(MemoryStoreTest, WatchesSeeTheirPrefixOnly) {
  MemoryStore store;
  int calls = 0;
  {
    const auto watch = store.WatchPrefix("a/", [&] { ++calls; });
    ASSERT_TRUE(store.Update({{.key = "a/1", .value = "x"}, {.key = "a/2", .value = "x"}}).ok());
    EXPECT_EQ(calls, 1);
    ASSERT_TRUE(store.Update({{.key = "b/1", .value = "x"}}).ok());
    EXPECT_EQ(calls, 1);
  }
  ASSERT_TRUE(store.Update({{.key = "a/1", .value = "y"}}).ok());
  EXPECT_EQ(calls, 1);
}

// As the router does with its files before it keeps them.
TEST(HashTokensTest, LeavesDigestsAndTheSameCallers) {
  v1::RouterConfig config = File();
  ASSERT_EQ(TenantOf(config, "acme").token(), "secret-a");
  TenantOf(config, "zeta").clear_token();
  TenantOf(config, "zeta").set_token_sha256(DigestToken("secret-z", "0123456789abcdef").Text());
  HashTokens(config);
  EXPECT_EQ(config.SerializeAsString().find("secret"), std::string::npos);
  const auto state = OpenOn(std::make_shared<MemoryStore>(), config);
  EXPECT_EQ(state->snapshot()->tenants().Authenticate("Bearer secret-a"), 0u);
  EXPECT_EQ(state->snapshot()->tenants().Authenticate("Bearer secret-z"), 1u);
}

}  // namespace
}  // namespace tandem::router
