#include "router/state/sqlite_store.h"

#include <sqlite3.h>

#include <cstdint>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/config/token_digest.h"
#include "router/state/memory_store.h"
#include "router/state/sqlite_copies.h"

namespace tandem::router {
namespace {

// In the file's header, so that no other program's file is taken for ours: "Tndm".
constexpr int64_t kApplicationId = 0x546e646d;
constexpr int64_t kSchemaVersion = 1;
// Payload of the status of a file that SQLite does not know as its own.
constexpr absl::string_view kNoDatabase = "tandem/no-database";

// Beside the entries, so that versions of Tandem without seals go on with the file, and ignore it. The row
// without a key says which version of the store was sealed last; when the store has another one, such a
// version has written to it, and what it left without a seal is sealed anew.
constexpr char kCreateSeals[] =
    "CREATE TABLE IF NOT EXISTS seals(key BLOB PRIMARY KEY NOT NULL, version INTEGER NOT NULL,"
    " digest BLOB NOT NULL) WITHOUT ROWID;";
constexpr char kSealedVersion[] = "SELECT coalesce((SELECT version FROM seals WHERE key = x''), -1)";
constexpr char kStoreVersion[] = "SELECT version FROM store WHERE id = 1";

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

// SHA-256 of the key's size, the key, the version and the value.
std::string DigestOf(const StoredEntry& entry) {
  std::string bytes;
  for (const uint64_t number : {static_cast<uint64_t>(entry.key.size()), entry.version}) {
    for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(number >> (8 * i)));
  }
  absl::StrAppend(&bytes, entry.key, entry.value);
  const Sha256Digest digest = Sha256(bytes);
  return std::string(digest.begin(), digest.end());
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
  absl::StatusOr<std::unique_ptr<SqliteStore>> store = OpenWhole(path, options);
  if (IsDamage(store.status())) {
    const RestoringLock lock(path);
    // Another process may have done it.
    store = OpenWhole(path, options);
    if (IsDamage(store.status())) store = OpenGoodCopy(path, options, store.status());
  }
  TANDEM_RETURN_IF_ERROR(store.status());
  (*store)->poller_ = std::thread([self = store->get()] { self->Poll(); });
  return store;
}

absl::StatusOr<std::unique_ptr<SqliteStore>> SqliteStore::OpenWhole(const std::string& path,
                                                                    const Options& options) {
  // SQLite would make a new database of it.
  if (IsCutToNothing(path)) {
    return absl::DataLossError(absl::StrCat("state file ", path, ": empty, although a copy of it exists"));
  }
  return OpenAsItIs(path, options);
}

bool SqliteStore::IsDamage(const absl::Status& status) {
  return absl::IsDataLoss(status) || status.GetPayload(kNoDatabase).has_value();
}

absl::StatusOr<std::unique_ptr<SqliteStore>> SqliteStore::OpenGoodCopy(const std::string& path,
                                                                       const Options& options,
                                                                       const absl::Status& damage) {
  const absl::StatusOr<std::string> duplicate = DuplicateGoodCopy(path);
  if (absl::IsNotFound(duplicate.status())) return damage;
  absl::Status status = duplicate.status();
  if (status.ok())
    status = OpenAsItIs(*duplicate, options).status();  // And closed again, with all in one file.
  if (status.ok()) {
    const absl::StatusOr<std::string> kept = ReplaceDamaged(path, *duplicate, absl::Now());
    status = kept.status();
    if (status.ok()) {
      LogError("the state file is damaged; its last good copy replaces it, and later changes are lost",
               {{"error", Text(damage.message())}, {"kept_as", *kept}});
      return OpenAsItIs(path, options);
    }
  }
  return absl::Status(damage.code(),
                      absl::StrCat(damage.message(), "; its copy cannot be used either: ", status.message()));
}

absl::StatusOr<std::unique_ptr<SqliteStore>> SqliteStore::OpenAsItIs(const std::string& path,
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
    case SQLITE_NOTADB: {
      absl::Status status = absl::FailedPreconditionError(
          absl::StrCat(message, "; it is damaged or not a state file, and has been left unchanged"));
      status.SetPayload(kNoDatabase, absl::Cord());
      return status;
    }
    case SQLITE_CORRUPT:
      return absl::DataLossError(absl::StrCat(message, "; it has been left unchanged"));
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
      absl::StrCat("state file ", path_, ": a row is missing; it has been left unchanged"));
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
        "state file ", path_, " is an SQLite database of another program and has been left unchanged"));
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
  if (is_ours) TANDEM_RETURN_IF_ERROR(CheckWhole());
  // Before the transaction, as SQLite demands.
  TANDEM_RETURN_IF_ERROR(EnterWalMode());
  TANDEM_RETURN_IF_ERROR(Execute("PRAGMA synchronous = FULL"));
  return InTransaction("BEGIN IMMEDIATE", [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::Status {
    // Another process may have been faster.
    TANDEM_ASSIGN_OR_RETURN(const bool created, CheckIsOurs());
    if (!created) TANDEM_RETURN_IF_ERROR(Execute(kCreateSchema));
    TANDEM_RETURN_IF_ERROR(Execute(kCreateSeals));
    return SealWhatIsNot();
  });
}

absl::Status SqliteStore::CheckWhole() {
  {
    Statement check(database_, "PRAGMA quick_check(1)");
    const int code = check.Step();
    TANDEM_RETURN_IF_ERROR(ErrorOf(code));
    if (code != SQLITE_ROW || check.Bytes(0) != "ok") {
      return absl::DataLossError(absl::StrCat("state file ", path_,
                                              " is damaged and has been left unchanged: ",
                                              code == SQLITE_ROW ? check.Bytes(0) : "it cannot be checked"));
    }
  }
  TANDEM_ASSIGN_OR_RETURN(const int64_t has_seals,
                          ReadNumber("SELECT count(*) FROM sqlite_schema WHERE name = 'seals'"));
  if (has_seals == 0) return ReadNumber(kStoreVersion).status();
  return InTransaction("BEGIN", [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(const Listing listing, ListInTransaction(""));
    TANDEM_ASSIGN_OR_RETURN(const bool sealed, IsSealed());
    TANDEM_ASSIGN_OR_RETURN(const int64_t seals, ReadNumber("SELECT count(*) FROM seals WHERE key != x''"));
    if (!sealed || static_cast<size_t>(seals) == listing.entries.size()) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("state file ", path_, ": ", listing.entries.size(), " values of ",
                                            seals, " are there; it has been left unchanged"));
  });
}

absl::StatusOr<bool> SqliteStore::IsSealed() {
  TANDEM_ASSIGN_OR_RETURN(const int64_t sealed, ReadNumber(kSealedVersion));
  TANDEM_ASSIGN_OR_RETURN(const int64_t version, ReadNumber(kStoreVersion));
  return sealed == version;
}

absl::Status SqliteStore::SealWhatIsNot() {
  TANDEM_ASSIGN_OR_RETURN(const bool sealed, IsSealed());
  if (sealed) return absl::OkStatus();
  // Those that have seals are checked.
  TANDEM_ASSIGN_OR_RETURN(const Listing listing, ListInTransaction(""));
  TANDEM_RETURN_IF_ERROR(Execute("DELETE FROM seals"));
  for (const StoredEntry& entry : listing.entries) TANDEM_RETURN_IF_ERROR(WriteSeal(entry));
  return WriteSeal({.version = listing.version});
}

absl::Status SqliteStore::WriteSeal(const StoredEntry& entry) {
  Statement statement(database_, "INSERT OR REPLACE INTO seals(key, version, digest) VALUES(?1, ?2, ?3)");
  const std::string digest = DigestOf(entry);
  return ErrorOf(statement.Bind(1, entry.key).Bind(2, entry.version).Bind(3, digest).Step());
}

absl::Status SqliteStore::CheckEntry(const StoredEntry& entry, const std::string& digest, bool sealed) const {
  if (digest.empty() ? !sealed : digest == DigestOf(entry)) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("state file ", path_, ": the value of \"", absl::CHexEscape(entry.key.substr(0, 64)),
                   "\" is not what was written (SHA-256); it has been left unchanged"));
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
  TANDEM_RETURN_IF_ERROR(InTransaction("BEGIN", [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(listing, ListInTransaction(prefix));
    return absl::OkStatus();
  }));
  return listing;
}

absl::StatusOr<RoutingStore::Listing> SqliteStore::ListInTransaction(absl::string_view prefix) {
  TANDEM_ASSIGN_OR_RETURN(const int64_t version, ReadNumber(kStoreVersion));
  TANDEM_ASSIGN_OR_RETURN(const bool sealed, IsSealed());
  Listing listing{.version = static_cast<uint64_t>(version)};
  Statement select(database_,
                   "SELECT e.key, e.value, e.version, s.digest FROM entries e LEFT JOIN seals s"
                   " ON s.key = e.key AND s.version = e.version WHERE e.key >= ?1 ORDER BY e.key");
  select.Bind(1, prefix);
  int code = select.Step();
  for (; code == SQLITE_ROW; code = select.Step()) {
    StoredEntry entry{.key = select.Bytes(0)};
    if (!absl::StartsWith(entry.key, prefix)) return listing;
    entry.value = select.Bytes(1);
    entry.version = static_cast<uint64_t>(select.Number(2));
    TANDEM_RETURN_IF_ERROR(CheckEntry(entry, select.Bytes(3), sealed));
    listing.entries.push_back(std::move(entry));
  }
  TANDEM_RETURN_IF_ERROR(ErrorOf(code));
  return listing;
}

absl::StatusOr<std::optional<StoredEntry>> SqliteStore::Get(absl::string_view key) {
  absl::MutexLock lock(&mutex_);
  Statement select(
      database_,
      "SELECT e.value, e.version, s.digest,"
      " (SELECT version FROM store WHERE id = 1) = (SELECT version FROM seals WHERE key = x'')"
      " FROM entries e LEFT JOIN seals s ON s.key = e.key AND s.version = e.version WHERE e.key = ?1");
  const int code = select.Bind(1, key).Step();
  TANDEM_RETURN_IF_ERROR(ErrorOf(code));
  if (code != SQLITE_ROW) return std::nullopt;
  StoredEntry entry{
      .key = Text(key), .value = select.Bytes(0), .version = static_cast<uint64_t>(select.Number(1))};
  TANDEM_RETURN_IF_ERROR(CheckEntry(entry, select.Bytes(2), select.Number(3) != 0));
  return entry;
}

absl::StatusOr<uint64_t> SqliteStore::VersionOf(absl::string_view key) {
  Statement select(database_, "SELECT version FROM entries WHERE key = ?1");
  const int code = select.Bind(1, key).Step();
  TANDEM_RETURN_IF_ERROR(ErrorOf(code));
  return code == SQLITE_ROW ? static_cast<uint64_t>(select.Number(0)) : 0;
}

absl::Status SqliteStore::Write(const StoreChange& change, uint64_t version) {
  if (!change.value.has_value()) {
    for (const char* const sql : {"DELETE FROM entries WHERE key = ?1", "DELETE FROM seals WHERE key = ?1"}) {
      Statement statement(database_, sql);
      TANDEM_RETURN_IF_ERROR(ErrorOf(statement.Bind(1, change.key).Step()));
    }
    return absl::OkStatus();
  }
  Statement statement(database_, "INSERT OR REPLACE INTO entries(key, value, version) VALUES(?1, ?2, ?3)");
  TANDEM_RETURN_IF_ERROR(
      ErrorOf(statement.Bind(1, change.key).Bind(2, *change.value).Bind(3, version).Step()));
  return WriteSeal({.key = change.key, .value = *change.value, .version = version});
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
      TANDEM_RETURN_IF_ERROR(SealWhatIsNot());
      TANDEM_ASSIGN_OR_RETURN(
          const int64_t number,
          ReadNumber("UPDATE store SET version = version + 1 WHERE id = 1 RETURNING version"));
      version = static_cast<uint64_t>(number);
      for (const StoreChange& change : changes) TANDEM_RETURN_IF_ERROR(Write(change, version));
      return WriteSeal({.version = version});
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

absl::Status SqliteStore::Copy() {
  absl::MutexLock lock(&mutex_);
  TANDEM_ASSIGN_OR_RETURN(const int64_t version, ReadNumber(kStoreVersion));
  if (version == copied_version_) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(CheckWhole());
  TANDEM_RETURN_IF_ERROR(CopyDatabase(database_, path_));
  copied_version_ = version;
  return absl::OkStatus();
}

void SqliteStore::Poll() {
  int64_t seen = -1;
  bool failing = false, stopping = false;
  absl::Time next_copy = absl::Now() + options_.copy_interval;
  while (!stopping) {
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
    absl::Status status = found.status();
    {
      absl::MutexLock lock(&mutex_);
      stopping = mutex_.AwaitWithTimeout(absl::Condition(&stopping_), options_.poll_interval);
    }
    if (options_.copy_interval < absl::InfiniteDuration() && (stopping || absl::Now() >= next_copy)) {
      next_copy = absl::Now() + options_.copy_interval;
      status.Update(Copy());
    }
    if (!status.ok() && !failing) {
      LogError("the state file cannot be read or copied", {{"error", Text(status.message())}});
    }
    failing = !status.ok();
  }
}

}  // namespace tandem::router
