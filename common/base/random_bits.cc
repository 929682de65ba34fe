#include "common/base/random_bits.h"

#include <memory>
#include <random>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tandem {
namespace {

class SharedGenerator {
 public:
  uint64_t Draw() {
    absl::MutexLock lock(&mutex_);
    return generator_();
  }

 private:
  static std::mt19937_64 Seeded() {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device(), device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }

  absl::Mutex mutex_;
  std::mt19937_64 generator_ ABSL_GUARDED_BY(mutex_) = Seeded();
};

}  // namespace

std::function<uint64_t()> SystemRandomBits() {
  auto generator = std::make_shared<SharedGenerator>();
  return [generator] { return generator->Draw(); };
}

double RandomFraction() {
  static thread_local std::mt19937_64 generator{std::random_device{}()};
  return std::uniform_real_distribution<double>(0.0, 1.0)(generator);
}

}  // namespace tandem
