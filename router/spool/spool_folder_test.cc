#include "router/spool/spool_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/file.h"
#include "common/base/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::router {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SpoolFolderTest : public ::testing::Test {
 protected:
  SpoolFolderTest() {
    options_.folder = temporary_.PathOf("spool");
    options_.keys = temporary_.PathOf("keys");
  }
  void Open() {
    spool_.reset();
    auto opened = SpoolFolder::Open(options_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    spool_ = *std::move(opened);
  }
  absl::Status Append(const std::string& id, const std::string& tenant = "acme", size_t prompt = 10) {
    SpoolRecord record{.tenant = tenant, .time = now_, .request_id = id, .model = "m"};
    record.prompt.assign(prompt, 7);
    record.output.push_back({{1, -0.1f}, {{1, -0.1f}}});
    return spool_->Append(record, now_);
  }
  std::vector<fs::path> Segments(const std::string& tenant = "acme") const {
    std::vector<fs::path> paths;
    std::error_code error;
    for (const auto& entry :
         fs::directory_iterator(absl::StrCat(options_.folder, "/", SpoolFolder::NameOf(tenant)), error)) {
      if (absl::EndsWith(entry.path().string(), ".segment")) paths.push_back(entry.path());
    }
    std::sort(paths.begin(), paths.end());
    return paths;
  }
  // What readers find, tombstones heeded.
  std::vector<std::string> Ids(const std::string& tenant = "acme") const {
    std::vector<std::string> ids;
    const std::string name = SpoolFolder::NameOf(tenant);
    const auto key = ReadSpoolKey(absl::StrCat(options_.keys, "/", name, ".key"));
    if (!key.ok()) return ids;
    const auto deleted = ReadSpoolTombstones(absl::StrCat(options_.folder, "/", name)).value();
    for (const fs::path& path : Segments(tenant)) {
      const std::string file = ReadFile(path, 64 << 20).value();
      const auto header = ParseSpoolHeader(file, path.string());
      if (!header.ok()) continue;
      for (const SpoolEntry& entry : ScanSpoolFile(file).entries) {
        const auto& request = entry.head.request;
        if (deleted.contains(std::string(request.begin(), request.end()))) continue;
        const auto record = DecodeSpoolRecord(file, *header, entry, *key);
        if (record.ok()) ids.push_back(record->request_id);
      }
    }
    return ids;
  }

  const TemporaryFolder temporary_;
  SpoolFolder::Options options_;
  std::unique_ptr<SpoolFolder> spool_;
  absl::Time now_ = absl::Now();
};

TEST_F(SpoolFolderTest, KeepsTenantsApart) {
  Open();
  ASSERT_TRUE(Append("a").ok());
  ASSERT_TRUE(Append("b", "../x/y").ok());
  ASSERT_TRUE(Append("c").ok());
  EXPECT_THAT(Ids(), ElementsAre("a", "c"));
  EXPECT_THAT(Ids("../x/y"), ElementsAre("b"));
  EXPECT_EQ(SpoolFolder::NameOf("../x/y"), "%2e%2e%2fx%2fy");
  EXPECT_LE(SpoolFolder::NameOf(std::string(128, '.')).size(), 100u);
  struct stat status {};
  ASSERT_EQ(stat(absl::StrCat(options_.keys, "/acme.key").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  ASSERT_EQ(stat(Segments()[0].c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(SpoolFolderTest, ARestartBeginsASegmentOfItsOwn) {
  Open();
  ASSERT_TRUE(Append("a").ok());
  Open();
  ASSERT_TRUE(Append("b").ok());
  EXPECT_EQ(Segments().size(), 2u);
  EXPECT_THAT(Ids(), ElementsAre("a", "b")) << "in this order, and with the same key";
  const absl::Status second = SpoolFolder::Open(options_).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.message()), HasSubstr("another router"));
}

TEST_F(SpoolFolderTest, KeysBelowTheSpoolAreRefused) {
  options_.keys = options_.folder + "/keys";
  EXPECT_EQ(SpoolFolder::Open(options_).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SpoolFolderTest, SegmentsAreBounded) {
  options_.max_bytes = 8 * 4000;
  Open();
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(Append(absl::StrCat(i), "acme", 500).ok());
  EXPECT_EQ(Segments().size(), 4u) << "each ends beyond 4,000 bytes";
  options_.segment_age = absl::Minutes(5);
  Open();
  ASSERT_TRUE(Append("x").ok());
  now_ += absl::Minutes(6);
  ASSERT_TRUE(Append("y").ok());
  EXPECT_EQ(Segments().size(), 6u);
}

TEST_F(SpoolFolderTest, TheOldestGoFirst) {
  options_.max_bytes = 8 * 3000;
  Open();
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(Append(absl::StrCat(i), "acme", 500).ok());
  const SpoolFolder::CleanedUp done = spool_->CleanUp(now_);
  EXPECT_GT(done.removed_files, 0u);
  EXPECT_LE(done.bytes, options_.max_bytes);
  const std::vector<std::string> ids = Ids();
  EXPECT_EQ(ids.back(), "39");
  EXPECT_GT(ids.size(), 5u);
  EXPECT_EQ(ids.size(), 40u - static_cast<size_t>(std::stoi(ids.front()))) << "without gaps";

  now_ = absl::Now() + options_.max_age + absl::Hours(2);
  EXPECT_EQ(spool_->CleanUp(now_).bytes, 0u);
  EXPECT_THAT(Segments(), IsEmpty());
  ASSERT_TRUE(Append("new").ok()) << "the segment that was written to is gone too";
  EXPECT_THAT(Ids(), ElementsAre("new"));
}

TEST_F(SpoolFolderTest, DeletingATenantTakesItsKey) {
  Open();
  ASSERT_TRUE(Append("a").ok());
  ASSERT_TRUE(Append("b", "zeta").ok());
  const std::string copy = ReadFile(Segments()[0], 1 << 20).value();
  const auto deleted = spool_->DeleteTenant("acme");
  ASSERT_TRUE(deleted.ok()) << deleted.status();
  EXPECT_TRUE(deleted->key);
  EXPECT_EQ(deleted->files, 1u);
  EXPECT_FALSE(fs::exists(absl::StrCat(options_.folder, "/acme")));
  EXPECT_FALSE(fs::exists(absl::StrCat(options_.keys, "/acme.key")));
  EXPECT_THAT(Ids("zeta"), ElementsAre("b"));
  const auto again = spool_->DeleteTenant("acme");
  ASSERT_TRUE(again.ok());
  EXPECT_FALSE(again->key);
  EXPECT_EQ(again->files, 0u);
  // What comes later has a key of its own, with which a copy cannot be read.
  ASSERT_TRUE(Append("c").ok());
  EXPECT_THAT(Ids(), ElementsAre("c"));
  temporary_.Write("spool/acme/000000000000-copy.segment", copy);
  EXPECT_THAT(Ids(), ElementsAre("c"));
}

TEST_F(SpoolFolderTest, DeletedRequestsAreNotReadAndLeaveTheFiles) {
  Open();
  for (const char* id : {"a", "b", "b-1", "b-15", "b-16", "c"}) ASSERT_TRUE(Append(id).ok());
  ASSERT_TRUE(spool_->DeleteRequest("acme", "b", now_).ok());
  ASSERT_TRUE(spool_->DeleteRequest("acme", "nobody", now_).ok());
  EXPECT_THAT(Ids(), ElementsAre("a", "b-16", "c")) << "its other outputs too";
  const auto size = fs::file_size(Segments()[0]);
  const SpoolFolder::CleanedUp done = spool_->CleanUp(now_);
  EXPECT_EQ(done.removed_records, 3u);
  EXPECT_EQ(done.rewritten_files, 1u);
  EXPECT_LT(fs::file_size(Segments()[0]), size);
  EXPECT_THAT(Ids(), ElementsAre("a", "b-16", "c")) << "the others' bytes have stayed as they were";
  EXPECT_EQ(spool_->CleanUp(now_).removed_records, 0u);
  // One that is written after it was deleted is deleted, too.
  ASSERT_TRUE(Append("b").ok());
  ASSERT_TRUE(Append("d").ok());
  EXPECT_THAT(Ids(), ElementsAre("a", "b-16", "c", "d"));
  // Tombstones stay as long as a record may.
  const std::string stones = absl::StrCat(options_.folder, "/acme/tombstones");
  spool_->CleanUp(now_ + options_.max_age);
  EXPECT_TRUE(fs::exists(stones));
  spool_->CleanUp(now_ + options_.max_age + absl::Hours(2));
  EXPECT_FALSE(fs::exists(stones));
}

TEST_F(SpoolFolderTest, DamagedTombstonesAreNotPassedOver) {
  Open();
  ASSERT_TRUE(Append("a").ok());
  ASSERT_TRUE(spool_->DeleteRequest("acme", "a", now_).ok());
  const std::string path = absl::StrCat(options_.folder, "/acme/tombstones");
  const std::string good = ReadFile(path, 1 << 20).value();
  for (const std::string& bad :
       {good.substr(0, good.size() - 1), good + "x", std::string("x"), good.substr(0, 63)}) {
    temporary_.Write("spool/acme/tombstones", bad);
    EXPECT_EQ(ReadSpoolTombstones(absl::StrCat(options_.folder, "/acme")).status().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_FALSE(spool_->DeleteRequest("acme", "b", now_).ok());
    spool_->CleanUp(now_);
    EXPECT_EQ(ReadFile(path, 1 << 20).value(), bad) << "left for people to look at";
    EXPECT_EQ(Segments().size(), 1u);
  }
}

TEST_F(SpoolFolderTest, AFullDiskLeavesNoHalfRecord) {
  int64_t room = 1 << 20;
  options_.write = [&room](int file, const char* bytes, size_t size) -> int64_t {
    const size_t part = std::min<size_t>(size, static_cast<size_t>(std::max<int64_t>(room, 0)));
    if (part == 0) {
      errno = ENOSPC;
      return -1;
    }
    room -= static_cast<int64_t>(part);
    return ::write(file, bytes, part);
  };
  Open();
  ASSERT_TRUE(Append("a").ok());
  room = 30;
  const absl::Status full = Append("b");
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  const std::string file = ReadFile(Segments()[0], 1 << 20).value();
  EXPECT_EQ(ScanSpoolFile(file).end, file.size());
  EXPECT_EQ(Append("c").code(), absl::StatusCode::kResourceExhausted) << "no room for a header";
  EXPECT_EQ(Segments().size(), 1u);
  room = 1 << 20;
  ASSERT_TRUE(Append("d").ok());
  EXPECT_THAT(Ids(), ElementsAre("a", "d"));
}

TEST_F(SpoolFolderTest, ARemovedFolderIsMadeAgain) {
  Open();
  ASSERT_TRUE(Append("a").ok());
  fs::remove_all(absl::StrCat(options_.folder, "/acme"));
  ASSERT_TRUE(Append("b").ok());
  EXPECT_THAT(Ids(), ElementsAre("b"));
  fs::remove_all(options_.folder);
  fs::remove_all(options_.keys);
  ASSERT_TRUE(Append("c").ok());
  EXPECT_THAT(Ids(), ElementsAre("c"));
}

TEST_F(SpoolFolderTest, AKeyThatIsNoneIsSaid) {
  Open();
  temporary_.Write("keys/acme.key", "secret");
  const absl::Status status = Append("a");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("acme.key: not a key of a spool, expected 64 hexadecimal"));
  EXPECT_THAT(std::string(status.message()), ::testing::Not(HasSubstr("secret")));
}

}  // namespace
}  // namespace tandem::router
