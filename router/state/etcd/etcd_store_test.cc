#include "router/state/etcd/etcd_store.h"

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/base/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/state/etcd/testing/fake_etcd.h"
#include "router/state/routing_admin.h"
#include "router/state/routing_state.h"
#include "router/testing/test_router.h"
#include "tandem/v1/state.pb.h"

namespace tandem::router {
namespace {

using ::testing::ElementsAre;
using testing::FakeEtcd;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr char kPrefix[] = "/tandem/v1/";

EtcdStore::Options OptionsFor(std::vector<std::string> endpoints) {
  EtcdStore::Options options;
  options.client.endpoints = std::move(endpoints);
  options.prefix = kPrefix;
  options.open_timeout = kPatience;
  // A machine that stands still for a moment is no etcd that has gone away.
  options.request_timeout = kPatience;
  options.attempt_timeout = kPatience;
  options.patience = kPatience;
  options.ping_interval = absl::Milliseconds(50);
  options.ping_timeout = kPatience;
  options.retry_interval = absl::Milliseconds(20);
  options.page = 3;
  return options;
}

std::unique_ptr<EtcdStore> OpenOn(const FakeEtcd& etcd) {
  return EtcdStore::Open(OptionsFor({etcd.endpoint()})).value();
}

// Counts how often it was called, to be waited for.
class Calls {
 public:
  std::function<void()> Counter() {
    return [this] {
      absl::MutexLock lock(&mutex_);
      ++count_;
    };
  }
  int count() const {
    absl::MutexLock lock(&mutex_);
    return count_;
  }
  bool AwaitMoreThan(int count) const {
    const auto more = [this, count]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return count_ > count; };
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&more), kPatience);
  }

 private:
  mutable absl::Mutex mutex_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
};

// What a watch reads when it is called.
class Reader {
 public:
  std::function<void()> Of(EtcdStore& store, std::string key) {
    return [this, &store, key = std::move(key)] {
      const auto entry = store.Get(key);
      absl::MutexLock lock(&mutex_);
      if (entry.ok() && entry->has_value()) seen_ = (*entry)->value;
    };
  }
  bool Await(const std::string& value) const {
    const auto is_seen = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return seen_ == value; };
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&is_seen), kPatience);
  }

 private:
  mutable absl::Mutex mutex_;
  std::string seen_ ABSL_GUARDED_BY(mutex_);
};

// Looks until `condition` holds.
template <class Condition>
bool Eventually(const Condition& condition) {
  const absl::Time deadline = absl::Now() + kPatience;
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return true;
}

absl::StatusOr<uint64_t> PutOne(RoutingStore& store, const std::string& key, const std::string& value,
                                std::optional<uint64_t> expected = std::nullopt) {
  return store.Update({{.key = key, .value = value, .expected_version = expected}});
}

TEST(EtcdStoreTest, TransactionsGoByRevisions) {
  FakeEtcd etcd;
  const auto store = OpenOn(etcd);
  const uint64_t first =
      store->Update({{.key = "a", .value = "1", .expected_version = 0}, {.key = "b", .value = "2"}}).value();
  EXPECT_EQ(etcd.Value("/tandem/v1/a"), "1");
  const auto entry = store->Get("a").value();
  ASSERT_TRUE(entry.has_value());
  EXPECT_EQ(entry->version, first);
  const uint64_t second = PutOne(*store, "a", "3", first).value();
  EXPECT_GT(second, first);
  const auto conflict =
      store->Update({{.key = "b", .value = "4"}, {.key = "a", .value = "5", .expected_version = first}});
  EXPECT_EQ(conflict.status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(conflict.status().message(), HasSubstr("\"a\" has changed in the meantime"));
  EXPECT_EQ(store->Get("b").value()->value, "2") << "nothing of a failed transaction is kept";
  EXPECT_TRUE(store->Update({{.key = "a", .expected_version = second}, {.key = "c"}}).ok());
  EXPECT_EQ(store->Get("a").value(), std::nullopt);
  EXPECT_EQ(store->Update({{.key = "d"}, {.key = "d", .value = "x"}}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(EtcdStoreTest, ListsPageByPageAsOfOneRevision) {
  FakeEtcd etcd;
  etcd.Put("/tandem/v1/l", "before");
  etcd.Put("/tandem/v1/n", "after");
  etcd.Put("/tandem/v2/m/0", "another layout");
  const auto store = OpenOn(etcd);
  std::vector<std::string> expected;
  for (int i = 0; i < 10; ++i) {
    expected.push_back(absl::StrCat("m/", i));
    ASSERT_TRUE(PutOne(*store, expected.back(), std::string(1, '\0')).ok());
  }
  const auto keys = [&] {
    std::vector<std::string> found;
    const RoutingStore::Listing listing = store->List("m/").value();
    for (const StoredEntry& entry : listing.entries) {
      EXPECT_EQ(entry.value, std::string(1, '\0'));
      found.push_back(entry.key);
    }
    return found;
  };
  EXPECT_EQ(keys(), expected);
  // Begun anew when the revision of the first page is gone.
  etcd.CompactPages(2);
  EXPECT_EQ(keys(), expected);
  // Less in a message when it does not hold more.
  etcd.FailRanges(1, {grpc::StatusCode::RESOURCE_EXHAUSTED, "Received message larger than max"});
  EXPECT_EQ(keys(), expected);
}

TEST(EtcdStoreTest, ChangesOfOthersAreTold) {
  FakeEtcd etcd;
  const auto store = OpenOn(etcd);
  const auto other = OpenOn(etcd);
  Calls a;
  Calls b;
  const auto watch_a = store->WatchPrefix("a/", a.Counter());
  const auto watch_b = store->WatchPrefix("b/", b.Counter());
  ASSERT_TRUE(PutOne(*other, "a/1", "x").ok());
  EXPECT_TRUE(a.AwaitMoreThan(0));
  EXPECT_EQ(b.count(), 0);
  // Its own as well.
  ASSERT_TRUE(PutOne(*store, "b/1", "x").ok());
  EXPECT_TRUE(b.AwaitMoreThan(0));
}

// It reads the store, which may take long: neither who writes nor the following of etcd waits for it.
TEST(EtcdStoreTest, ASlowWatchHoldsUpNobody) {
  auto etcd = std::make_unique<FakeEtcd>();
  const int port = etcd->port();
  const EtcdStore::Options options = OptionsFor({etcd->endpoint()});
  const auto store = EtcdStore::Open(options).value();
  absl::Mutex mutex;
  bool running = false;
  bool overlapped = false;
  bool released = false;
  std::vector<std::string> seen;
  const auto watch = store->WatchPrefix("a/", [&] {
    {
      absl::MutexLock lock(&mutex);
      overlapped = overlapped || running;
      running = true;
      mutex.AwaitWithTimeout(absl::Condition(&released), kPatience);
    }
    const auto entry = store->Get("a/1");
    absl::MutexLock lock(&mutex);
    if (entry.ok() && entry->has_value()) seen.push_back((*entry)->value);
    running = false;
  });
  const auto is_held = [&] {
    absl::MutexLock lock(&mutex);
    return running && !released;
  };
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(PutOne(*store, "a/1", absl::StrCat(i)).ok());
  EXPECT_TRUE(Eventually(is_held));
  // Meanwhile etcd goes away and comes back.
  etcd.reset();
  ASSERT_TRUE(Eventually([&] { return !store->health().ok(); }));
  etcd = std::make_unique<FakeEtcd>(port);
  ASSERT_TRUE(Eventually([&] { return store->health().ok(); }));
  ASSERT_TRUE(PutOne(*store, "a/1", "last").ok());
  EXPECT_TRUE(is_held());
  {
    absl::MutexLock lock(&mutex);
    released = true;
  }
  EXPECT_TRUE(Eventually([&] {
    absl::MutexLock lock(&mutex);
    return !seen.empty() && seen.back() == "last";
  }));
  absl::MutexLock lock(&mutex);
  EXPECT_FALSE(overlapped);
}

TEST(EtcdStoreTest, ACompactedWatchBeginsAnewAndIsTold) {
  FakeEtcd etcd;
  const auto store = OpenOn(etcd);
  Calls calls;
  const auto watch = store->WatchPrefix("a/", calls.Counter());
  const size_t watches = etcd.num_watches();
  etcd.CompactWatches();
  EXPECT_TRUE(calls.AwaitMoreThan(0));
  EXPECT_GT(etcd.num_watches(), watches);
  const int before = calls.count();
  etcd.Put("/tandem/v1/a/1", "x");
  EXPECT_TRUE(calls.AwaitMoreThan(before));
}

// Whatever of it comes together: none of these watches is taken for one that goes on.
TEST(EtcdStoreTest, AWatchThatEndsAsItBeginsIsBegunAnew) {
  FakeEtcd etcd;
  EtcdStore::Options options = OptionsFor({etcd.endpoint()});
  options.retry_interval = absl::Milliseconds(1);
  const auto store = EtcdStore::Open(options).value();
  Reader reader;
  const auto watch = store->WatchPrefix("a/", reader.Of(*store, "a/1"));
  constexpr int kWatches = 50;
  for (const bool refused : {true, false}) {
    const size_t watches = etcd.num_watches();
    (refused ? etcd.RefuseWatches(kWatches) : etcd.EndWatches(kWatches));
    etcd.CompactWatches();
    ASSERT_TRUE(Eventually([&] { return etcd.num_watches() > watches + kWatches; }));
    ASSERT_TRUE(Eventually([&] { return store->health().ok(); }));
    // The second cannot be seen by whom the watch's beginning is told late.
    for (const absl::string_view which : {"first", "second"}) {
      const std::string value = absl::StrCat(which, ", refused: ", refused);
      etcd.Put("/tandem/v1/a/1", value);
      EXPECT_TRUE(reader.Await(value)) << value;
    }
  }
}

TEST(EtcdStoreTest, AWriteWhoseAnswerWasLostIsDoneOnce) {
  FakeEtcd etcd;
  const auto store = OpenOn(etcd);
  const grpc::Status lost(grpc::StatusCode::UNAVAILABLE, "connection lost");
  const uint64_t first = PutOne(*store, "a", "1", 0).value();
  etcd.FailTransactions(1, lost, /*done=*/true);
  const auto version = PutOne(*store, "a", "2", first);
  ASSERT_TRUE(version.ok()) << version.status();
  EXPECT_EQ(etcd.num_transactions(), 2u);
  EXPECT_EQ(store->Get("a").value()->version, *version);
  // One that was not done is made.
  etcd.FailTransactions(1, lost, /*done=*/false);
  EXPECT_TRUE(store->Update({{.key = "a", .expected_version = *version}}).ok());
  EXPECT_EQ(store->Get("a").value(), std::nullopt);
  // A deletion that was done is done.
  const uint64_t again = PutOne(*store, "a", "3", 0).value();
  etcd.FailTransactions(1, lost, /*done=*/true);
  EXPECT_TRUE(store->Update({{.key = "a", .expected_version = again}}).ok());
}

TEST(EtcdStoreTest, ALostWriteThatAnotherOvertookIsAborted) {
  FakeEtcd etcd;
  const auto store = OpenOn(etcd);
  const uint64_t first = PutOne(*store, "a", "1", 0).value();
  etcd.FailTransactions(1, {grpc::StatusCode::UNAVAILABLE, "connection lost"}, /*done=*/false);
  etcd.Put("/tandem/v1/a", "another's");
  EXPECT_EQ(PutOne(*store, "a", "2", first).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(etcd.Value("/tandem/v1/a"), "another's");
}

TEST(EtcdStoreTest, WhatGoesAwayComesBackByItself) {
  auto etcd = std::make_unique<FakeEtcd>();
  const int port = etcd->port();
  EtcdStore::Options options = OptionsFor({etcd->endpoint()});
  options.patience = absl::Milliseconds(300);
  const auto store = EtcdStore::Open(options).value();
  Calls calls;
  const auto watch = store->WatchPrefix("a/", calls.Counter());
  etcd.reset();
  ASSERT_TRUE(Eventually([&] { return !store->health().ok(); }));
  const absl::Status write = PutOne(*store, "a/1", "x").status();
  EXPECT_EQ(write.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(write.message(), HasSubstr("etcd"));
  EXPECT_EQ(store->List("").status().code(), absl::StatusCode::kUnavailable);
  const int before = calls.count();
  etcd = std::make_unique<FakeEtcd>(port);
  EXPECT_TRUE(calls.AwaitMoreThan(before));
  EXPECT_TRUE(store->health().ok());
  EXPECT_TRUE(PutOne(*store, "a/1", "x").ok());
}

TEST(EtcdStoreTest, AHangIsNoticedAndAnotherMemberAsked) {
  FakeEtcd hanging;
  FakeEtcd other;
  EtcdStore::Options options = OptionsFor({hanging.endpoint(), other.endpoint()});
  options.ping_timeout = absl::Milliseconds(500);
  options.attempt_timeout = absl::Milliseconds(500);
  const auto store = EtcdStore::Open(options).value();
  ASSERT_GE(hanging.num_watches(), 1u);
  hanging.Hang(true);
  // Without the caller having to try again.
  const auto version = PutOne(*store, "a", "1");
  EXPECT_TRUE(version.ok()) << version.status();
  EXPECT_EQ(other.Value("/tandem/v1/a"), "1");
  hanging.Hang(false);
}

TEST(EtcdStoreTest, AReadingThatFailedIsMadeAgain) {
  FakeEtcd etcd;
  const auto store = OpenOn(etcd);
  Reader reader;
  const auto watch = store->WatchPrefix("a/", reader.Of(*store, "a/1"));
  etcd.FailRanges(1, {grpc::StatusCode::INTERNAL, "once"});
  etcd.Put("/tandem/v1/a/1", "x");
  EXPECT_TRUE(reader.Await("x"));
}

TEST(EtcdStoreTest, AnswersThatCannotBeRightAreErrors) {
  FakeEtcd etcd;
  const auto store = OpenOn(etcd);
  ASSERT_TRUE(PutOne(*store, "a/1", "x").ok());
  const std::pair<std::function<void(etcdserverpb::RangeResponse*)>, std::string> cases[] = {
      {[](auto* r) { r->mutable_kvs(0)->set_key("/other/a"); }, "a key that was not asked for"},
      {[](auto* r) { r->mutable_kvs(0)->set_mod_revision(-1); }, "without a revision"},
      {[](auto* r) { *r->add_kvs() = r->kvs(0); }, "out of order"},
      {[](auto* r) {
         r->clear_kvs();
         r->set_more(true);
       },
       "more to come"},
  };
  for (const auto& [spoil, message] : cases) {
    etcd.Spoil(spoil);
    const absl::Status status = store->List("a/").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_THAT(status.message(), HasSubstr(message));
  }
  etcd.Spoil(nullptr);
  EXPECT_EQ(store->List("a/")->entries.size(), 1u);
}

TEST(EtcdStoreTest, LimitsOfEtcdAreExplained) {
  FakeEtcd etcd;
  const auto store = OpenOn(etcd);
  const std::pair<std::string, std::string> cases[] = {
      {"etcdserver: too many operations in txn request", "--max-txn-ops"},
      {"etcdserver: request is too large", "--max-request-bytes"},
  };
  for (const auto& [said, flag] : cases) {
    etcd.FailTransactions(1, {grpc::StatusCode::INVALID_ARGUMENT, said}, /*done=*/false);
    const absl::Status status = PutOne(*store, "a", "x").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(flag));
  }
}

TEST(EtcdStoreTest, CannotBeOpened) {
  const std::string endpoint = "127.0.0.1:1";
  EtcdStore::Options options = OptionsFor({endpoint});
  options.open_timeout = absl::Milliseconds(300);
  const absl::Status status = EtcdStore::Open(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr(endpoint));
}

TEST(EtcdStoreTest, UsersAndTheirTokens) {
  FakeEtcd etcd;
  etcd.RequireUser("tandem", "secret");
  EtcdStore::Options options = OptionsFor({etcd.endpoint()});
  options.client.username = "tandem";
  options.client.password = Secret("wrong");
  const absl::Status refused = EtcdStore::Open(options).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("invalid user ID or password"));
  options.client.password = Secret("secret");
  const auto store = EtcdStore::Open(options).value();
  EXPECT_TRUE(PutOne(*store, "a", "1").ok());
  // Tokens end at some time.
  etcd.RequireUser("tandem", "secret");
  EXPECT_TRUE(PutOne(*store, "a", "2").ok());
  options.client.username.clear();
  EXPECT_EQ(EtcdStore::Open(options).status().code(), absl::StatusCode::kUnauthenticated);
}

// Users change, members restart: whoever has the password goes on.
TEST(EtcdStoreTest, ARefusedTokenIsAskedForAnew) {
  FakeEtcd etcd;
  etcd.RequireUser("tandem", "secret");
  EtcdStore::Options options = OptionsFor({etcd.endpoint()});
  options.client.username = "tandem";
  options.client.password = Secret("secret");
  // The store's own questions would ask for tokens as well.
  options.ping_interval = absl::InfiniteDuration();
  const auto store = EtcdStore::Open(options).value();
  const grpc::Status refusals[] = {
      {grpc::StatusCode::UNAUTHENTICATED, "etcdserver: invalid auth token"},
      {grpc::StatusCode::INVALID_ARGUMENT, "etcdserver: revision of auth store is old"},
      {grpc::StatusCode::INVALID_ARGUMENT, "etcdserver: user name is empty"},
  };
  for (const grpc::Status& refusal : refusals) {
    const size_t before = etcd.num_tokens();
    etcd.EndToken(refusal);
    const auto written = PutOne(*store, "a", refusal.error_message());
    EXPECT_TRUE(written.ok()) << written.status();
    etcd.EndToken(refusal);
    const auto read = store->Get("a");
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ((*read)->value, refusal.error_message());
    EXPECT_EQ(etcd.num_tokens(), before + 2);
  }
  // Once more, not for ever.
  size_t before = etcd.num_tokens();
  etcd.FailTransactions(2, refusals[1], /*done=*/false);
  EXPECT_EQ(PutOne(*store, "a", "x").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(etcd.num_tokens(), before + 1);
  // Not for what has nothing to do with tokens.
  EXPECT_TRUE(PutOne(*store, "a", "x").ok());
  before = etcd.num_tokens();
  etcd.FailTransactions(1, {grpc::StatusCode::INVALID_ARGUMENT, "etcdserver: key is not provided"},
                        /*done=*/false);
  EXPECT_EQ(PutOne(*store, "a", "x").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(PutOne(*store, "a", "x").ok());
  EXPECT_EQ(etcd.num_tokens(), before);
}

TEST(EtcdAccessTest, SaysWhatIsWrong) {
  const TemporaryFolder folder;
  EXPECT_TRUE(CheckEtcdStore("etcd://127.0.0.1:1,[::1]:2,localhost:3/t", {}).ok());
  EXPECT_TRUE(CheckEtcdStore("etcd://etcd:2379/t", {.insecure = true}).ok());
  const absl::Status open = CheckEtcdStore("etcd://127.0.0.1:1,etcd:2379/t", {});
  EXPECT_EQ(open.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(open.message(), HasSubstr("etcd:2379 is on another machine, and there is no TLS"));
  // What lets other machines connect to the router does not let them see the password.
  const std::string password = folder.Write("password", "a b\n");
  EtcdAccess user{.insecure = true, .username = "x", .password_file = password};
  const absl::Status clear = CheckEtcdStore("etcd://127.0.0.1:1,etcd:2379/t", user);
  EXPECT_EQ(clear.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(clear.message(), HasSubstr("the password would cross the network to the etcd at etcd:2379"));
  EXPECT_THAT(clear.message(), HasSubstr("state-insecure"));
  EXPECT_TRUE(CheckEtcdStore("etcd://127.0.0.1:1,[::1]:2,localhost:3/t", user).ok());
  user.insecure = false;
  user.insecure_password = true;
  EXPECT_TRUE(CheckEtcdStore("etcd://127.0.0.1:1,etcd:2379/t", user).ok());
  const absl::Status ca = CheckEtcdStore("etcd://etcd:2379/t", {.tls = {.ca = "/nowhere/ca.pem"}});
  EXPECT_THAT(ca.message(), HasSubstr("--state-tls-ca: "));
  EXPECT_THAT(CheckEtcdStore("etcd://localhost:1/t", {.username = "x"}).message(), HasSubstr("both or none"));
  const EtcdAccess missing{.username = "x", .password_file = "/nowhere/password"};
  EXPECT_THAT(CheckEtcdStore("etcd://localhost:1/t", missing).message(),
              HasSubstr("--state-password-file: /nowhere/password"));
  const EtcdAccess empty{.username = "x", .password_file = folder.Write("empty", "\n")};
  EXPECT_THAT(CheckEtcdStore("etcd://localhost:1/t", empty).message(), HasSubstr("is empty"));
  const auto options =
      EtcdClient::MakeOptions({"localhost:1"}, {.username = "x", .password_file = password}, absl::Now());
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->password.Reveal(), "a b");
}

// Two routers' states on one etcd.
class EtcdRoutingTest : public ::testing::Test {
 protected:
  static v1::RouterConfig File() {
    v1::RouterConfig config = testing::LettersConfig({"verifier:7002"});
    config.mutable_tenants(1)->set_admin(true);
    return config;
  }
  std::unique_ptr<RoutingState> OpenState() { return RoutingState::Open(File(), OpenOn(etcd_)).value(); }

  static std::string PinnedTo(const RoutingState& state, const std::string& tenant) {
    const auto snapshot = state.snapshot();
    for (const Tenant& candidate : snapshot->table().tenants) {
      if (candidate.name == tenant && candidate.drafter.has_value()) {
        return snapshot->table().drafters[*candidate.drafter].name;
      }
    }
    return "";
  }

  FakeEtcd etcd_;
};

TEST_F(EtcdRoutingTest, RoutersAgree) {
  const auto one = OpenState();
  const auto two = OpenState();
  ASSERT_TRUE(SwapTenantDrafter(*one, "acme", "math").ok());
  EXPECT_EQ(PinnedTo(*one, "acme"), "math");
  EXPECT_TRUE(Eventually([&] { return PinnedTo(*two, "acme") == "math"; }));
  // A third begins with what they agree on.
  EXPECT_EQ(PinnedTo(*OpenState(), "acme"), "math");
}

TEST_F(EtcdRoutingTest, EditsOfSeveralRoutersAreAllKept) {
  const auto one = OpenState();
  const auto two = OpenState();
  constexpr int kEdits = 10;
  const auto edit = [](RoutingState* state, const std::string& name) {
    for (int i = 0; i < kEdits; ++i) {
      v1::SetTenantRequest request;
      request.mutable_config()->set_name(absl::StrCat(name, i));
      request.mutable_config()->set_token(absl::StrCat("token-", name, i));
      const auto set = SetTenant(*state, request);
      ASSERT_TRUE(set.ok()) << set.status();
    }
  };
  std::thread first(edit, one.get(), "x");
  std::thread second(edit, two.get(), "y");
  first.join();
  second.join();
  const size_t expected = 2 + 2 * kEdits;
  for (const auto* state : {one.get(), two.get()}) {
    EXPECT_TRUE(Eventually([&] { return state->snapshot()->table().tenants.size() == expected; }));
  }
}

TEST_F(EtcdRoutingTest, DamageIsSetAsideAndMended) {
  const auto state = OpenState();
  const auto stored = [this](const std::string& tenant) {
    return etcd_.Value(absl::StrCat(kPrefix, kTenantPrefix, tenant));
  };
  ASSERT_NE(stored("acme"), "");
  etcd_.Put(absl::StrCat(kPrefix, kTenantPrefix, "acme"), "\xff\xff");
  etcd_.Put(absl::StrCat(kPrefix, kTenantPrefix, "stranger"), "\xff\xff");
  ASSERT_TRUE(Eventually([&] { return state->condition().damaged_records == 2; }));
  EXPECT_FALSE(state->condition().stale);
  EXPECT_EQ(PinnedTo(*state, "acme"), "code") << "as it was before";
  // Others change all the same, and writing it anew mends it.
  v1::SetTenantRequest request;
  request.mutable_config()->set_name("zeta");
  request.mutable_config()->set_weight(7);
  request.add_fields("weight");
  ASSERT_TRUE(SetTenant(*state, request).ok());
  ASSERT_TRUE(SwapTenantDrafter(*state, "acme", "math").ok());
  ASSERT_TRUE(Eventually([&] { return state->condition().damaged_records == 1; }));
  EXPECT_EQ(PinnedTo(*state, "acme"), "math");
  // At the start there is nothing to go on with.
  const absl::Status status = RoutingState::Open(File(), OpenOn(etcd_)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("routing/tenants/stranger"));
}

TEST_F(EtcdRoutingTest, WhatDoesNotResolveIsStale) {
  const auto state = OpenState();
  const auto before = state->snapshot();
  v1::TenantRecord record;
  ASSERT_TRUE(record.ParseFromString(etcd_.Value(absl::StrCat(kPrefix, kTenantPrefix, "acme"))));
  const std::string good = record.SerializeAsString();
  record.mutable_config()->set_drafter("nobody");
  etcd_.Put(absl::StrCat(kPrefix, kTenantPrefix, "acme"), record.SerializeAsString());
  ASSERT_TRUE(Eventually([&] { return state->condition().stale; }));
  EXPECT_EQ(state->snapshot(), before);
  etcd_.Put(absl::StrCat(kPrefix, kTenantPrefix, "acme"), good);
  EXPECT_TRUE(Eventually([&] { return !state->condition().stale; }));
}

}  // namespace
}  // namespace tandem::router
