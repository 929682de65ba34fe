#include "common/rpc/pollers.h"

namespace tandem {

Pollers::Pollers(int num_threads) {
  for (int i = 0; i < num_threads; ++i) {
    threads_.emplace_back([this] {
      void* tag = nullptr;
      bool ok = false;
      while (queue_.Next(&tag, &ok)) {
      }
    });
  }
}

Pollers::~Pollers() {
  queue_.Shutdown();
  for (std::thread& thread : threads_) thread.join();
  // gRPC wants it empty.
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
  }
}

}  // namespace tandem
