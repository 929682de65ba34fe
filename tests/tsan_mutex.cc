// Tells ThreadSanitizer what absl::Mutex and absl::CondVar order. The system's Abseil is not built with it,
// so that without this everything they guard would look like a race. Linked into what is built with
// TANDEM_SANITIZE=thread: these definitions come before the shared library's, for libgrpc and Abseil itself,
// too, and call them.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <typeinfo>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "sanitizer/tsan_interface.h"

extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}

namespace {

// The library's own member function. `name` is the end of its mangled name: what follows the class, whose own
// part (it contains Abseil's version) is taken from the type.
template <class Class, class Function>
Function Real(const char* name, bool is_const = false) {
  const std::string type = typeid(Class).name();  // "N4absl...5MutexE"
  const std::string symbol = std::string(is_const ? "_ZNK" : "_ZN") + type.substr(1, type.size() - 2) + name;
  void* address = dlsym(RTLD_NEXT, symbol.c_str());
  if (address == nullptr) {
    std::fprintf(stderr, "tsan_mutex: %s is not in any shared library\n", symbol.c_str());
    std::abort();
  }
  return reinterpret_cast<Function>(address);
}

// Itanium's ABI passes `this` as the first argument of a plain function.
using Method = void (*)(absl::Mutex*);
using TryMethod = bool (*)(absl::Mutex*);

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  static const Method real = Real<Mutex, Method>("4LockEv");
  real(this);
  __tsan_acquire(this);
}

void Mutex::Unlock() {
  static const Method real = Real<Mutex, Method>("6UnlockEv");
  __tsan_release(this);
  real(this);
}

bool Mutex::TryLock() {
  static const TryMethod real = Real<Mutex, TryMethod>("7TryLockEv");
  const bool locked = real(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::ReaderLock() {
  static const Method real = Real<Mutex, Method>("10ReaderLockEv");
  real(this);
  __tsan_acquire(this);
}

void Mutex::ReaderUnlock() {
  static const Method real = Real<Mutex, Method>("12ReaderUnlockEv");
  __tsan_release(this);
  real(this);
}

void Mutex::Await(const Condition& condition) {
  using Function = void (*)(Mutex*, const Condition&);
  static const Function real = Real<Mutex, Function>("5AwaitERKNS0_9ConditionE");
  __tsan_release(this);
  real(this, condition);
  __tsan_acquire(this);
}

bool Mutex::AwaitWithDeadline(const Condition& condition, absl::Time deadline) {
  using Function = bool (*)(Mutex*, const Condition&, absl::Time);
  static const Function real = Real<Mutex, Function>("17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  __tsan_release(this);
  const bool satisfied = real(this, condition, deadline);
  __tsan_acquire(this);
  return satisfied;
}

bool Mutex::AwaitWithTimeout(const Condition& condition, absl::Duration timeout) {
  using Function = bool (*)(Mutex*, const Condition&, absl::Duration);
  static const Function real = Real<Mutex, Function>("16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  __tsan_release(this);
  const bool satisfied = real(this, condition, timeout);
  __tsan_acquire(this);
  return satisfied;
}

void Mutex::LockWhen(const Condition& condition) {
  using Function = void (*)(Mutex*, const Condition&);
  static const Function real = Real<Mutex, Function>("8LockWhenERKNS0_9ConditionE");
  real(this, condition);
  __tsan_acquire(this);
}

void CondVar::Wait(Mutex* mutex) {
  using Function = void (*)(CondVar*, Mutex*);
  static const Function real = Real<CondVar, Function>("4WaitEPNS0_5MutexE");
  __tsan_release(mutex);
  real(this, mutex);
  __tsan_acquire(mutex);
}

bool CondVar::WaitWithDeadline(Mutex* mutex, absl::Time deadline) {
  using Function = bool (*)(CondVar*, Mutex*, absl::Time);
  static const Function real = Real<CondVar, Function>("16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE");
  __tsan_release(mutex);
  const bool timed_out = real(this, mutex, deadline);
  __tsan_acquire(mutex);
  return timed_out;
}

bool CondVar::WaitWithTimeout(Mutex* mutex, absl::Duration timeout) {
  using Function = bool (*)(CondVar*, Mutex*, absl::Duration);
  static const Function real = Real<CondVar, Function>("15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE");
  __tsan_release(mutex);
  const bool timed_out = real(this, mutex, timeout);
  __tsan_acquire(mutex);
  return timed_out;
}

// A waiter's condition is evaluated by whichever thread unlocks, after its release above and still under the
// lock.
bool Condition::Eval() const {
  using Function = bool (*)(const Condition*);
  static const Function real = Real<Condition, Function>("4EvalEv", /*is_const=*/true);
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  const bool holds = real(this);
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  return holds;
}

ABSL_NAMESPACE_END
}  // namespace absl
