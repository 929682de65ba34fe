#include "router/state/sqlite_copies.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"

namespace tandem::router {
namespace {

// With its write-ahead log.
constexpr const char* kPartsOfDatabase[] = {"", "-wal", "-shm", "-journal"};

absl::Status Failed(const std::string& path, const std::error_code& error) {
  return absl::UnavailableError(absl::StrCat(path, ": ", error.message()));
}

// Of this process, for a file that is not whole yet.
std::string Unfinished(const std::string& path) {
  return absl::StrCat(path, ".new-", ::getpid());
}

absl::Status CopyPages(sqlite3* from, const std::string& path) {
  sqlite3* to = nullptr;
  int code = sqlite3_open_v2(path.c_str(), &to,
                             SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  if (code == SQLITE_OK) {
    sqlite3_backup* const backup = sqlite3_backup_init(to, "main", from, "main");
    if (backup != nullptr) sqlite3_backup_step(backup, -1);
    code = backup == nullptr ? sqlite3_errcode(to) : sqlite3_backup_finish(backup);
  }
  absl::Status status;
  if (code != SQLITE_OK) status = absl::UnavailableError(absl::StrCat(path, ": ", sqlite3_errstr(code)));
  sqlite3_close(to);
  return status;
}

absl::Status Rename(const std::string& from, const std::string& to) {
  std::error_code error;
  std::filesystem::rename(from, to, error);
  return error ? Failed(to, error) : SyncFolderOf(to);
}

}  // namespace

std::string GoodCopyOf(const std::string& path) {
  return absl::StrCat(path, ".good");
}

bool IsCutToNothing(const std::string& path) {
  std::error_code error;
  return std::filesystem::file_size(path, error) == 0 && !error &&
         !std::filesystem::exists(path + "-wal", error) && std::filesystem::exists(GoodCopyOf(path), error);
}

absl::Status CopyDatabase(sqlite3* database, const std::string& path) {
  const std::string copy = GoodCopyOf(path);
  const std::string unfinished = Unfinished(copy);
  std::error_code ignored;
  std::filesystem::remove(unfinished, ignored);  // Of a process with the same number that was killed.
  absl::Status status = CopyPages(database, unfinished);
  if (status.ok()) status = Rename(unfinished, copy);
  if (!status.ok()) std::filesystem::remove(unfinished, ignored);
  return status;
}

absl::StatusOr<std::string> DuplicateGoodCopy(const std::string& path) {
  const std::string copy = GoodCopyOf(path);
  std::error_code error;
  if (!std::filesystem::exists(copy, error))
    return absl::NotFoundError(absl::StrCat(copy, ": does not exist"));
  const std::string duplicate = Unfinished(path);
  std::filesystem::copy_file(copy, duplicate, std::filesystem::copy_options::overwrite_existing, error);
  if (error) return Failed(copy, error);
  return duplicate;
}

absl::StatusOr<std::string> ReplaceDamaged(const std::string& path, const std::string& replacement,
                                           absl::Time now) {
  const std::string kept =
      absl::StrCat(path, ".damaged-", absl::FormatTime("%Y%m%dT%H%M%E3SZ", now, absl::UTCTimeZone()));
  for (const char* const part : kPartsOfDatabase) {
    std::error_code error;
    std::filesystem::rename(path + part, kept + part, error);
    if (error && error != std::errc::no_such_file_or_directory) return Failed(path + part, error);
  }
  TANDEM_RETURN_IF_ERROR(Rename(replacement, path));
  return kept;
}

RestoringLock::RestoringLock(const std::string& path)
    : fd_(::open(absl::StrCat(path, ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
  if (fd_ >= 0) ::flock(fd_, LOCK_EX);
}

RestoringLock::~RestoringLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace tandem::router
