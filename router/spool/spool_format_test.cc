#include "router/spool/spool_format.h"

#include <random>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;

SpoolKey SomeKey(uint8_t first = 1) {
  SpoolKey key{};
  for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<uint8_t>(first + i);
  return key;
}

SpoolHeader SomeHeader(const SpoolKey& key) {
  SpoolHeader header{.key_id = SpoolKeyId(key), .created = absl::FromUnixMillis(1234)};
  for (size_t i = 0; i < header.file_id.size(); ++i) header.file_id[i] = static_cast<uint8_t>(i * 17);
  return header;
}

SpoolRecord SomeRecord(const std::string& id = "r-1") {
  SpoolRecord record{.tenant = "acme",
                     .time = absl::FromUnixMillis(5678),
                     .request_id = id,
                     .model = "target",
                     .adapter = "lora",
                     .vocabulary_fingerprint = 0xfeedfacecafef00d,
                     .temperature = 0.75f,
                     .prompt = {1, 2, 4000000000u}};
  record.output.push_back({{7, -0.5f}, {{7, -0.5f}, {9, -2.0f}}});
  record.output.push_back({{8, -9.0f}, {}});
  return record;
}

// A file with those records.
std::string FileOf(const std::vector<SpoolRecord>& records, const SpoolKey& key) {
  const SpoolHeader header = SomeHeader(key);
  std::string file = EncodeSpoolHeader(header);
  for (const SpoolRecord& record : records) file += EncodeSpoolRecord(header, key, record).value();
  return file;
}

// Ids of the records that can be read.
std::vector<std::string> IdsIn(const std::string& file, const SpoolKey& key) {
  std::vector<std::string> ids;
  const auto header = ParseSpoolHeader(file, "file");
  if (!header.ok()) return ids;
  for (const SpoolEntry& entry : ScanSpoolFile(file).entries) {
    const auto record = DecodeSpoolRecord(file, *header, entry, key);
    if (record.ok()) ids.push_back(record->request_id);
  }
  return ids;
}

TEST(SpoolFormatTest, ChecksumsAreZlibs) {
  EXPECT_EQ(Crc32("123456789"), 0xcbf43926u);
  EXPECT_EQ(Crc32("6789", Crc32("12345")), 0xcbf43926u);
  EXPECT_EQ(Crc32(""), 0u);
}

TEST(SpoolFormatTest, DigestsAreWhatTheTrainerComputes) {
  // By deploy/learning/spool.py: key_id(bytes(range(1, 33))), request_digest("acme", "r-1").
  const auto key_id = SpoolKeyId(SomeKey());
  EXPECT_EQ(absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(key_id.data()), 8)),
            "638dc3e0591f7e7e");
  const SpoolDigest digest = SpoolRequestDigest("acme", "r-1");
  EXPECT_EQ(absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest.data()), 16)),
            "3fb63323f1990dc0330a7f32611e46a3");
  EXPECT_NE(SpoolRequestDigest("acm", "er-1"), digest);
}

TEST(SpoolFormatTest, WhatIsWrittenIsRead) {
  const SpoolKey key = SomeKey();
  const std::string file = FileOf({SomeRecord("a"), SomeRecord("b")}, key);
  const auto header = ParseSpoolHeader(file, "file");
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->key_id, SpoolKeyId(key));
  EXPECT_EQ(header->created, absl::FromUnixMillis(1234));
  const SpoolScan scan = ScanSpoolFile(file);
  ASSERT_EQ(scan.entries.size(), 2u);
  EXPECT_EQ(scan.end, file.size());
  EXPECT_EQ(scan.entries[0].head.request, SpoolRequestDigest("acme", "a"));
  const auto record = DecodeSpoolRecord(file, *header, scan.entries[1], key);
  ASSERT_TRUE(record.ok()) << record.status();
  const SpoolRecord wanted = SomeRecord("b");
  EXPECT_EQ(record->request_id, "b");
  EXPECT_EQ(record->model, wanted.model);
  EXPECT_EQ(record->adapter, wanted.adapter);
  EXPECT_EQ(record->time, wanted.time);
  EXPECT_EQ(record->vocabulary_fingerprint, wanted.vocabulary_fingerprint);
  EXPECT_EQ(record->temperature, wanted.temperature);
  EXPECT_EQ(record->prompt, wanted.prompt);
  ASSERT_EQ(record->output.size(), 2u);
  EXPECT_EQ(record->output[0].top[1].token, 9u);
  EXPECT_EQ(record->output[0].top[1].logprob, -2.0f);
  EXPECT_EQ(record->output[1].chosen.token, 8u);
  EXPECT_TRUE(record->output[1].top.empty());
}

TEST(SpoolFormatTest, NothingOfARequestIsInTheClear) {
  SpoolRecord record = SomeRecord();
  record.request_id = "the-request";
  record.model = "the-model";
  record.prompt.assign(100, 0x41424344);
  const std::string file = FileOf({record}, SomeKey());
  for (const char* text : {"the-request", "the-model", "acme", "DCBA", "lora"}) {
    EXPECT_EQ(file.find(text), std::string::npos) << text;
  }
  EXPECT_NE(FileOf({record}, SomeKey()), file) << "a nonce of its own each time";
}

TEST(SpoolFormatTest, AnotherKeyOrAChangedByteOpensNothing) {
  const SpoolKey key = SomeKey();
  const std::string file = FileOf({SomeRecord()}, key);
  EXPECT_TRUE(IdsIn(file, SomeKey(2)).empty());
  EXPECT_EQ(IdsIn(file, key).size(), 1u);
  // Also where the checksum has been mended.
  const SpoolEntry entry = ScanSpoolFile(file).entries.at(0);
  const auto header = ParseSpoolHeader(file, "file").value();
  for (size_t at = kSpoolHeaderBytes; at < file.size(); ++at) {
    std::string changed = file;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    if (at - kSpoolHeaderBytes < 32 || at - kSpoolHeaderBytes >= kSpoolRecordHeadBytes) {
      EXPECT_FALSE(DecodeSpoolRecord(changed, header, entry, key).ok()) << at;
    }
    EXPECT_TRUE(ScanSpoolFile(changed).entries.empty()) << at;
  }
  // And in another file.
  SpoolHeader other = header;
  other.file_id[3] ^= 1;
  EXPECT_FALSE(DecodeSpoolRecord(file, other, entry, key).ok());
}

TEST(SpoolFormatTest, ATornTailEndsTheScan) {
  const SpoolKey key = SomeKey();
  const std::string file = FileOf({SomeRecord("a"), SomeRecord("b")}, key);
  const size_t second = ScanSpoolFile(file).entries.at(1).offset;
  for (size_t size = kSpoolHeaderBytes; size < file.size(); ++size) {
    const SpoolScan scan = ScanSpoolFile(file.substr(0, size));
    EXPECT_EQ(scan.entries.size(), size >= second ? 1u : 0u) << size;
    EXPECT_EQ(scan.end, size >= second ? second : kSpoolHeaderBytes) << size;
  }
  for (size_t size = 0; size < kSpoolHeaderBytes; ++size) {
    const absl::Status status = ParseSpoolHeader(file.substr(0, size), "some/path").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("some/path"));
    EXPECT_TRUE(ScanSpoolFile(file.substr(0, size)).entries.empty());
  }
}

TEST(SpoolFormatTest, HostileFilesAreNoRecords) {
  const uint64_t seed = 7;
  std::mt19937_64 random(seed);
  const SpoolKey key = SomeKey();
  const std::string good = FileOf({SomeRecord("a"), SomeRecord("b"), SomeRecord("c")}, key);
  for (int trial = 0; trial < 2000; ++trial) {
    SCOPED_TRACE(absl::StrCat("seed ", seed, ", trial ", trial));
    std::string file = good;
    const int changes = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < changes; ++i) file[random() % file.size()] = static_cast<char>(random());
    if (random() % 4 == 0) file.resize(random() % file.size());
    const SpoolScan scan = ScanSpoolFile(file);
    EXPECT_LE(scan.end, file.size());
    (void)IdsIn(file, key);
  }
  // A size that would pass the end of memory.
  std::string huge = good.substr(0, kSpoolHeaderBytes);
  huge += std::string(kSpoolRecordHeadBytes, '\xff');
  EXPECT_TRUE(ScanSpoolFile(huge).entries.empty());
}

TEST(SpoolFormatTest, TombstonesNameTheRequest) {
  const SpoolDigest digest = SpoolRequestDigest("acme", "r-1");
  const std::string file = EncodeSpoolHeader({}) + EncodeSpoolTombstone(digest, absl::FromUnixMillis(99));
  const SpoolScan scan = ScanSpoolFile(file);
  ASSERT_EQ(scan.entries.size(), 1u);
  EXPECT_EQ(scan.entries[0].head.kind, SpoolRecordKind::kTombstone);
  EXPECT_EQ(scan.entries[0].head.request, digest);
  EXPECT_EQ(scan.entries[0].head.time, absl::FromUnixMillis(99));
}

TEST(SpoolFormatTest, WhatIsTooLongIsRefused) {
  SpoolRecord record = SomeRecord();
  record.prompt.assign(kMostSpoolBodyBytes / 4, 1);
  const SpoolKey key = SomeKey();
  EXPECT_EQ(EncodeSpoolRecord(SomeHeader(key), key, record).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tandem::router
