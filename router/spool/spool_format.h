#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tandem::router {

// The files of a spool, byte by byte as docs/operate/learning.md has them, since the trainer reads them too.
// A file is a header and records, one after the other; numbers are little endian. What a record says is
// encrypted with the tenant's key, and what finds, ages and deletes it is not.

// What a request said and got.
struct SpoolRecord {
  struct Choice {
    uint32_t token = 0;
    float logprob = 0.0f;
  };
  struct OutputToken {
    Choice chosen;
    std::vector<Choice> top;  // The most likely ones, most likely first.
  };
  std::string tenant;  // Not in the record: whose folder it is in.
  absl::Time time;     // When it ended.
  std::string request_id;
  std::string model;
  std::string adapter;  // Empty: none.
  uint64_t vocabulary_fingerprint = 0;
  float temperature = 0.0f;
  std::vector<uint32_t> prompt;
  std::vector<OutputToken> output;
};

using SpoolKey = std::array<uint8_t, 32>;
using SpoolDigest = std::array<uint8_t, 16>;
inline constexpr size_t kSpoolHeaderBytes = 64;
inline constexpr size_t kSpoolRecordHeadBytes = 48;
// Of what is encrypted, its tag included.
inline constexpr size_t kMostSpoolBodyBytes = size_t{16} << 20;

struct SpoolHeader {
  std::array<uint8_t, 16> file_id{};  // Random.
  std::array<uint8_t, 8> key_id{};    // Of the key that the records are encrypted with.
  absl::Time created;
};

enum class SpoolRecordKind : uint8_t {
  kRequest = 1,
  kTombstone = 2,  // The request is deleted; without a body.
};

// What is not encrypted of a record.
struct SpoolRecordHead {
  SpoolRecordKind kind = SpoolRecordKind::kRequest;
  absl::Time time;  // To the millisecond.
  SpoolDigest request{};
  std::array<uint8_t, 12> nonce{};
};

// CRC-32 as zlib and PNG have it.
uint32_t Crc32(absl::string_view bytes, uint32_t before = 0);

std::array<uint8_t, 8> SpoolKeyId(const SpoolKey& key);
// By which a request's records are found.
SpoolDigest SpoolRequestDigest(absl::string_view tenant, absl::string_view request_id);

std::string EncodeSpoolHeader(const SpoolHeader& header);
// InvalidArgument for what is none, with `path` in front.
absl::StatusOr<SpoolHeader> ParseSpoolHeader(absl::string_view bytes, absl::string_view path);

// A whole record of the file that `header` begins, encrypted (AES-256-GCM) with a random nonce. Internal if
// OpenSSL fails, InvalidArgument for a record that is too long.
absl::StatusOr<std::string> EncodeSpoolRecord(const SpoolHeader& header, const SpoolKey& key,
                                              const SpoolRecord& record);
std::string EncodeSpoolTombstone(const SpoolDigest& request, absl::Time time);

// A record's place in a file.
struct SpoolEntry {
  SpoolRecordHead head;
  size_t offset = 0;  // Of its head.
  size_t size = 0;    // Head and body.
};
struct SpoolScan {
  std::vector<SpoolEntry> entries;
  // Where the first bytes stand that are no record: the file's size, or less if its tail is torn or it is
  // damaged, and nothing behind that can be found.
  size_t end = 0;
};
// Of the records behind the header. Whatever the bytes are, bounded work and no error: what is no record ends
// the scan.
SpoolScan ScanSpoolFile(absl::string_view bytes);

// What the record at `entry` says, but for the tenant. InvalidArgument if it is not of this key, or was
// changed.
absl::StatusOr<SpoolRecord> DecodeSpoolRecord(absl::string_view bytes, const SpoolHeader& header,
                                              const SpoolEntry& entry, const SpoolKey& key);

}  // namespace tandem::router
