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
#include "common/config/secret.h"

namespace tandem::router {

// The file format of a spool. docs/inside/spool-format.md specifies it byte by byte, because the trainer
// reads it too. A file is a header followed by records; numbers are little endian. The content of a record
// is encrypted with the tenant's key. The fields for finding, expiring and deleting it are not.

// A request's prompt and output.
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

using SpoolKey = SecretArray<32>;
using SpoolDigest = std::array<uint8_t, 16>;
inline constexpr size_t kSpoolHeaderBytes = 64;
inline constexpr size_t kSpoolRecordHeadBytes = 48;
// Bound on the encrypted part, including its tag.
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

// The part of a record that is not encrypted.
struct SpoolRecordHead {
  SpoolRecordKind kind = SpoolRecordKind::kRequest;
  absl::Time time;  // To the millisecond.
  SpoolDigest request{};
  std::array<uint8_t, 12> nonce{};
};

// CRC-32 as zlib and PNG have it.
uint32_t Crc32(absl::string_view bytes, uint32_t before = 0);

std::array<uint8_t, 8> SpoolKeyId(const SpoolKey& key);
// The digest by which a request's records are found.
SpoolDigest SpoolRequestDigest(absl::string_view tenant, absl::string_view request_id);

std::string EncodeSpoolHeader(const SpoolHeader& header);
// InvalidArgument, beginning with `path`, if the bytes are no header.
absl::StatusOr<SpoolHeader> ParseSpoolHeader(absl::string_view bytes, absl::string_view path);

// Encodes a whole record for the file with this `header`, encrypted (AES-256-GCM) with a random nonce.
// Internal if OpenSSL fails, InvalidArgument if the record is too long.
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
  // The offset of the first bytes that are no record: the file's size, or less if its tail is torn or it is
  // damaged. Records after that offset cannot be found.
  size_t end = 0;
};
// Finds the records after the header. The work is bounded for any bytes, and there are no errors: the scan
// ends at the first bytes that are no record.
SpoolScan ScanSpoolFile(absl::string_view bytes);

// Decodes the record at `entry`, without the tenant's name. InvalidArgument if it was encrypted with another
// key, or changed.
absl::StatusOr<SpoolRecord> DecodeSpoolRecord(absl::string_view bytes, const SpoolHeader& header,
                                              const SpoolEntry& entry, const SpoolKey& key);

}  // namespace tandem::router
