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
class SqliteStore final : public RoutingStore {
 public:
  struct Options {
    absl::Duration poll_interval = absl::Milliseconds(250);
    // How long to wait for another process that writes.
    absl::Duration busy_timeout = absl::Seconds(5);
  };

  // Opens the file, or creates one where there is none or an empty one. A file that is damaged or of a newer
  // Tandem (FailedPrecondition, DataLoss) or is another program's (FailedPrecondition) is left as it is;
  // Unavailable when it cannot be opened or written.
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
  absl::StatusOr<uint64_t> VersionOf(absl::string_view key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Write(const StoreChange& change, uint64_t version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Notices what other processes change, until `stopping_`.
  void Poll();

  const std::string path_;
  const Options options_;
  WatchList watches_;
  absl::Mutex mutex_;
  sqlite3* const database_ ABSL_PT_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread poller_;
};

}  // namespace tandem::router
