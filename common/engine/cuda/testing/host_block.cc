#include "common/engine/cuda/testing/host_block.h"

#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <limits>

#include "common/base/hash.h"

// g++ defines a macro, clang has a feature test.
#if defined(__SANITIZE_ADDRESS__)
#define TANDEM_FIBERS_ANNOUNCED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TANDEM_FIBERS_ANNOUNCED
#endif
#endif

#ifdef TANDEM_FIBERS_ANNOUNCED
#include <sanitizer/common_interface_defs.h>
#endif

namespace tandem {
namespace {

constexpr size_t kStackBytes = size_t{128} << 10;

// Called before a fiber leaves. It leaves for good if `fake_stack` is null.
void AboutToSwitch(void** fake_stack, const void* to, size_t to_bytes) {
#ifdef TANDEM_FIBERS_ANNOUNCED
  __sanitizer_start_switch_fiber(fake_stack, to, to_bytes);
#else
  (void)fake_stack;
  (void)to;
  (void)to_bytes;
#endif
}

void HaveSwitched(void* fake_stack, const void** from, size_t* from_bytes) {
#ifdef TANDEM_FIBERS_ANNOUNCED
  __sanitizer_finish_switch_fiber(fake_stack, from, from_bytes);
#else
  (void)fake_stack;
  (void)from;
  (void)from_bytes;
#endif
}

[[noreturn]] void FailKernel(const char* what) {
  std::fprintf(stderr, "emulated kernel: %s\n", what);
  std::abort();
}

}  // namespace

void FailDeviceAccess(uint64_t index, uint64_t size, size_t element_bytes) {
  std::fprintf(stderr, "emulated kernel: element %llu of memory that holds %llu, of %zu bytes each\n",
               static_cast<unsigned long long>(index), static_cast<unsigned long long>(size), element_bytes);
  std::abort();
}

void HostGrid::Run(const LaunchShape& shape, const std::function<void(Block&)>& thread) {
  if (shape.threads == 0 || shape.threads % kWarpThreads != 0 || shape.threads > kMaxBlockThreads) {
    FailKernel("a block has a multiple of 32 threads, up to 1024");
  }
  thread_ = &thread;
  num_threads_ = shape.threads;
  num_x_ = shape.grid_x;
  shared_bytes_ = shape.shared_bytes;
  // Backwards in half of the launches.
  const bool backwards = Mix64(random_++) % 2 == 1;
  const uint64_t num_blocks = uint64_t{shape.grid_x} * shape.grid_y;
  for (uint64_t i = 0; i < num_blocks; ++i) {
    const uint64_t block = backwards ? num_blocks - 1 - i : i;
    index_x_ = static_cast<uint32_t>(block % shape.grid_x);
    index_y_ = static_cast<uint32_t>(block / shape.grid_x);
    RunBlock(shape);
  }
}

void HostGrid::Enter(uint32_t low, uint32_t high) {
  reinterpret_cast<HostGrid*>(uint64_t{high} << 32 | low)->RunThreads();
}

void HostGrid::RunThreads() {
  HaveSwitched(nullptr, &scheduler_stack_, &scheduler_stack_bytes_);
  for (;;) {
    Block block(this);
    (*thread_)(block);
    Wait(Waits::kEnded);
  }
}

// A function of its own, because one function may not both set and take the same jump. Not the library's
// longjmp: at each call AddressSanitizer would clean the whole stack, which takes most of a test's time.
[[gnu::noinline, gnu::no_sanitize_address]] void JumpTo(void** place) {
  __builtin_longjmp(place, 1);
}

// Uses jumps, not contexts: contexts would ask the system for the signal mask at every switch.
[[gnu::no_sanitize_address]] void HostGrid::ResumeNext() {
  const uint32_t thread = next_;
  PassNext();
  running_ = thread;
  from_scheduler_ = true;
  Fiber& fiber = fibers_[thread];
  const bool is_new = fiber.stack == nullptr;
  if (is_new) fiber.stack = std::make_unique<char[]>(kStackBytes);
  AboutToSwitch(&scheduler_fake_stack_, fiber.stack.get(), kStackBytes);
  if (__builtin_setjmp(scheduler_) == 0) {
    if (!is_new) JumpTo(fiber.left);
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = fiber.stack.get();
    context.uc_stack.ss_size = kStackBytes;
    context.uc_link = nullptr;
    const auto self = reinterpret_cast<uint64_t>(this);
    makecontext(&context, reinterpret_cast<void (*)()>(&HostGrid::Enter), 2, static_cast<uint32_t>(self),
                static_cast<uint32_t>(self >> 32));
    setcontext(&context);
  }
  HaveSwitched(scheduler_fake_stack_, nullptr, nullptr);
}

// Goes to the next fiber itself, because every switch costs several mispredicted branches. New fibers and the
// end of a round are the scheduler's.
[[gnu::no_sanitize_address]] void HostGrid::Wait(Waits waits) {
  Fiber& fiber = fibers_[running_];
  waits_[running_] = waits;
  if (FindNext() && fibers_[next_].stack != nullptr) {
    Fiber& next = fibers_[next_];
    AboutToSwitch(&fiber.fake_stack, next.stack.get(), kStackBytes);
    running_ = next_;
    PassNext();
    from_scheduler_ = false;
    if (__builtin_setjmp(fiber.left) == 0) JumpTo(next.left);
  } else {
    AboutToSwitch(&fiber.fake_stack, scheduler_stack_, scheduler_stack_bytes_);
    if (__builtin_setjmp(fiber.left) == 0) JumpTo(scheduler_);
  }
  // Another thread of the system may run the scheduler now.
  const void* stack = nullptr;
  size_t bytes = 0;
  HaveSwitched(fiber.fake_stack, &stack, &bytes);
  if (!from_scheduler_) return;
  scheduler_stack_ = stack;
  scheduler_stack_bytes_ = bytes;
}

void HostGrid::StartRound() {
  const uint64_t order = Mix64(random_++);
  forwards_ = order % 2 == 0;
  next_ = static_cast<uint32_t>((order >> 1) % num_threads_);
  left_in_round_ = num_threads_;
}

bool HostGrid::FindNext() {
  while (left_in_round_ > 0 && waits_[next_] != Waits::kNo) PassNext();
  return left_in_round_ > 0;
}

void HostGrid::PassNext() {
  --left_in_round_;
  if (forwards_) {
    next_ = next_ + 1 == num_threads_ ? 0 : next_ + 1;
  } else {
    next_ = next_ == 0 ? num_threads_ - 1 : next_ - 1;
  }
}

bool HostGrid::AllWait(uint32_t begin, uint32_t end, Waits waits) const {
  bool all = true;
  for (uint32_t thread = begin; thread < end; ++thread) all &= waits_[thread] == waits;
  return all;
}

void HostGrid::Release(uint32_t begin, uint32_t end, Waits waits) {
  if (!AllWait(begin, end, waits)) return;
  std::fill(waits_.begin() + begin, waits_.begin() + end, Waits::kNo);
}

void HostGrid::RunBlock(const LaunchShape& shape) {
  // Shared memory is not initialised. Here it begins as NaN.
  shared_.assign((shape.shared_bytes + 7) / 8, std::numeric_limits<uint64_t>::max());
  std::fill(waits_.begin(), waits_.begin() + num_threads_, Waits::kNo);
  for (;;) {
    StartRound();
    bool has_run = false;
    while (FindNext()) {
      has_run = true;
      ResumeNext();
    }
    if (AllWait(0, num_threads_, Waits::kEnded)) return;
    if (!has_run) FailKernel("threads wait for others that ended or wait elsewhere");
    for (uint32_t warp = 0; warp < num_threads_; warp += kWarpThreads) {
      Release(warp, warp + kWarpThreads, Waits::kForWarp);
    }
    Release(0, num_threads_, Waits::kForBlock);
  }
}

uint32_t HostGrid::Block::Ballot(bool bit) {
  const uint32_t self = thread();
  grid_->fibers_[self].deposit = bit ? 1 : 0;
  grid_->Wait(Waits::kForWarp);
  uint32_t mask = 0;
  const uint32_t warp = self / kWarpThreads * kWarpThreads;
  for (uint32_t lane = 0; lane < kWarpThreads; ++lane) {
    mask |= static_cast<uint32_t>(grid_->fibers_[warp + lane].deposit) << lane;
  }
  grid_->Wait(Waits::kForWarp);
  return mask;
}

template <typename Multiply>
void HostGrid::Block::MultiplyFragments(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Multiply multiply) {
  const uint32_t self = thread();
  const uint32_t own[] = {a[0], a[1], a[2], a[3], b0, b1};
  std::copy(std::begin(own), std::end(own), grid_->fibers_[self].fragment);
  grid_->Wait(Waits::kForWarp);
  const uint32_t warp = self / kWarpThreads * kWarpThreads;
  const uint32_t lane = self % kWarpThreads;
  for (uint32_t i = 0; i < 4; ++i) {
    for (uint32_t half = 0; half < 2; ++half) {
      for (uint32_t quarter = 0; quarter < 4; ++quarter) {
        // Words of row lane / 4 (+ 8) of a and of row 2 * (lane % 4) (+ 1) of b.
        const Fiber& of_a = grid_->fibers_[warp + lane / 4 * 4 + quarter];
        const Fiber& of_b = grid_->fibers_[warp + (lane % 4 * 2 + i % 2) * 4 + quarter];
        multiply(i, of_a.fragment[2 * half + i / 2], of_b.fragment[4 + half]);
      }
    }
  }
  grid_->Wait(Waits::kForWarp);
}

void HostGrid::Block::MultiplyAddInt8(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, int32_t (&sums)[4]) {
  MultiplyFragments(a, b0, b1, [&sums](uint32_t i, uint32_t of_a, uint32_t of_b) {
    for (uint32_t shift = 0; shift < 32; shift += 8) {
      sums[i] += int32_t{static_cast<int8_t>(of_a >> shift)} * int32_t{static_cast<int8_t>(of_b >> shift)};
    }
  });
}

void HostGrid::Block::MultiplyAddBf16(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, float (&sums)[4]) {
  MultiplyFragments(a, b0, b1, [&sums](uint32_t i, uint32_t of_a, uint32_t of_b) {
    sums[i] = Fma(FirstOf({of_a}), FirstOf({of_b}), sums[i]);
    sums[i] = Fma(SecondOf({of_a}), SecondOf({of_b}), sums[i]);
  });
}

}  // namespace tandem
