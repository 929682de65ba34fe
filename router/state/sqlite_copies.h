#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

struct sqlite3;

namespace tandem::router {

// The last good copy of a state file stands beside it: PATH.good.
std::string GoodCopyOf(const std::string& path);

// Whether the file has no byte, in itself or in a write-ahead log, though there is a copy of it.
bool IsCutToNothing(const std::string& path);

// Makes GoodCopyOf(path) a copy of what `database` holds as of one moment, synced to disk, or leaves it as it
// is. Unavailable, naming the copy.
absl::Status CopyDatabase(sqlite3* database, const std::string& path);

// A file to be tried: what GoodCopyOf(path) holds, under a name of its own. NotFound without a copy.
absl::StatusOr<std::string> DuplicateGoodCopy(const std::string& path);

// Renames the file, and SQLite's files that belong to it, to PATH.damaged-TIME, and `replacement` to PATH.
// Returns the damaged file's new name.
absl::StatusOr<std::string> ReplaceDamaged(const std::string& path, const std::string& replacement,
                                           absl::Time now);

// Holds back other processes that do the same with this file.
class RestoringLock {
 public:
  explicit RestoringLock(const std::string& path);
  ~RestoringLock();
  RestoringLock(const RestoringLock&) = delete;
  RestoringLock& operator=(const RestoringLock&) = delete;

 private:
  int fd_;
};

}  // namespace tandem::router
