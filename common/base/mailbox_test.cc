#include "common/base/mailbox.h"

#include <memory>
#include <thread>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;

TEST(MailboxTest, KeepsOrderAndAppends) {
  Mailbox<int> mailbox;
  mailbox.Push(1);
  mailbox.Push(2);
  std::vector<int> out;
  EXPECT_TRUE(mailbox.WaitUntil(absl::InfiniteFuture(), &out));
  mailbox.Push(3);
  mailbox.Drain(&out);
  EXPECT_THAT(out, ElementsAre(1, 2, 3));
  mailbox.Drain(&out);
  EXPECT_EQ(out.size(), 3u);
}

TEST(MailboxTest, WaitEndsAtTheDeadline) {
  Mailbox<int> mailbox;
  std::vector<int> out;
  EXPECT_TRUE(mailbox.WaitUntil(absl::Now() - absl::Seconds(1), &out));
  EXPECT_TRUE(out.empty());
}

TEST(MailboxTest, WakesTheOwnerAndTakesMoveOnlyItems) {
  Mailbox<std::unique_ptr<int>> mailbox;
  std::thread producer([&] { mailbox.Push(std::make_unique<int>(7)); });
  std::vector<std::unique_ptr<int>> out;
  EXPECT_TRUE(mailbox.WaitUntil(absl::InfiniteFuture(), &out));
  producer.join();
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(*out[0], 7);
}

TEST(MailboxTest, CloseWakesAndEndsAfterWhatWasPushed) {
  Mailbox<int> mailbox;
  std::thread closer([&] {
    mailbox.Push(1);
    mailbox.Close();
    mailbox.Push(2);
    mailbox.Close();
  });
  closer.join();
  std::vector<int> out;
  EXPECT_TRUE(mailbox.WaitUntil(absl::InfiniteFuture(), &out));
  EXPECT_FALSE(mailbox.WaitUntil(absl::InfiniteFuture(), &out));
  EXPECT_THAT(out, ElementsAre(1));
}

TEST(MailboxTest, NothingIsLostOrReorderedBetweenThreads) {
  constexpr int kProducers = 4;
  constexpr int kItems = 5000;
  Mailbox<std::pair<int, int>> mailbox;
  std::vector<std::thread> producers;
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&mailbox, p] {
      for (int i = 0; i < kItems; ++i) mailbox.Push({p, i});
    });
  }
  std::vector<int> next(kProducers, 0);
  int taken = 0;
  while (taken < kProducers * kItems) {
    std::vector<std::pair<int, int>> out;
    ASSERT_TRUE(mailbox.WaitUntil(absl::InfiniteFuture(), &out));
    for (const auto& [producer, item] : out) ASSERT_EQ(item, next[producer]++);
    taken += static_cast<int>(out.size());
  }
  for (std::thread& producer : producers) producer.join();
}

}  // namespace
}  // namespace tandem
