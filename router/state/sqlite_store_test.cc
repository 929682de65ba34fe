#include "router/state/sqlite_store.h"

#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/base/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/state/open_store.h"
#include "router/state/routing_state.h"
#include "router/state/sqlite_copies.h"
#include "router/testing/test_router.h"

namespace tandem::router {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

class SqliteStoreTest : public ::testing::Test {
 protected:
  std::string Path() const { return folder_.PathOf("state.db"); }
  std::unique_ptr<SqliteStore> Open() const {
    return SqliteStore::Open(Path(), {.poll_interval = absl::Milliseconds(5)}).value();
  }
  absl::Status OpenError() const { return SqliteStore::Open(Path()).status(); }

  std::string Content() const {
    std::ostringstream text;
    text << std::ifstream(Path(), std::ios::binary).rdbuf();
    return text.str();
  }
  // By another program.
  int Sql(const char* statements) const {
    sqlite3* database = nullptr;
    int code = sqlite3_open(Path().c_str(), &database);
    if (code == SQLITE_OK) code = sqlite3_exec(database, statements, nullptr, nullptr, nullptr);
    sqlite3_close(database);
    return code;
  }
  void WriteContent(const std::string& content) const { folder_.Write("state.db", content); }

  const TemporaryFolder folder_;
};

absl::Status Put(RoutingStore& store, const std::string& key, const std::string& value) {
  return store.Update({{.key = key, .value = value}}).status();
}

TEST_F(SqliteStoreTest, KeepsWhatIsWritten) {
  const std::string bytes("\0\xff'; DROP TABLE entries; --", 27);
  {
    const auto store = Open();
    EXPECT_EQ(store->List("")->version, 0u);
    ASSERT_EQ(store->Update({{.key = "b/1", .value = bytes}, {.key = "a", .value = ""}}).value(), 1u);
    ASSERT_TRUE(Put(*store, "b/2", "x").ok());
    ASSERT_TRUE(store->Update({{.key = "b/2"}}).ok());
  }
  const auto store = Open();
  const RoutingStore::Listing listing = store->List("b").value();
  EXPECT_EQ(listing.version, 3u);
  ASSERT_EQ(listing.entries.size(), 1u);
  EXPECT_EQ(listing.entries[0].key, "b/1");
  EXPECT_EQ(listing.entries[0].value, bytes);
  EXPECT_EQ(listing.entries[0].version, 1u);
  EXPECT_EQ(store->Get("a").value()->value, "");
  EXPECT_EQ(store->Get("b").value(), std::nullopt);
}

TEST_F(SqliteStoreTest, TransactionsGoByVersions) {
  const auto store = Open();
  ASSERT_TRUE(store->Update({{.key = "a", .value = "1", .expected_version = 0}}).ok());
  const auto conflict =
      store->Update({{.key = "b", .value = "2"}, {.key = "a", .value = "3", .expected_version = 0}});
  EXPECT_EQ(conflict.status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(store->Get("b").value(), std::nullopt) << "nothing of a failed transaction is kept";
  EXPECT_EQ(store->List("")->version, 1u);
  EXPECT_TRUE(store->Update({{.key = "a", .value = "3", .expected_version = 1}}).ok());
}

TEST_F(SqliteStoreTest, ChangesOfOthersAreNoticed) {
  const auto ours = Open();
  const auto theirs = Open();
  absl::Notification noticed;
  const auto watch = ours->WatchPrefix("a", [&] {
    const auto entry = ours->Get("a").value();
    if (entry.has_value() && !noticed.HasBeenNotified()) noticed.Notify();
  });
  ASSERT_TRUE(Put(*theirs, "a", "1").ok());
  noticed.WaitForNotification();
  EXPECT_EQ(ours->Get("a").value()->value, "1");
}

// Several processes count up one number: no count is lost, and a process that is killed amid its work leaves
// the file whole.
TEST_F(SqliteStoreTest, ProcessesShareAFile) {
  constexpr int kProcesses = 3;
  constexpr int kCounts = 40;
  const auto count_up = [this](int counts) {
    // Unavailable, here and below: others had the file for all of the busy timeout.
    auto store = SqliteStore::Open(Path());
    for (int more = 10; absl::IsUnavailable(store.status()) && more > 0; --more) {
      store = SqliteStore::Open(Path());
    }
    if (!store.ok()) {
      std::fprintf(stderr, "open: %s\n", store.status().ToString().c_str());
      return 1;
    }
    for (int done = 0; done < counts;) {
      const auto entry = (*store)->Get("n").value();
      const int number = entry.has_value() ? std::stoi(entry->value) : 0;
      const auto status = (*store)->Update({{.key = "n",
                                             .value = absl::StrCat(number + 1),
                                             .expected_version = entry.has_value() ? entry->version : 0}});
      if (status.ok()) {
        ++done;
      } else if (!absl::IsAborted(status.status()) && !absl::IsUnavailable(status.status())) {
        // Aborted: another was faster.
        std::fprintf(stderr, "update: %s\n", status.status().ToString().c_str());
        return 2;
      }
    }
    return 0;
  };
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses + 1; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    // The last one never ends by itself.
    if (child == 0) _exit(count_up(i < kProcesses ? kCounts : 1 << 30));
    children.push_back(child);
  }
  for (int i = 0; i < kProcesses; ++i) {
    int status = 0;
    ASSERT_EQ(waitpid(children[i], &status, 0), children[i]);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  kill(children.back(), SIGKILL);
  waitpid(children.back(), nullptr, 0);
  const auto store = Open();
  const auto entry = store->Get("n").value();
  ASSERT_TRUE(entry.has_value());
  EXPECT_GE(std::stoi(entry->value), kProcesses * kCounts);
  EXPECT_EQ(static_cast<uint64_t>(std::stoi(entry->value)), entry->version)
      << "every transaction counted one up";
}

TEST_F(SqliteStoreTest, AnotherProgramsFileIsLeftAlone) {
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(Path().c_str(), &database), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(database, "CREATE TABLE songs(name)", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(database);
  const std::string before = Content();
  const absl::Status status = OpenError();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("is an SQLite database of another program"));
  EXPECT_THAT(status.message(), HasSubstr(Path()));
  EXPECT_EQ(Content(), before);
}

TEST_F(SqliteStoreTest, ANewerSchemaIsLeftAlone) {
  Open().reset();
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(Path().c_str(), &database), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(database, "PRAGMA user_version = 2", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(database);
  const std::string before = Content();
  EXPECT_THAT(OpenError().message(), HasSubstr("has schema version 2, expected 1"));
  EXPECT_EQ(Content(), before);
}

TEST_F(SqliteStoreTest, WhatIsNoDatabaseIsLeftAlone) {
  const std::string text(5000, 'x');
  WriteContent(text);
  EXPECT_EQ(OpenError().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Content(), text);
}

TEST_F(SqliteStoreTest, DamageIsFoundAndLeftAsItIs) {
  {
    const auto store = Open();
    for (int i = 0; i < 200; ++i)
      ASSERT_TRUE(Put(*store, absl::StrCat("key", i), std::string(200, 'v')).ok());
  }
  std::filesystem::remove(GoodCopyOf(Path()));
  const std::string whole = Content();
  ASSERT_GT(whole.size(), 3u * 4096);
  // Cut off, and with a page of the tree overwritten.
  std::string overwritten = whole;
  overwritten.replace(4096 * 2, 4096, std::string(4096, '\x5a'));
  for (const std::string& damaged : {whole.substr(0, whole.size() / 2), overwritten}) {
    WriteContent(damaged);
    const absl::Status status = OpenError();
    EXPECT_THAT(status.code(), AnyOf(absl::StatusCode::kDataLoss, absl::StatusCode::kFailedPrecondition))
        << status;
    EXPECT_THAT(status.message(), HasSubstr("left unchanged"));
    EXPECT_EQ(Content(), damaged);
  }
  WriteContent(whole);
  EXPECT_EQ(Open()->List("key")->entries.size(), 200u);
}

// Every byte of a file that SQLite itself does not check.
TEST_F(SqliteStoreTest, AFlippedBitIsFound) {
  {
    const auto store = Open();
    ASSERT_TRUE(Put(*store, "routing/tenants/acme", "weight 3, and a quota").ok());
    ASSERT_TRUE(Put(*store, "routing/tenants/zeta", "another").ok());
  }
  std::filesystem::remove(GoodCopyOf(Path()));
  const std::string whole = Content();
  for (const char* const found : {"weight 3", "tenants/zeta"}) {
    std::string damaged = whole;
    damaged[damaged.rfind(found) + 7] ^= 1;
    WriteContent(damaged);
    const absl::Status status = OpenError();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(status.message(), HasSubstr(Path()));
    EXPECT_EQ(Content(), damaged);
  }
  // While a store has it open.
  WriteContent(whole);
  const auto store = Open();
  ASSERT_EQ(Sql("UPDATE entries SET value = x'00' WHERE key = CAST('routing/tenants/acme' AS BLOB)"),
            SQLITE_OK);
  EXPECT_THAT(store->Get("routing/tenants/acme").status().message(),
              HasSubstr("the value of \"routing/tenants/acme\" is not what was written"));
  EXPECT_EQ(store->List("routing/").status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(store->Get("routing/tenants/zeta").value()->value, "another");
}

TEST_F(SqliteStoreTest, AValueThatIsGoneIsMissed) {
  {
    const auto store = Open();
    ASSERT_TRUE(Put(*store, "a", "1").ok());
    ASSERT_TRUE(Put(*store, "b", "2").ok());
  }
  std::filesystem::remove(GoodCopyOf(Path()));
  ASSERT_EQ(Sql("DELETE FROM entries WHERE key = CAST('a' AS BLOB)"), SQLITE_OK);
  EXPECT_THAT(OpenError().message(), HasSubstr("1 values of 2 are there"));
}

TEST_F(SqliteStoreTest, TheLastGoodCopyTakesADamagedFilesPlace) {
  {
    const auto store = Open();
    for (int i = 0; i < 200; ++i)
      ASSERT_TRUE(Put(*store, absl::StrCat("key", i), std::string(200, 'v')).ok());
  }
  const std::string whole = Content();
  std::string flipped = whole;
  flipped[flipped.rfind("vvvv")] ^= 4;
  std::string overwritten = whole;
  overwritten.replace(4096 * 2, 4096, std::string(4096, '\x5a'));
  const std::string text(5000, 'x');
  for (const std::string& damaged :
       {flipped, overwritten, whole.substr(0, whole.size() / 2), text, std::string()}) {
    WriteContent(damaged);
    // No write-ahead log belongs to the damaged file.
    for (const char* const part : {"-wal", "-shm"}) std::filesystem::remove(Path() + part);
    const auto store = SqliteStore::Open(Path());
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_EQ((*store)->List("key")->entries.size(), 200u);
    EXPECT_TRUE(Put(**store, "key0", "new").ok());
    EXPECT_TRUE(Put(**store, "key0", std::string(200, 'v')).ok());
    bool found = false;
    for (const auto& file : std::filesystem::directory_iterator(folder_.path())) {
      if (file.path().string().find(".damaged-") == std::string::npos) continue;
      std::ostringstream content;
      content << std::ifstream(file.path(), std::ios::binary).rdbuf();
      found |= content.str() == damaged;
    }
    EXPECT_TRUE(found) << "the damaged file is kept";
  }
  // Another program's file is nobody's damage.
  Sql("PRAGMA application_id = 5");
  EXPECT_EQ(OpenError().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(SqliteStoreTest, ADamagedFileIsNotCopied) {
  const auto store = SqliteStore::Open(Path(), {.poll_interval = absl::Milliseconds(1),
                                                .copy_interval = absl::Milliseconds(1)})
                         .value();
  ASSERT_TRUE(Put(*store, "a", "good").ok());
  const auto copied = [this](absl::string_view text) {
    std::ostringstream content;
    content << std::ifstream(GoodCopyOf(Path()), std::ios::binary).rdbuf();
    return absl::StrContains(content.str(), text);
  };
  while (!copied("good")) absl::SleepFor(absl::Milliseconds(1));
  ASSERT_EQ(Sql("UPDATE entries SET value = CAST('evil' AS BLOB)"), SQLITE_OK);
  // Its version counts up.
  ASSERT_TRUE(Put(*store, "b", "more").ok());
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_TRUE(copied("good"));
  EXPECT_FALSE(copied("evil"));
}

// As versions without seals made it, and wrote to it later beside this one.
TEST_F(SqliteStoreTest, OlderVersionsGoOnWithTheFile) {
  for (const char* const sql :
       {"PRAGMA journal_mode = WAL",
        "CREATE TABLE entries(key BLOB PRIMARY KEY NOT NULL, value BLOB NOT NULL, version INTEGER NOT NULL)"
        " WITHOUT ROWID",
        "CREATE TABLE store(id INTEGER PRIMARY KEY CHECK(id = 1), version INTEGER NOT NULL)",
        "INSERT INTO store(id, version) VALUES(1, 7)", "PRAGMA application_id = 1416520813",
        "PRAGMA user_version = 1", "INSERT INTO entries VALUES(x'61', CAST('old' AS BLOB), 7)"}) {
    ASSERT_EQ(Sql(sql), SQLITE_OK) << sql;
  }
  {
    const auto store = Open();
    EXPECT_EQ(store->Get("a").value()->value, "old");
    EXPECT_EQ(store->Update({{.key = "b", .value = "new"}}).value(), 8u);
  }
  // What the older version does in a transaction.
  ASSERT_EQ(Sql("BEGIN; UPDATE store SET version = 9; INSERT OR REPLACE INTO entries VALUES(x'61',"
                " CAST('older' AS BLOB), 9); DELETE FROM entries WHERE key = x'62'; COMMIT"),
            SQLITE_OK);
  {
    const auto store = Open();
    EXPECT_EQ(store->Get("a").value()->value, "older");
    EXPECT_EQ(store->Get("b").value(), std::nullopt);
    EXPECT_EQ(store->List("")->entries.size(), 1u);
    EXPECT_EQ(store->Update({{.key = "c", .value = "newer"}}).value(), 10u);
    // Both at the same time.
    ASSERT_EQ(Sql("BEGIN; UPDATE store SET version = 11; INSERT OR REPLACE INTO entries VALUES(x'64',"
                  " CAST('d' AS BLOB), 11); COMMIT"),
              SQLITE_OK);
    EXPECT_EQ(store->Get("d").value()->value, "d");
    EXPECT_EQ(store->Update({{.key = "e", .value = "5"}}).value(), 12u);
    EXPECT_EQ(store->List("")->entries.size(), 4u);
  }
  EXPECT_EQ(Open()->List("")->entries.size(), 4u);
}

TEST_F(SqliteStoreTest, CannotBeOpened) {
  const absl::Status status = SqliteStore::Open(folder_.PathOf("missing/state.db")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("missing/state.db cannot be opened"));
}

TEST_F(SqliteStoreTest, RoutingSurvivesARestart) {
  const v1::RouterConfig file = testing::LettersConfig({"verifier:7002"});
  const std::string uri = absl::StrCat("sqlite://", Path());
  {
    const auto state = RoutingState::Open(file, OpenStore(uri).value()).value();
    ASSERT_TRUE(state->store().Update({{.key = "routing/tenants/zeta"}}).ok());
    ASSERT_TRUE(PutBlob(state->store(), "regression", "123").ok());
  }
  const auto state = RoutingState::Open(file, OpenStore(uri).value()).value();
  EXPECT_EQ(state->snapshot()->table().tenants.size(), 1u);
  EXPECT_EQ(GetBlob(state->store(), "regression").value(), "123");
  EXPECT_EQ(GetBlob(state->store(), "other").value(), std::nullopt);
}

TEST(OpenStoreTest, KnowsItsAddresses) {
  EXPECT_TRUE(OpenStore("memory:").ok());
  for (const char* uri : {"", "memory", "sqlite:///", "sqlite://relative", "sqlite:/x", "/tmp/x"}) {
    const absl::Status status = OpenStore(uri).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << uri;
    EXPECT_THAT(status.message(), HasSubstr("expected memory: or sqlite:///path"));
  }
}

}  // namespace
}  // namespace tandem::router
