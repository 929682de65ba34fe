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
// Written by one process; others may read at any time: files are only appended to, or replaced by a rename.
// Whoever removes files while this writes costs records and nothing else. Not thread-safe, and does I/O:
// belongs to a thread that may wait.
class SpoolFolder {
 public:
  struct Options {
    std::string folder;
    std::string keys;
    // Of each tenant: older segments and, beyond so many bytes, the oldest ones are removed.
    absl::Duration max_age = absl::Hours(24 * 7);
    uint64_t max_bytes = uint64_t{256} << 20;
    uint64_t segment_bytes = uint64_t{8} << 20;  // When the next one is begun; at most max_bytes / 8.
    absl::Duration segment_age = absl::Hours(1);
    // For tests: stands in for write(2).
    std::function<int64_t(int file, const char* bytes, size_t size)> write;
  };

  // Makes the folders, for this user alone, and locks the first. FailedPrecondition where another process has
  // it; errors name the path.
  static absl::StatusOr<std::unique_ptr<SpoolFolder>> Open(Options options);
  ~SpoolFolder();
  SpoolFolder(const SpoolFolder&) = delete;
  SpoolFolder& operator=(const SpoolFolder&) = delete;

  // Appends the record to its tenant's folder, whose key is made if there is none. After an error nothing of
  // it is left, as far as that can be, and the next record begins a new segment.
  absl::Status Append(const SpoolRecord& record, absl::Time now);

  struct Deleted {
    uint32_t files = 0;
    bool key = false;
  };
  // Everything of the tenant, its key first: what remains of copies cannot be read any more.
  absl::StatusOr<Deleted> DeleteTenant(absl::string_view tenant);
  // Readers pass over the request from the moment this returns; CleanUp takes it out of the files. Of a
  // request with several outputs, all.
  absl::Status DeleteRequest(absl::string_view tenant, absl::string_view request_id, absl::Time now);

  struct CleanedUp {
    uint32_t removed_files = 0;
    uint32_t rewritten_files = 0;
    uint32_t removed_records = 0;  // By tombstones.
    uint64_t bytes = 0;            // That are left, over all tenants.
  };
  // Keeps to max_age and max_bytes, removes deleted records from segments, and forgets tombstones once all
  // that they are about is too old anyway. What cannot be done is logged and tried the next time.
  CleanedUp CleanUp(absl::Time now);

  // What a tenant's folder and key are called; safe as a file's name.
  static std::string NameOf(absl::string_view tenant);
  // As GenerateRequest.num_outputs has it.
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
  // By a file beside it, which is renamed.
  absl::Status Replace(const std::string& path, absl::string_view bytes) const;
  void CleanUpTenant(const std::string& folder, absl::Time now, CleanedUp* result);

  const Options options_;
  int lock_ = -1;
  uint64_t next_number_ = 1;
  std::map<std::string, Segment> segments_;  // That are written to, by tenant.
};

// What tombstones of a tenant's folder say; empty if there are none. InvalidArgument for a file that is none
// of them: its tenant's records are then better left alone.
absl::StatusOr<absl::flat_hash_set<std::string>> ReadSpoolTombstones(const std::string& folder);

// A key's file. NotFound if there is none; InvalidArgument if it holds anything but 64 hexadecimal digits.
absl::StatusOr<SpoolKey> ReadSpoolKey(const std::string& path);

}  // namespace tandem::router
