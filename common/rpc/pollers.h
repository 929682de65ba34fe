#pragma once

#include <thread>
#include <vector>

#include "grpcpp/completion_queue.h"

namespace tandem {

// Threads that wait for the process's connections, besides those of gRPC, which are as few as half its cores,
// two at least. A connection that always has something to read keeps the thread that reads it, so two peers
// that never stop sending would keep everybody else from being read; with these it takes as many more, and
// the kernel shares the cores among the threads. A thread that has nothing to do costs nothing.
class Pollers {
 public:
  explicit Pollers(int num_threads);
  ~Pollers();
  Pollers(const Pollers&) = delete;
  Pollers& operator=(const Pollers&) = delete;

 private:
  // Nothing ever comes out of it: who waits here handles what comes in on any connection.
  grpc::CompletionQueue queue_;
  std::vector<std::thread> threads_;
};

}  // namespace tandem
