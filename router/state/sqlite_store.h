#pragma once

#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "router/state/routing_store.h"
#include "router/state/watch_list.h"

struct sqlite3;

namespace tandem::router {

// A store in one SQLite file, on a local disk, that several processes may have open. Transactions are durable
// when Update returns (write-ahead log, synced at every commit). Changes of other processes are noticed by
// asking the file every `poll_interval`. Thread-safe.
//
// Every value has a digest beside it, so that a flipped bit is found where SQLite sees none. After
// changes, and at most every `copy_interval`, PATH.good becomes a copy of the file whose values are all
// whole. Open puts it in the place of a file that is damaged, which is kept as PATH.damaged-TIME.
class SqliteStore final : public RoutingStore {
 public:
  struct Options {
    absl::Duration poll_interval = absl::Milliseconds(250);
    // How long to wait for another process that writes.
    absl::Duration busy_timeout = absl::Seconds(5);
    // Infinite: no copies.
    absl::Duration copy_interval = absl::Seconds(10);
  };

  // Opens the file, or creates one where there is none or an empty one. A damaged file without a copy
  // (DataLoss, FailedPrecondition), one of a newer Tandem and another program's (FailedPrecondition) are left
  // as they are; Unavailable when it cannot be opened or written.
  static absl::StatusOr<std::unique_ptr<SqliteStore>> Open(const std::string& path, const Options& options);
  static absl::StatusOr<std::unique_ptr<SqliteStore>> Open(const std::string& path) { return Open(path, {}); }
  ~SqliteStore() override;

  absl::StatusOr<Listing> List(absl::string_view prefix) override;
  absl::StatusOr<std::optional<StoredEntry>> Get(absl::string_view key) override;
  absl::StatusOr<uint64_t> Update(absl::Span<const StoreChange> changes) override;
  std::unique_ptr<Watch> WatchPrefix(std::string prefix, std::function<void()> on_change) override;

 private:
  class Statement;

  SqliteStore(std::string path, const Options& options, sqlite3* database);
  // Without its thread.
  static absl::StatusOr<std::unique_ptr<SqliteStore>> OpenAsItIs(const std::string& path,
                                                                 const Options& options);
  // DataLoss for an empty file that has a copy.
  static absl::StatusOr<std::unique_ptr<SqliteStore>> OpenWhole(const std::string& path,
                                                                const Options& options);
  // A file of which opening it said `damage`, in whose place its copy is put.
  static absl::StatusOr<std::unique_ptr<SqliteStore>> OpenGoodCopy(const std::string& path,
                                                                   const Options& options,
                                                                   const absl::Status& damage);
  static bool IsDamage(const absl::Status& status);

  // The status of a call of SQLite's that returned `code`, with the file's name; OK for the codes of success.
  absl::Status ErrorOf(int code) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Execute(const char* sql) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<int64_t> ReadNumber(const char* sql) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Runs `body` in a transaction that is rolled back when it, or committing, fails.
  template <class Body>
  absl::Status InTransaction(const char* begin, const Body& body) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Whether the file is empty, one of ours or (an error) neither; writes nothing.
  absl::StatusOr<bool> CheckIsOurs() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Prepare() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status EnterWalMode() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // DataLoss when a page, a value or the number of values is not what was written.
  absl::Status CheckWhole() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether every value has a seal: no version of Tandem without seals wrote last.
  absl::StatusOr<bool> IsSealed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status SealWhatIsNot() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WriteSeal(const StoredEntry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // DataLoss, naming the key, when the value is not what was written. `digest`: of its seal, empty without
  // one.
  absl::Status CheckEntry(const StoredEntry& entry, const std::string& digest, bool sealed) const;
  absl::StatusOr<Listing> ListInTransaction(absl::string_view prefix) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<uint64_t> VersionOf(absl::string_view key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Write(const StoreChange& change, uint64_t version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Notices what other processes change, and copies the file, until `stopping_`.
  void Poll();
  // Makes PATH.good, unless it is of this version already.
  absl::Status Copy() ABSL_LOCKS_EXCLUDED(mutex_);

  const std::string path_;
  const Options options_;
  WatchList watches_;
  absl::Mutex mutex_;
  sqlite3* const database_ ABSL_PT_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t copied_version_ ABSL_GUARDED_BY(mutex_) = -1;
  std::thread poller_;
};

}  // namespace tandem::router
