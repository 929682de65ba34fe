// absl::Mutex, absl::CondVar and absl::Notification on top of pthreads, for ThreadSanitizer only.
//
// The distribution's Abseil is not built with ThreadSanitizer, so that the tool does not see its locks and
// takes everything they protect for a race. These definitions stand in the executable and therefore come
// before the library's, also for calls from gRPC. Pthread locks are what the tool knows best.
//
// A mutex's word holds a pointer to its state, made by the first use. Readers exclude one another here, which
// no code may rely on not happening.

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <ctime>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace absl {
ABSL_NAMESPACE_BEGIN
namespace {

struct MutexState {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
  // Threads that wait for a condition on what the mutex protects; read and written with the mutex held.
  int num_waiting = 0;
};

struct CondVarState {
  pthread_cond_t signalled = PTHREAD_COND_INITIALIZER;
};

// The state that `word` points to; whoever comes first makes it.
template <class State>
State* Get(std::atomic<intptr_t>& word) {
  intptr_t value = word.load(std::memory_order_acquire);
  if (value == 0) {
    auto* fresh = new State;
    if (word.compare_exchange_strong(value, reinterpret_cast<intptr_t>(fresh), std::memory_order_acq_rel)) {
      return fresh;
    }
    delete fresh;
  }
  return reinterpret_cast<State*>(value);
}

void Lock(MutexState* state) {
  if (pthread_mutex_lock(&state->mutex) != 0) std::abort();
}

// Lets those look again who wait for a condition that the caller may have made true.
void Unlock(MutexState* state) {
  if (state->num_waiting > 0) pthread_cond_broadcast(&state->changed);
  if (pthread_mutex_unlock(&state->mutex) != 0) std::abort();
}

// Waits once, with `mutex` held. False when `deadline` has passed.
bool WaitOnce(pthread_cond_t* cond, pthread_mutex_t* mutex, Time deadline) {
  if (deadline == InfiniteFuture()) return pthread_cond_wait(cond, mutex) == 0;
  const timespec until = ToTimespec(deadline);
  return pthread_cond_timedwait(cond, mutex, &until) == 0;
}

// The mutex is held before and after. Whether the condition is true at the end.
bool AwaitUntil(MutexState* state, const Condition& condition, Time deadline) {
  while (!condition.Eval()) {
    // The caller may have changed what others wait for; its waiting releases the mutex without Unlock.
    if (state->num_waiting > 0) pthread_cond_broadcast(&state->changed);
    ++state->num_waiting;
    const bool in_time = WaitOnce(&state->changed, &state->mutex, deadline);
    --state->num_waiting;
    if (!in_time) return condition.Eval();
  }
  return true;
}

bool LockUntil(MutexState* state, const Condition& condition, Time deadline) {
  Lock(state);
  return AwaitUntil(state, condition, deadline);
}

bool WaitForSignal(CondVarState* cond, MutexState* state, Time deadline) {
  if (state->num_waiting > 0) pthread_cond_broadcast(&state->changed);
  return WaitOnce(&cond->signalled, &state->mutex, deadline);
}

}  // namespace

Mutex::~Mutex() {
  delete reinterpret_cast<MutexState*>(mu_.load(std::memory_order_acquire));
}

void Mutex::Lock() {
  absl::Lock(Get<MutexState>(mu_));
}
void Mutex::Unlock() {
  absl::Unlock(Get<MutexState>(mu_));
}
bool Mutex::TryLock() {
  return pthread_mutex_trylock(&Get<MutexState>(mu_)->mutex) == 0;
}
void Mutex::ReaderLock() {
  absl::Lock(Get<MutexState>(mu_));
}
void Mutex::ReaderUnlock() {
  absl::Unlock(Get<MutexState>(mu_));
}
bool Mutex::ReaderTryLock() {
  return pthread_mutex_trylock(&Get<MutexState>(mu_)->mutex) == 0;
}

void Mutex::Await(const Condition& cond) {
  AwaitUntil(Get<MutexState>(mu_), cond, InfiniteFuture());
}
bool Mutex::AwaitWithTimeout(const Condition& cond, Duration timeout) {
  return AwaitUntil(Get<MutexState>(mu_), cond, Now() + timeout);
}
bool Mutex::AwaitWithDeadline(const Condition& cond, Time deadline) {
  return AwaitUntil(Get<MutexState>(mu_), cond, deadline);
}

void Mutex::LockWhen(const Condition& cond) {
  LockUntil(Get<MutexState>(mu_), cond, InfiniteFuture());
}
bool Mutex::LockWhenWithTimeout(const Condition& cond, Duration timeout) {
  return LockUntil(Get<MutexState>(mu_), cond, Now() + timeout);
}
bool Mutex::LockWhenWithDeadline(const Condition& cond, Time deadline) {
  return LockUntil(Get<MutexState>(mu_), cond, deadline);
}
void Mutex::ReaderLockWhen(const Condition& cond) {
  LockWhen(cond);
}
bool Mutex::ReaderLockWhenWithTimeout(const Condition& cond, Duration timeout) {
  return LockWhenWithTimeout(cond, timeout);
}
bool Mutex::ReaderLockWhenWithDeadline(const Condition& cond, Time deadline) {
  return LockWhenWithDeadline(cond, deadline);
}

// Ownership is what ThreadSanitizer itself checks at unlocking.
void Mutex::AssertHeld() const {}
void Mutex::AssertReaderHeld() const {}
void Mutex::AssertNotHeld() const {}
void Mutex::ForgetDeadlockInfo() {}
void Mutex::EnableDebugLog(const char*) {}
void Mutex::EnableInvariantDebugging(void (*)(void*), void*) {}

CondVar::~CondVar() {
  delete reinterpret_cast<CondVarState*>(cv_.load(std::memory_order_acquire));
}

void CondVar::Wait(Mutex* mu) {
  WaitForSignal(Get<CondVarState>(cv_), Get<MutexState>(mu->mu_), InfiniteFuture());
}
// True when the time ran out, unlike Await.
bool CondVar::WaitWithTimeout(Mutex* mu, Duration timeout) {
  return !WaitForSignal(Get<CondVarState>(cv_), Get<MutexState>(mu->mu_), Now() + timeout);
}
bool CondVar::WaitWithDeadline(Mutex* mu, Time deadline) {
  return !WaitForSignal(Get<CondVarState>(cv_), Get<MutexState>(mu->mu_), deadline);
}
void CondVar::Signal() {
  pthread_cond_signal(&Get<CondVarState>(cv_)->signalled);
}
void CondVar::SignalAll() {
  pthread_cond_broadcast(&Get<CondVarState>(cv_)->signalled);
}
void CondVar::EnableDebugLog(const char*) {}

Notification::~Notification() {
  MutexLock lock(&mutex_);
}
void Notification::Notify() {
  MutexLock lock(&mutex_);
  notified_yet_.store(true, std::memory_order_release);
}
void Notification::WaitForNotification() const {
  WaitForNotificationWithDeadline(InfiniteFuture());
}
bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  return WaitForNotificationWithDeadline(Now() + timeout);
}
bool Notification::WaitForNotificationWithDeadline(Time deadline) const {
  MutexLock lock(&mutex_);
  return mutex_.AwaitWithDeadline(Condition(&HasBeenNotifiedInternal, &notified_yet_), deadline);
}

ABSL_NAMESPACE_END
}  // namespace absl
