#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

struct sqlite3;

namespace tandem::router {

// The path of the last good copy of a state file: PATH.good, in the same folder.
std::string GoodCopyOf(const std::string& path);

// Whether the file and its write-ahead log are empty although a good copy exists.
bool IsCutToNothing(const std::string& path);

// Makes GoodCopyOf(path) a consistent copy of `database`, synced to disk. On an error the old copy stays:
// Unavailable, naming the copy.
absl::Status CopyDatabase(sqlite3* database, const std::string& path);

// Duplicates GoodCopyOf(path) under a new name, so that it can be checked before it is used. NotFound without
// a copy.
absl::StatusOr<std::string> DuplicateGoodCopy(const std::string& path);

// Renames the file, and SQLite's files that belong to it, to PATH.damaged-TIME, and `replacement` to PATH.
// Returns the damaged file's new name.
absl::StatusOr<std::string> ReplaceDamaged(const std::string& path, const std::string& replacement,
                                           absl::Time now);

// A lock that keeps other processes from restoring the same file at the same time.
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
