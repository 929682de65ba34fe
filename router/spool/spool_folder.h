#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "router/spool/spool_format.h"

namespace tandem::router {

// The folders of a spool:
//
//   SPOOL/lock                     held by the process that writes
//   SPOOL/TENANT/0001-ID.segment   records, oldest first; only the newest is written to
//   SPOOL/TENANT/tombstones        what was deleted of it
//   KEYS/TENANT.key                the tenant's key: 64 hexadecimal digits
//
// One process writes; others may read at any time, because files are only appended to, or replaced by a
// rename. Removing files during writes loses their records and does no other harm. Not thread-safe. Does I/O,
// so use it on a thread that may block.
class SpoolFolder {
 public:
  struct Options {
    std::string folder;
    std::string keys;
    // Limits per tenant: segments older than max_age are removed and, beyond max_bytes, the oldest ones.
    absl::Duration max_age = absl::Hours(24 * 7);
    uint64_t max_bytes = uint64_t{256} << 20;
    uint64_t segment_bytes = uint64_t{8} << 20;  // When the next one is begun; at most max_bytes / 8.
    absl::Duration segment_age = absl::Hours(1);
    // For tests: stands in for write(2).
    std::function<int64_t(int file, const char* bytes, size_t size)> write;
  };

  // Creates the folders, accessible to this user only, and locks the first. FailedPrecondition if another
  // process holds the lock; errors name the path.
  static absl::StatusOr<std::unique_ptr<SpoolFolder>> Open(Options options);
  ~SpoolFolder();
  SpoolFolder(const SpoolFolder&) = delete;
  SpoolFolder& operator=(const SpoolFolder&) = delete;

  // Appends the record to its tenant's folder; creates the tenant's key if there is none. After an error, the
  // partial record is removed as far as possible, and the next record starts a new segment.
  absl::Status Append(const SpoolRecord& record, absl::Time now);

  struct Deleted {
    uint32_t files = 0;
    bool key = false;
  };
  // Deletes everything of the tenant, its key first, so that copies elsewhere cannot be read any more.
  absl::StatusOr<Deleted> DeleteTenant(absl::string_view tenant);
  // Deletes a request with all its outputs. Readers skip it as soon as this returns; CleanUp removes it from
  // the files.
  absl::Status DeleteRequest(absl::string_view tenant, absl::string_view request_id, absl::Time now);

  struct CleanedUp {
    uint32_t removed_files = 0;
    uint32_t rewritten_files = 0;
    uint32_t removed_records = 0;  // By tombstones.
    uint64_t bytes = 0;            // That are left, over all tenants.
  };
  // Enforces max_age and max_bytes, removes deleted records from segments, and drops tombstones once all
  // records that they may concern are too old anyway. Logs failures, and retries at the next call.
  CleanedUp CleanUp(absl::Time now);

  // The name of a tenant's folder and key; safe as a file name.
  static std::string NameOf(absl::string_view tenant);
  // The bound of GenerateRequest.num_outputs.
  static constexpr int kMostOutputs = 16;

 private:
  struct Segment {
    std::string path;
    SpoolHeader header;
    SpoolKey key{};
    int file = -1;
    uint64_t bytes = 0;
    absl::Time created;
  };

  explicit SpoolFolder(Options options) : options_(std::move(options)) {}

  std::string TenantFolder(absl::string_view tenant) const;
  std::string KeyPath(absl::string_view tenant) const;
  absl::StatusOr<SpoolKey> FindOrMakeKey(absl::string_view tenant) const;
  absl::StatusOr<Segment*> CurrentSegment(const std::string& tenant, absl::Time now);
  void CloseSegment(const std::string& tenant);
  void CloseSegmentAt(const std::string& path);
  absl::Status WriteAll(int file, absl::string_view bytes) const;
  // Replaces a file by writing a temporary one beside it and renaming that.
  absl::Status Replace(const std::string& path, absl::string_view bytes) const;
  void CleanUpTenant(const std::string& folder, absl::Time now, CleanedUp* result);

  const Options options_;
  int lock_ = -1;
  uint64_t next_number_ = 1;
  std::map<std::string, Segment> segments_;  // That are written to, by tenant.
};

// Reads the tombstones of a tenant's folder; empty if there are none. InvalidArgument if the file is invalid;
// then do not read the tenant's records.
absl::StatusOr<absl::flat_hash_set<std::string>> ReadSpoolTombstones(const std::string& folder);

// Reads a key file. NotFound if there is none; InvalidArgument if it holds anything but 64 hexadecimal
// digits.
absl::StatusOr<SpoolKey> ReadSpoolKey(const std::string& path);

}  // namespace tandem::router
