// Under ThreadSanitizer this shows that the tool sees absl::Mutex; with any other build it is an ordinary
// test.

#include "absl/synchronization/mutex.h"

#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace {

TEST(AbslMutexTest, ProtectsACounter) {
  absl::Mutex mutex;
  int count = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        absl::MutexLock lock(&mutex);
        ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 4000);
}

TEST(AbslMutexTest, AwaitsAConditionThatAnotherThreadMakesTrue) {
  absl::Mutex mutex;
  int turn = 0;
  std::thread other([&] {
    for (int i = 0; i < 100; ++i) {
      mutex.LockWhen(absl::Condition(
          +[](int* value) { return *value % 2 == 1; }, &turn));
      ++turn;
      mutex.Unlock();
    }
  });
  for (int i = 0; i < 100; ++i) {
    absl::MutexLock lock(&mutex);
    mutex.Await(absl::Condition(
        +[](int* value) { return *value % 2 == 0; }, &turn));
    ++turn;
  }
  other.join();
  EXPECT_EQ(turn, 200);
}

TEST(AbslMutexTest, AwaitEndsAtItsDeadline) {
  absl::Mutex mutex;
  bool never = false;
  absl::MutexLock lock(&mutex);
  EXPECT_FALSE(mutex.AwaitWithTimeout(absl::Condition(&never), absl::Milliseconds(1)));
  EXPECT_FALSE(mutex.AwaitWithDeadline(absl::Condition(&never), absl::InfinitePast()));
}

TEST(AbslMutexTest, WaitsForASignal) {
  absl::Mutex mutex;
  absl::CondVar signalled;
  int value = 0;
  std::thread other([&] {
    absl::MutexLock lock(&mutex);
    value = 7;
    signalled.SignalAll();
  });
  {
    absl::MutexLock lock(&mutex);
    while (value == 0) signalled.Wait(&mutex);
    EXPECT_EQ(value, 7);
    EXPECT_TRUE(signalled.WaitWithTimeout(&mutex, absl::Milliseconds(1)));
  }
  other.join();
}

TEST(AbslMutexTest, ANotificationCarriesWhatWasWrittenBefore) {
  absl::Notification done;
  int value = 0;
  std::thread other([&] {
    value = 7;
    done.Notify();
  });
  done.WaitForNotification();
  EXPECT_EQ(value, 7);
  other.join();
}

}  // namespace
