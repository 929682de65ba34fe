#include "router/spool/spool.h"

#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/base/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;

class SpoolTest : public ::testing::Test {
 protected:
  SpoolTest() {
    options_.folder.folder = temporary_.PathOf("spool");
    options_.folder.keys = temporary_.PathOf("keys");
  }
  void Open() {
    auto opened = Spool::Open(options_, &clock_, &registry_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    spool_ = *std::move(opened);
  }
  // One of about 4,000 bytes.
  static SpoolRecord Record(const std::string& id, const std::string& tenant = "acme") {
    SpoolRecord record{.tenant = tenant, .request_id = id, .model = "m"};
    record.prompt.assign(1000, 7);
    record.output.push_back({{1, -0.1f}, {}});
    return record;
  }
  double Metric(const std::string& series) {
    const std::string text = registry_.Expose();
    const size_t at = text.find(absl::StrCat("\n", series, " "));
    return at == std::string::npos ? 0.0 : std::stod(text.substr(at + series.size() + 2));
  }
  double Written() { return Metric("tandem_router_spool_records_total{tenant=\"acme\"}"); }
  double Dropped(const std::string& reason) {
    return Metric(absl::StrCat("tandem_router_spool_dropped_total{reason=\"", reason, "\"}"));
  }

  const TemporaryFolder temporary_;
  ManualClock clock_{absl::Now()};
  MetricsRegistry registry_;
  Spool::Options options_;
  std::unique_ptr<Spool> spool_;
};

TEST_F(SpoolTest, WritesOnAThreadOfItsOwn) {
  Open();
  for (int i = 0; i < 20; ++i) spool_->Offer(Record(absl::StrCat(i)));
  spool_->Flush();
  EXPECT_EQ(Written(), 20);
  spool_->Offer(Record("last"));
  spool_.reset();
  EXPECT_EQ(Written(), 21) << "the end waits for what is queued";
}

TEST_F(SpoolTest, ASlowDiskHoldsUpNobody) {
  absl::Notification stuck;
  absl::Notification go_on;
  options_.queue_bytes = 10 * 4200;
  options_.folder.write = [&](int file, const char* bytes, size_t size) -> int64_t {
    if (!stuck.HasBeenNotified()) stuck.Notify();
    go_on.WaitForNotification();
    return ::write(file, bytes, size);
  };
  Open();
  spool_->Offer(Record("0"));
  stuck.WaitForNotification();
  for (int i = 0; i < 15; ++i) spool_->Offer(Record(absl::StrCat("r", i)));
  EXPECT_EQ(Dropped("queue"), 5);
  go_on.Notify();
  spool_->Flush();
  EXPECT_EQ(Written(), 11);
}

TEST_F(SpoolTest, ATenantHasARate) {
  options_.bytes_per_second = 100;  // A minute's worth is one record.
  Open();
  spool_->Offer(Record("a"));
  spool_->Offer(Record("b"));
  spool_->Offer(Record("other", "zeta"));
  EXPECT_EQ(Dropped("rate"), 1);
  clock_.Advance(absl::Minutes(2));
  spool_->Offer(Record("c"));
  spool_->Flush();
  EXPECT_EQ(Dropped("rate"), 1);
  EXPECT_EQ(Written(), 2);
}

TEST_F(SpoolTest, WhatCannotBeWrittenIsCountedAndTriedAgain) {
  bool full = true;
  options_.folder.write = [&full](int file, const char* bytes, size_t size) -> int64_t {
    if (!full) return ::write(file, bytes, size);
    errno = ENOSPC;
    return -1;
  };
  Open();
  spool_->Offer(Record("a"));
  spool_->Offer(Record("b"));
  spool_->Flush();
  EXPECT_EQ(Dropped("disk"), 2);
  full = false;
  spool_->Offer(Record("c"));
  spool_->Flush();
  EXPECT_EQ(Dropped("disk"), 3) << "a disk that is full is left alone for a while";
  clock_.Advance(absl::Seconds(2));
  spool_->Offer(Record("d"));
  spool_->Flush();
  EXPECT_EQ(Written(), 1);
}

TEST_F(SpoolTest, DeletesWhatIsQueuedToo) {
  absl::Notification stuck;
  absl::Notification go_on;
  options_.folder.write = [&](int file, const char* bytes, size_t size) -> int64_t {
    if (!stuck.HasBeenNotified()) stuck.Notify();
    go_on.WaitForNotification();
    return ::write(file, bytes, size);
  };
  Open();
  spool_->Offer(Record("first", "zeta"));
  stuck.WaitForNotification();
  spool_->Offer(Record("a"));
  spool_->Offer(Record("b"));
  std::thread deletion([this] {
    EXPECT_TRUE(spool_->DeleteRequest("acme", "a").ok());
    const auto deleted = spool_->DeleteTenant("zeta");
    ASSERT_TRUE(deleted.ok());
    EXPECT_TRUE(deleted->key);
  });
  go_on.Notify();
  deletion.join();
  spool_->Flush();
  EXPECT_FALSE(std::filesystem::exists(temporary_.PathOf("spool/zeta")));
  EXPECT_EQ(Written() + Dropped("deleted"), 2);
}

TEST_F(SpoolTest, SaysWhyItCannotBegin) {
  temporary_.Write("spool", "a file");
  const absl::Status status = Spool::Open(options_, &clock_, &registry_).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(temporary_.PathOf("spool")));
}

}  // namespace
}  // namespace tandem::router
