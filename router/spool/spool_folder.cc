#include "router/spool/spool_folder.h"

#include <fcntl.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/config/secret.h"

namespace tandem::router {
namespace {

namespace fs = std::filesystem;

constexpr char kSegmentEnd[] = ".segment";
constexpr char kTombstones[] = "tombstones";
constexpr size_t kMostPlainName = 200;  // Of the 255 bytes of a file's name.
constexpr size_t kMostFileBytes = size_t{1} << 32;
// Deleted requests that a tenant may have at a time.
constexpr size_t kMostTombstones = 1000000;

absl::Status FileError(absl::string_view what, const std::string& path, int error) {
  const std::string message = absl::StrCat(path, ": cannot ", what, ": ", std::strerror(error));
  if (error == ENOENT) return absl::NotFoundError(message);
  if (error == ENOSPC || error == EDQUOT) return absl::ResourceExhaustedError(message);
  return absl::UnavailableError(message);
}

absl::Status MakeFolder(const std::string& path) {
  std::error_code error;
  const bool is_new = fs::create_directories(path, error);
  if (error) return FileError("make the folder", path, error.value());
  if (is_new) fs::permissions(path, fs::perms::owner_all, error);
  if (error) return FileError("change the permissions of", path, error.value());
  return absl::OkStatus();
}

void SyncFolder(const std::string& path) {
  const int folder = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  fsync(folder);
  close(folder);
}

std::string DigestText(const SpoolDigest& digest) {
  return std::string(reinterpret_cast<const char*>(digest.data()), digest.size());
}

// The segments of a folder, oldest first.
std::vector<fs::path> SegmentsOf(const std::string& folder) {
  std::vector<fs::path> segments;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (absl::EndsWith(entry->path().filename().string(), kSegmentEnd)) segments.push_back(entry->path());
  }
  std::sort(segments.begin(), segments.end());
  return segments;
}

// When its last record was written, as far as the file system knows.
absl::Time AgeOf(const fs::path& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return absl::InfiniteFuture();
  return absl::TimeFromTimespec(status.st_mtim);
}

}  // namespace

absl::StatusOr<std::unique_ptr<SpoolFolder>> SpoolFolder::Open(Options options) {
  options.segment_bytes = std::max<uint64_t>(std::min(options.segment_bytes, options.max_bytes / 8), 1);
  std::unique_ptr<SpoolFolder> spool(new SpoolFolder(std::move(options)));
  const Options& own = spool->options_;
  TANDEM_RETURN_IF_ERROR(MakeFolder(own.folder));
  TANDEM_RETURN_IF_ERROR(MakeFolder(own.keys));
  std::error_code error;
  const fs::path folder = fs::canonical(own.folder, error);
  const fs::path keys = fs::canonical(own.keys, error);
  if (!error && std::mismatch(folder.begin(), folder.end(), keys.begin(), keys.end()).first == folder.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        own.keys, ": the folder of keys is the spool's folder or below it, expected a separate folder"));
  }
  const std::string path = absl::StrCat(own.folder, "/lock");
  spool->lock_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (spool->lock_ < 0) return FileError("open", path, errno);
  if (flock(spool->lock_, LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        own.folder, ": another router writes to this spool; expected a folder of its own for each router"));
  }
  // Segments of earlier processes stay unchanged, because one must not append after a torn tail.
  for (fs::directory_iterator tenant(own.folder, error), end; !error && tenant != end;
       tenant.increment(error)) {
    for (const fs::path& segment : SegmentsOf(tenant->path())) {
      const std::string name = segment.filename().string();
      uint64_t number = 0;
      if (absl::SimpleAtoi(name.substr(0, name.find('-')), &number)) {
        spool->next_number_ = std::max(spool->next_number_, number + 1);
      }
    }
  }
  return spool;
}

SpoolFolder::~SpoolFolder() {
  while (!segments_.empty()) CloseSegment(segments_.begin()->first);
  if (lock_ >= 0) close(lock_);
}

std::string SpoolFolder::NameOf(absl::string_view tenant) {
  std::string name;
  for (const char c : tenant) {
    if (absl::ascii_isalnum(c) || c == '-' || c == '_') {
      name.push_back(c);
    } else {
      absl::StrAppendFormat(&name, "%%%02x", static_cast<uint8_t>(c));
    }
  }
  if (!name.empty() && name.size() <= kMostPlainName) return name;
  std::array<uint8_t, SHA256_DIGEST_LENGTH> digest{};
  SHA256(reinterpret_cast<const unsigned char*>(tenant.data()), tenant.size(), digest.data());
  return absl::StrCat("%%", absl::BytesToHexString(absl::string_view(
                                reinterpret_cast<const char*>(digest.data()), digest.size())));
}

std::string SpoolFolder::TenantFolder(absl::string_view tenant) const {
  return absl::StrCat(options_.folder, "/", NameOf(tenant));
}

std::string SpoolFolder::KeyPath(absl::string_view tenant) const {
  return absl::StrCat(options_.keys, "/", NameOf(tenant), ".key");
}

absl::StatusOr<SpoolKey> ReadSpoolKey(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(std::string text, ReadFile(path, 256));
  const absl::string_view digits = absl::StripAsciiWhitespace(text);
  SpoolKey key{};
  const bool is_hex =
      digits.size() == 2 * key.size() &&
      std::all_of(digits.begin(), digits.end(), [](char c) { return absl::ascii_isxdigit(c); });
  if (!is_hex) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": not a key of a spool, expected ", 2 * key.size(), " hexadecimal digits"));
  }
  std::string bytes = absl::HexStringToBytes(digits);
  std::copy(bytes.begin(), bytes.end(), key.begin());
  Cleanse(bytes);
  Cleanse(text);
  return key;
}

absl::StatusOr<SpoolKey> SpoolFolder::FindOrMakeKey(absl::string_view tenant) const {
  const std::string path = KeyPath(tenant);
  absl::StatusOr<SpoolKey> found = ReadSpoolKey(path);
  if (!absl::IsNotFound(found.status())) return found;
  SpoolKey key{};
  if (RAND_bytes(key.data(), static_cast<int>(key.size())) != 1) {
    return absl::InternalError("OpenSSL has no random numbers");
  }
  TANDEM_RETURN_IF_ERROR(MakeFolder(options_.keys));
  // Under its name once it is whole; of several routers that make one, the first one's counts.
  const std::string draft = absl::StrCat(path, ".", getpid(), ".new");
  unlink(draft.c_str());
  const int file = open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return FileError("make", draft, errno);
  std::string digits = absl::BytesToHexString(key.Reveal());
  absl::Status status = WriteAll(file, digits);
  if (status.ok()) status = WriteAll(file, "\n");
  Cleanse(digits);
  if (status.ok() && fsync(file) != 0) status = FileError("write", draft, errno);
  close(file);
  if (status.ok() && link(draft.c_str(), path.c_str()) != 0 && errno != EEXIST) {
    status = FileError("make", path, errno);
  }
  unlink(draft.c_str());
  TANDEM_RETURN_IF_ERROR(status);
  SyncFolder(options_.keys);
  return ReadSpoolKey(path);
}

absl::Status SpoolFolder::WriteAll(int file, absl::string_view bytes) const {
  while (!bytes.empty()) {
    const int64_t written = options_.write ? options_.write(file, bytes.data(), bytes.size())
                                           : ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return FileError("write", "a file of the spool", written < 0 ? errno : ENOSPC);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status SpoolFolder::Replace(const std::string& path, absl::string_view bytes) const {
  const std::string draft = absl::StrCat(path, ".new");
  const int file = open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) return FileError("make", draft, errno);
  absl::Status status = WriteAll(file, bytes);
  if (status.ok() && fsync(file) != 0) status = FileError("write", draft, errno);
  close(file);
  if (status.ok() && rename(draft.c_str(), path.c_str()) != 0) status = FileError("replace", path, errno);
  if (!status.ok()) unlink(draft.c_str());
  if (status.ok()) SyncFolder(fs::path(path).parent_path().string());
  return status;
}

void SpoolFolder::CloseSegment(const std::string& tenant) {
  const auto found = segments_.find(tenant);
  if (found == segments_.end()) return;
  fsync(found->second.file);
  close(found->second.file);
  segments_.erase(found);
}

void SpoolFolder::CloseSegmentAt(const std::string& path) {
  for (const auto& [tenant, segment] : segments_) {
    if (segment.path == path) return CloseSegment(std::string(tenant));
  }
}

absl::StatusOr<SpoolFolder::Segment*> SpoolFolder::CurrentSegment(const std::string& tenant, absl::Time now) {
  if (const auto found = segments_.find(tenant); found != segments_.end()) {
    const Segment& segment = found->second;
    // Written to a file that has no name any more, records would be lost in silence.
    struct stat by_name {};
    struct stat by_file {};
    const bool is_there = stat(segment.path.c_str(), &by_name) == 0 && fstat(segment.file, &by_file) == 0 &&
                          by_name.st_ino == by_file.st_ino && by_name.st_dev == by_file.st_dev;
    const absl::StatusOr<SpoolKey> key = ReadSpoolKey(KeyPath(tenant));
    const bool same_key = key.ok() && *key == segment.key;
    if (is_there && same_key && segment.bytes < options_.segment_bytes &&
        now - segment.created < options_.segment_age && now >= segment.created) {
      return &found->second;
    }
    CloseSegment(tenant);
  }
  Segment segment{.created = now};
  TANDEM_ASSIGN_OR_RETURN(segment.key, FindOrMakeKey(tenant));
  segment.header.key_id = SpoolKeyId(segment.key);
  segment.header.created = now;
  if (RAND_bytes(segment.header.file_id.data(), static_cast<int>(segment.header.file_id.size())) != 1) {
    return absl::InternalError("OpenSSL has no random numbers");
  }
  const std::string folder = TenantFolder(tenant);
  TANDEM_RETURN_IF_ERROR(MakeFolder(folder));
  const std::string id = absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(segment.header.file_id.data()), 4));
  segment.path = absl::StrFormat("%s/%012d-%s%s", folder, next_number_++, id, kSegmentEnd);
  segment.file = open(segment.path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600);
  if (segment.file < 0) return FileError("make", segment.path, errno);
  const std::string header = EncodeSpoolHeader(segment.header);
  if (const absl::Status status = WriteAll(segment.file, header); !status.ok()) {
    close(segment.file);
    unlink(segment.path.c_str());
    return status;
  }
  segment.bytes = header.size();
  return &(segments_[tenant] = segment);
}

absl::Status SpoolFolder::Append(const SpoolRecord& record, absl::Time now) {
  TANDEM_ASSIGN_OR_RETURN(Segment* const segment, CurrentSegment(record.tenant, now));
  TANDEM_ASSIGN_OR_RETURN(const std::string bytes, EncodeSpoolRecord(segment->header, segment->key, record));
  const absl::Status status = WriteAll(segment->file, bytes);
  if (!status.ok()) {
    // Best without half a record; readers can live with one.
    if (ftruncate(segment->file, static_cast<off_t>(segment->bytes)) != 0) {
      LogWarning("a segment of the spool ends with an incomplete record", {{"path", segment->path}});
    }
    CloseSegment(record.tenant);
    return status;
  }
  segment->bytes += bytes.size();
  return absl::OkStatus();
}

absl::StatusOr<SpoolFolder::Deleted> SpoolFolder::DeleteTenant(absl::string_view tenant) {
  Deleted deleted;
  CloseSegment(std::string(tenant));
  const std::string key = KeyPath(tenant);
  if (unlink(key.c_str()) == 0) {
    deleted.key = true;
    SyncFolder(options_.keys);
  } else if (errno != ENOENT) {
    return FileError("remove", key, errno);
  }
  std::error_code error;
  const uintmax_t removed = fs::remove_all(TenantFolder(tenant), error);
  if (error) return FileError("remove", TenantFolder(tenant), error.value());
  // The folder counts too.
  if (removed != static_cast<uintmax_t>(-1) && removed > 0)
    deleted.files = static_cast<uint32_t>(removed - 1);
  SyncFolder(options_.folder);
  return deleted;
}

namespace {

// The tombstones' file; empty if there is none.
absl::StatusOr<std::string> TombstoneBytes(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kTombstones);
  absl::StatusOr<std::string> bytes = ReadFile(path, kMostFileBytes);
  if (absl::IsNotFound(bytes.status())) return std::string();
  if (!bytes.ok()) return bytes.status();
  TANDEM_RETURN_IF_ERROR(ParseSpoolHeader(*bytes, path).status());
  const SpoolScan scan = ScanSpoolFile(*bytes);
  if (scan.end != bytes->size()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": byte ", scan.end, ": expected a tombstone"));
  }
  return bytes;
}

}  // namespace

absl::StatusOr<absl::flat_hash_set<std::string>> ReadSpoolTombstones(const std::string& folder) {
  TANDEM_ASSIGN_OR_RETURN(const std::string bytes, TombstoneBytes(folder));
  absl::flat_hash_set<std::string> deleted;
  for (const SpoolEntry& entry : ScanSpoolFile(bytes).entries) deleted.insert(DigestText(entry.head.request));
  return deleted;
}

absl::Status SpoolFolder::DeleteRequest(absl::string_view tenant, absl::string_view request_id,
                                        absl::Time now) {
  const std::string folder = TenantFolder(tenant);
  TANDEM_RETURN_IF_ERROR(MakeFolder(folder));
  TANDEM_ASSIGN_OR_RETURN(std::string bytes, TombstoneBytes(folder));
  if (bytes.empty()) bytes = EncodeSpoolHeader({.created = now});
  if (bytes.size() / kSpoolRecordHeadBytes > kMostTombstones) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the tenant has ", kMostTombstones, " deleted requests, which is the limit"));
  }
  // Further outputs of a request are requests of their own to a router.
  for (int output = 0; output < kMostOutputs; ++output) {
    const std::string id = output == 0 ? std::string(request_id) : absl::StrCat(request_id, "-", output);
    absl::StrAppend(&bytes, EncodeSpoolTombstone(SpoolRequestDigest(tenant, id), now));
  }
  return Replace(absl::StrCat(folder, "/", kTombstones), bytes);
}

void SpoolFolder::CleanUpTenant(const std::string& folder, absl::Time now, CleanedUp* result) {
  std::string written;
  for (const auto& [tenant, segment] : segments_) {
    if (TenantFolder(tenant) == folder) written = segment.path;
  }
  const absl::StatusOr<absl::flat_hash_set<std::string>> deleted = ReadSpoolTombstones(folder);
  if (!deleted.ok()) {
    LogError("the tombstones of a spool cannot be read; its records stay, and readers skip them",
             {{"error", std::string(deleted.status().message())}});
  }
  uint64_t bytes = 0;
  std::vector<std::pair<fs::path, uint64_t>> kept;
  const auto remove = [&](const fs::path& path) {
    if (unlink(path.c_str()) == 0) ++result->removed_files;
  };
  for (const fs::path& path : SegmentsOf(folder)) {
    if (path != written && now - AgeOf(path) > options_.max_age) {
      remove(path);
      continue;
    }
    std::error_code error;
    uint64_t size = fs::file_size(path, error);
    if (error) continue;
    if (deleted.ok() && !deleted->empty()) {
      const absl::StatusOr<std::string> content = ReadFile(path.string(), kMostFileBytes);
      if (!content.ok()) continue;
      std::string rest = content->substr(0, kSpoolHeaderBytes);
      uint32_t num_deleted = 0;
      for (const SpoolEntry& entry : ScanSpoolFile(*content).entries) {
        if (deleted->contains(DigestText(entry.head.request))) {
          ++num_deleted;
        } else {
          rest.append(*content, entry.offset, entry.size);
        }
      }
      if (num_deleted > 0) {
        // One that is written to is closed first; a segment keeps its age.
        CloseSegmentAt(path.string());
        const absl::Time age = AgeOf(path);
        if (rest.size() <= kSpoolHeaderBytes) {
          remove(path);
          result->removed_records += num_deleted;
          continue;
        }
        if (const absl::Status status = Replace(path.string(), rest); !status.ok()) {
          LogWarning("deleted records could not be removed from a segment of the spool yet",
                     {{"error", std::string(status.message())}});
        } else {
          const timespec times[2] = {absl::ToTimespec(age), absl::ToTimespec(age)};
          utimensat(AT_FDCWD, path.c_str(), times, 0);
          result->removed_records += num_deleted;
          ++result->rewritten_files;
          size = rest.size();
        }
      }
    }
    bytes += size;
    kept.emplace_back(path, size);
  }
  for (const auto& [path, size] : kept) {
    if (bytes <= options_.max_bytes) break;
    CloseSegmentAt(path.string());
    remove(path);
    bytes -= size;
  }
  result->bytes += bytes;
  if (!deleted.ok() || deleted->empty()) return;
  // Tombstones that are older than any record may be.
  const absl::StatusOr<std::string> content = TombstoneBytes(folder);
  if (!content.ok()) return;
  std::string rest = content->substr(0, kSpoolHeaderBytes);
  for (const SpoolEntry& entry : ScanSpoolFile(*content).entries) {
    if (now - entry.head.time <= options_.max_age + options_.segment_age) {
      rest.append(*content, entry.offset, entry.size);
    }
  }
  const std::string path = absl::StrCat(folder, "/", kTombstones);
  if (rest.size() == content->size()) return;
  if (rest.size() <= kSpoolHeaderBytes) {
    remove(path);
  } else if (const absl::Status status = Replace(path, rest); !status.ok()) {
    LogWarning("tombstones of a spool could not be removed yet", {{"error", std::string(status.message())}});
  }
}

SpoolFolder::CleanedUp SpoolFolder::CleanUp(absl::Time now) {
  CleanedUp result;
  std::vector<std::string> old;
  for (const auto& [tenant, segment] : segments_) {
    if (now - segment.created >= options_.segment_age) old.push_back(tenant);
  }
  for (const std::string& tenant : old) CloseSegment(tenant);
  std::error_code error;
  std::vector<std::string> folders;
  for (fs::directory_iterator entry(options_.folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->is_directory(error)) folders.push_back(entry->path().string());
  }
  for (const std::string& folder : folders) CleanUpTenant(folder, now, &result);
  return result;
}

}  // namespace tandem::router
