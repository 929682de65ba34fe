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

// A store in one SQLite file on a local disk, which several processes may have open. Transactions are durable
// when Update returns (write-ahead log, synced at every commit). The store polls the file every
// `poll_interval` for changes of other processes. Thread-safe.
//
// Every value is stored with a digest, which finds flipped bits that SQLite does not see. After changes, but
// at most every `copy_interval`, the store checks all values and copies the file to PATH.good. If the file is
// damaged, Open renames it to PATH.damaged-TIME and puts the copy in its place.
class SqliteStore final : public RoutingStore {
 public:
  struct Options {
    absl::Duration poll_interval = absl::Milliseconds(250);
    // How long to wait for another process that writes.
    absl::Duration busy_timeout = absl::Seconds(5);
    // Infinite: no copies.
    absl::Duration copy_interval = absl::Seconds(10);
  };

  // Opens the file, or creates it if it does not exist or is empty. Errors, which leave the file unchanged:
  // DataLoss or FailedPrecondition for a damaged file without a copy; FailedPrecondition for a file of
  // another version of Tandem or of another program; Unavailable if the file cannot be opened or written.
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
  // Opens the store without starting its thread.
  static absl::StatusOr<std::unique_ptr<SqliteStore>> OpenAsItIs(const std::string& path,
                                                                 const Options& options);
  // DataLoss for an empty file that has a copy.
  static absl::StatusOr<std::unique_ptr<SqliteStore>> OpenWhole(const std::string& path,
                                                                const Options& options);
  // Replaces a file that could not be opened, because of `damage`, by its good copy.
  static absl::StatusOr<std::unique_ptr<SqliteStore>> OpenGoodCopy(const std::string& path,
                                                                   const Options& options,
                                                                   const absl::Status& damage);
  static bool IsDamage(const absl::Status& status);

  // The status for SQLite's result `code`, with the file's name; OK for the codes of success.
  absl::Status ErrorOf(int code) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Execute(const char* sql) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<int64_t> ReadNumber(const char* sql) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Runs `body` in a transaction. Rolls it back if `body` or the commit fails.
  template <class Body>
  absl::Status InTransaction(const char* begin, const Body& body) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Whether the file is ours (true) or empty (false); an error if it is neither. Writes nothing.
  absl::StatusOr<bool> CheckIsOurs() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Prepare() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status EnterWalMode() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // DataLoss if a page, a value or the number of values is not as it was written.
  absl::Status CheckWhole() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether every value has a seal. False if a version of Tandem without seals wrote the file last.
  absl::StatusOr<bool> IsSealed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status SealWhatIsNot() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WriteSeal(const StoredEntry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // DataLoss, naming the key, if the value is not as it was written. `digest`: the value's seal, or empty.
  absl::Status CheckEntry(const StoredEntry& entry, const std::string& digest, bool sealed) const;
  absl::StatusOr<Listing> ListInTransaction(absl::string_view prefix) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<uint64_t> VersionOf(absl::string_view key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Write(const StoreChange& change, uint64_t version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Until `stopping_`: polls for changes of other processes, and copies the file.
  void Poll();
  // Writes PATH.good, unless it has this version already.
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
