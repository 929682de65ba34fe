#include "router/state/sqlite_store.h"

#include <sqlite3.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "router/state/memory_store.h"

namespace tandem::router {
namespace {

// In the file's header, so that no other program's file is taken for ours: "Tndm".
constexpr int64_t kApplicationId = 0x546e646d;
constexpr int64_t kSchemaVersion = 1;

constexpr char kCreateSchema[] =
    "CREATE TABLE entries(key BLOB PRIMARY KEY NOT NULL, value BLOB NOT NULL, version INTEGER NOT NULL)"
    " WITHOUT ROWID;"
    "CREATE TABLE store(id INTEGER PRIMARY KEY CHECK(id = 1), version INTEGER NOT NULL);"
    "INSERT INTO store(id, version) VALUES(1, 0);"
    "PRAGMA application_id = 1416520813;"
    "PRAGMA user_version = 1;";
static_assert(kApplicationId == 1416520813);

std::string Text(absl::string_view view) {
  return std::string(view.data(), view.size());
}

}  // namespace

// A prepared statement, for one use. Errors of preparing it come from Step.
class SqliteStore::Statement {
 public:
  Statement(sqlite3* database, const char* sql) : database_(database) {
    code_ = sqlite3_prepare_v2(database, sql, -1, &statement_, nullptr);
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  // The bytes outlive the statement.
  Statement& Bind(int index, absl::string_view bytes) {
    // A null pointer would bind NULL instead of an empty value.
    const char* data = bytes.data() == nullptr ? "" : bytes.data();
    if (code_ == SQLITE_OK) {
      code_ = sqlite3_bind_blob64(statement_, index, data, bytes.size(), SQLITE_STATIC);
    }
    return *this;
  }
  Statement& Bind(int index, uint64_t number) {
    if (code_ == SQLITE_OK) code_ = sqlite3_bind_int64(statement_, index, static_cast<int64_t>(number));
    return *this;
  }

  // SQLITE_ROW, SQLITE_DONE or an error.
  int Step() {
    if (code_ == SQLITE_OK) return sqlite3_step(statement_);
    return code_;
  }
  std::string Bytes(int column) const {
    const void* data = sqlite3_column_blob(statement_, column);
    const int size = sqlite3_column_bytes(statement_, column);
    return size == 0 ? std::string() : std::string(static_cast<const char*>(data), size);
  }
  int64_t Number(int column) const { return sqlite3_column_int64(statement_, column); }

 private:
  sqlite3* database_;
  sqlite3_stmt* statement_ = nullptr;
  int code_ = SQLITE_OK;
};

absl::StatusOr<std::unique_ptr<SqliteStore>> SqliteStore::Open(const std::string& path,
                                                               const Options& options) {
  sqlite3* database = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &database,
                                   SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  if (code != SQLITE_OK) {
    const std::string error = database == nullptr ? sqlite3_errstr(code) : sqlite3_errmsg(database);
    sqlite3_close(database);
    return absl::UnavailableError(absl::StrCat("state file ", path, " cannot be opened: ", error));
  }
  auto store = std::unique_ptr<SqliteStore>(new SqliteStore(path, options, database));
  TANDEM_RETURN_IF_ERROR(store->Prepare());
  store->poller_ = std::thread([self = store.get()] { self->Poll(); });
  return store;
}

SqliteStore::SqliteStore(std::string path, const Options& options, sqlite3* database)
    : path_(std::move(path)), options_(options), database_(database) {
  sqlite3_busy_timeout(database_, static_cast<int>(absl::ToInt64Milliseconds(options_.busy_timeout)));
}

SqliteStore::~SqliteStore() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (poller_.joinable()) poller_.join();
  absl::MutexLock lock(&mutex_);
  sqlite3_close(database_);
}

absl::Status SqliteStore::ErrorOf(int code) const {
  if (code == SQLITE_OK || code == SQLITE_ROW || code == SQLITE_DONE) return absl::OkStatus();
  const std::string message = absl::StrCat("state file ", path_, ": ", sqlite3_errmsg(database_));
  switch (code & 0xff) {
    case SQLITE_NOTADB:
      return absl::FailedPreconditionError(
          absl::StrCat(message, "; it is damaged or no state file, and has been left as it is"));
    case SQLITE_CORRUPT:
      return absl::DataLossError(absl::StrCat(message, "; it has been left as it is"));
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_FULL:
    case SQLITE_IOERR:
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
      return absl::UnavailableError(message);
    default:
      return absl::InternalError(message);
  }
}

absl::Status SqliteStore::Execute(const char* sql) {
  return ErrorOf(sqlite3_exec(database_, sql, nullptr, nullptr, nullptr));
}

absl::StatusOr<int64_t> SqliteStore::ReadNumber(const char* sql) {
  Statement statement(database_, sql);
  const int code = statement.Step();
  if (code == SQLITE_ROW) return statement.Number(0);
  TANDEM_RETURN_IF_ERROR(ErrorOf(code));
  return absl::DataLossError(
      absl::StrCat("state file ", path_, ": a row is missing; it has been left as it is"));
}

template <class Body>
absl::Status SqliteStore::InTransaction(const char* begin, const Body& body) {
  TANDEM_RETURN_IF_ERROR(Execute(begin));
  absl::Status status = body();
  if (status.ok()) status = Execute("COMMIT");
  // After some errors SQLite has rolled back by itself.
  if (!status.ok() && sqlite3_get_autocommit(database_) == 0) {
    sqlite3_exec(database_, "ROLLBACK", nullptr, nullptr, nullptr);
  }
  return status;
}

absl::StatusOr<bool> SqliteStore::CheckIsOurs() {
  TANDEM_ASSIGN_OR_RETURN(const int64_t tables, ReadNumber("SELECT count(*) FROM sqlite_schema"));
  TANDEM_ASSIGN_OR_RETURN(const int64_t application, ReadNumber("PRAGMA application_id"));
  TANDEM_ASSIGN_OR_RETURN(const int64_t schema, ReadNumber("PRAGMA user_version"));
  if (tables == 0 && application == 0 && schema == 0) return false;
  if (application != kApplicationId) {
    return absl::FailedPreconditionError(absl::StrCat(
        "state file ", path_, " is an SQLite database of another program and has been left as it is"));
  }
  if (schema != kSchemaVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("state file ", path_, " has schema version ", schema, ", expected ", kSchemaVersion,
                     "; it is of another version of Tandem and has been left as "
                     "it is"));
  }
  return true;
}

absl::Status SqliteStore::Prepare() {
  absl::MutexLock lock(&mutex_);
  TANDEM_ASSIGN_OR_RETURN(const bool is_ours, CheckIsOurs());
  if (is_ours) {
    Statement check(database_, "PRAGMA quick_check(1)");
    const int code = check.Step();
    TANDEM_RETURN_IF_ERROR(ErrorOf(code));
    if (code != SQLITE_ROW || check.Bytes(0) != "ok") {
      return absl::DataLossError(absl::StrCat("state file ", path_,
                                              " is damaged and has been left as it is: ",
                                              code == SQLITE_ROW ? check.Bytes(0) : "it cannot be checked"));
    }
  }
  // Before the transaction, as SQLite demands.
  TANDEM_RETURN_IF_ERROR(EnterWalMode());
  TANDEM_RETURN_IF_ERROR(Execute("PRAGMA synchronous = FULL"));
  if (is_ours) return ReadNumber("SELECT version FROM store WHERE id = 1").status();
  return InTransaction("BEGIN IMMEDIATE", [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::Status {
    // Another process may have been faster.
    TANDEM_ASSIGN_OR_RETURN(const bool created, CheckIsOurs());
    return created ? absl::OkStatus() : Execute(kCreateSchema);
  });
}

absl::Status SqliteStore::EnterWalMode() {
  constexpr absl::Duration kPause = absl::Milliseconds(5);
  // SQLite does not wait by itself for another process that is about the same.
  for (absl::Duration waited; true; waited += kPause) {
    const int code = sqlite3_exec(database_, "PRAGMA journal_mode = WAL", nullptr, nullptr, nullptr);
    if ((code & 0xff) != SQLITE_BUSY || waited >= options_.busy_timeout) return ErrorOf(code);
    absl::SleepFor(kPause);
  }
}

absl::StatusOr<RoutingStore::Listing> SqliteStore::List(absl::string_view prefix) {
  absl::MutexLock lock(&mutex_);
  Listing listing;
  const auto read = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(const int64_t version, ReadNumber("SELECT version FROM store WHERE id = 1"));
    listing.version = static_cast<uint64_t>(version);
    Statement select(database_, "SELECT key, value, version FROM entries WHERE key >= ?1 ORDER BY key");
    select.Bind(1, prefix);
    int code = select.Step();
    for (; code == SQLITE_ROW; code = select.Step()) {
      StoredEntry entry{.key = select.Bytes(0)};
      if (!absl::StartsWith(entry.key, prefix)) return absl::OkStatus();
      entry.value = select.Bytes(1);
      entry.version = static_cast<uint64_t>(select.Number(2));
      listing.entries.push_back(std::move(entry));
    }
    return ErrorOf(code);
  };
  TANDEM_RETURN_IF_ERROR(InTransaction("BEGIN", read));
  return listing;
}

absl::StatusOr<std::optional<StoredEntry>> SqliteStore::Get(absl::string_view key) {
  absl::MutexLock lock(&mutex_);
  Statement select(database_, "SELECT value, version FROM entries WHERE key = ?1");
  const int code = select.Bind(1, key).Step();
  TANDEM_RETURN_IF_ERROR(ErrorOf(code));
  if (code != SQLITE_ROW) return std::nullopt;
  return StoredEntry{
      .key = Text(key), .value = select.Bytes(0), .version = static_cast<uint64_t>(select.Number(1))};
}

absl::StatusOr<uint64_t> SqliteStore::VersionOf(absl::string_view key) {
  Statement select(database_, "SELECT version FROM entries WHERE key = ?1");
  const int code = select.Bind(1, key).Step();
  TANDEM_RETURN_IF_ERROR(ErrorOf(code));
  return code == SQLITE_ROW ? static_cast<uint64_t>(select.Number(0)) : 0;
}

absl::Status SqliteStore::Write(const StoreChange& change, uint64_t version) {
  if (!change.value.has_value()) {
    Statement statement(database_, "DELETE FROM entries WHERE key = ?1");
    return ErrorOf(statement.Bind(1, change.key).Step());
  }
  Statement statement(database_, "INSERT OR REPLACE INTO entries(key, value, version) VALUES(?1, ?2, ?3)");
  return ErrorOf(statement.Bind(1, change.key).Bind(2, *change.value).Bind(3, version).Step());
}

absl::StatusOr<uint64_t> SqliteStore::Update(absl::Span<const StoreChange> changes) {
  TANDEM_RETURN_IF_ERROR(CheckChanges(changes));
  uint64_t version = 0;
  std::vector<std::string> keys;
  {
    absl::MutexLock lock(&mutex_);
    const auto write = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::Status {
      for (const StoreChange& change : changes) {
        keys.push_back(change.key);
        TANDEM_ASSIGN_OR_RETURN(const uint64_t found, VersionOf(change.key));
        TANDEM_RETURN_IF_ERROR(CheckExpectedVersion(change, found));
      }
      TANDEM_ASSIGN_OR_RETURN(
          const int64_t number,
          ReadNumber("UPDATE store SET version = version + 1 WHERE id = 1 RETURNING version"));
      version = static_cast<uint64_t>(number);
      for (const StoreChange& change : changes) TANDEM_RETURN_IF_ERROR(Write(change, version));
      return absl::OkStatus();
    };
    TANDEM_RETURN_IF_ERROR(InTransaction("BEGIN IMMEDIATE", write));
  }
  watches_.Notify(keys);
  return version;
}

std::unique_ptr<RoutingStore::Watch> SqliteStore::WatchPrefix(std::string prefix,
                                                              std::function<void()> on_change) {
  return watches_.Add(std::move(prefix), std::move(on_change));
}

void SqliteStore::Poll() {
  int64_t seen = -1;
  bool failing = false;
  while (true) {
    absl::StatusOr<int64_t> found = 0;
    {
      absl::MutexLock lock(&mutex_);
      // Changes when another connection has written to the file.
      found = ReadNumber("PRAGMA data_version");
    }
    if (found.ok() && *found != seen) {
      // Also the first time: what was written since the file was opened may have gone unnoticed.
      seen = *found;
      watches_.NotifyAll();
    }
    if (!found.ok() && !failing) {
      LogError("the state file cannot be read", {{"error", Text(found.status().message())}});
    }
    failing = !found.ok();
    absl::MutexLock lock(&mutex_);
    if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), options_.poll_interval)) return;
  }
}

}  // namespace tandem::router
