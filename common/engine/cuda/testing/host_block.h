#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/engine/cuda/kernels/block.h"
#include "common/engine/cuda/launch_shape.h"

namespace tandem {

// Runs a kernel on the host as a GPU would, and checks what a GPU does not check. Each thread of a block is a
// fiber. A fiber runs until it waits for others (Sync, shuffles, ballots), and then the next one runs. The
// order changes from launch to launch, so a missing barrier changes results sooner or later.
//
// It checks the indices of device and shared memory (block.h), that no thread ends or waits elsewhere while
// the others of its block or warp wait, and that every thread of a block ends. A violation is a bug of ours
// and ends the program with a message.
class HostGrid {
 public:
  static constexpr uint32_t kMaxBlockThreads = 1024;

  // `seed` decides the order of fibers and of blocks.
  explicit HostGrid(uint64_t seed = 0) : random_(seed), fibers_(kMaxBlockThreads) {}

  class Block;
  // Runs `thread(block)` for every thread of every block.
  void Run(const LaunchShape& shape, const std::function<void(Block&)>& thread);

  template <typename Kernel>
  void Launch(const Kernel& kernel, const LaunchShape& shape) {
    Run(shape, [&kernel](Block& block) { kernel(block); });
  }

 private:
  enum class Waits : uint8_t { kNo, kForBlock, kForWarp, kEnded };
  struct Fiber {
    std::unique_ptr<char[]> stack;  // None before its first thread. The fiber runs one thread after another.
    void* left[5] = {};             // Where it waits.
    uint64_t deposit = 0;           // The value for the other lanes.
    uint32_t fragment[6] = {};      // The words to multiply: four of a, two of b.
    void* fake_stack = nullptr;
  };

  static void Enter(uint32_t low, uint32_t high);
  // Never returns.
  void RunThreads();
  void RunBlock(const LaunchShape& shape);
  // A round gives every thread a turn, from a random one on in a random direction.
  void StartRound();
  // Whether a thread is left in the round that does not wait: next_.
  bool FindNext();
  void PassNext();
  // From the scheduler to the fiber of next_.
  void ResumeNext();
  // Lets others run until all threads of the block (of the warp) wait.
  void Wait(Waits waits);
  void Release(uint32_t begin, uint32_t end, Waits waits);
  bool AllWait(uint32_t begin, uint32_t end, Waits waits) const;

  uint64_t random_;
  const std::function<void(Block&)>* thread_ = nullptr;
  // Never moves once it has stacks: fibers of earlier launches hold references to their own while they wait.
  std::vector<Fiber> fibers_;
  // Of each fiber. Together, because after every round all are looked at.
  std::array<Waits, kMaxBlockThreads> waits_ = {};
  std::vector<uint64_t> shared_;
  void* scheduler_[5] = {};
  const void* scheduler_stack_ = nullptr;
  size_t scheduler_stack_bytes_ = 0;
  void* scheduler_fake_stack_ = nullptr;
  bool from_scheduler_ = false;  // The last switch.
  uint32_t running_ = 0;
  uint32_t next_ = 0;
  uint32_t left_in_round_ = 0;
  bool forwards_ = true;
  uint32_t num_threads_ = 0;
  uint32_t index_x_ = 0;
  uint32_t index_y_ = 0;
  uint32_t num_x_ = 0;
  uint64_t shared_bytes_ = 0;
};

// The block as kernels see it.
class HostGrid::Block {
 public:
  explicit Block(HostGrid* grid) : grid_(grid) {}

  uint32_t thread() const { return grid_->running_; }
  uint32_t num_threads() const { return grid_->num_threads_; }
  uint32_t index_x() const { return grid_->index_x_; }
  uint32_t index_y() const { return grid_->index_y_; }
  uint32_t num_x() const { return grid_->num_x_; }
  void Sync() { grid_->Wait(Waits::kForBlock); }
  void SyncWarp() { grid_->Wait(Waits::kForWarp); }

  template <typename T>
  T ShuffleXor(T value, uint32_t mask) {
    const uint32_t self = thread();
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(value));
    grid_->fibers_[self].deposit = bits;
    grid_->Wait(Waits::kForWarp);
    bits = grid_->fibers_[self ^ mask].deposit;
    // No lane deposits again before all have read.
    grid_->Wait(Waits::kForWarp);
    T other;
    memcpy(&other, &bits, sizeof(other));
    return other;
  }
  uint32_t Ballot(bool bit);

  void MultiplyAddInt8(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, int32_t (&sums)[4]);

  void MultiplyAddBf16(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, float (&sums)[4]);

  void AtomicAdd(uint64_t& place, uint64_t value) { place += value; }

  template <typename T>
  DeviceSpan<T> Shared(uint64_t offset, uint64_t count) {
    if (offset % alignof(T) != 0 || offset + count * sizeof(T) > grid_->shared_bytes_) {
      FailDeviceAccess(offset + count * sizeof(T), grid_->shared_bytes_, 1);
    }
    return {reinterpret_cast<T*>(reinterpret_cast<char*>(grid_->shared_.data()) + offset), count};
  }

 private:
  // Every lane shares its fragments, and then calls `multiply(i, of_a, of_b)` for its sum i, with the words
  // that the four lanes of that row of a and of that row of b hold.
  template <typename Multiply>
  void MultiplyFragments(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Multiply multiply);

  HostGrid* grid_;
};

}  // namespace tandem
