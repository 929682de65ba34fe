#pragma once

#include <thread>
#include <vector>

#include "grpcpp/completion_queue.h"

namespace tandem {

// Threads that poll the process's connections, in addition to gRPC's own, which number half the cores and at
// least two. A connection that always has something to read keeps its thread busy, so two peers that never
// stop sending could keep all others from being read. With these threads it takes more such peers, and the
// kernel shares the cores among the threads. Idle threads cost nothing.
class Pollers {
 public:
  explicit Pollers(int num_threads);
  ~Pollers();
  Pollers(const Pollers&) = delete;
  Pollers& operator=(const Pollers&) = delete;

 private:
  // Never returns an event: a thread that waits here handles the input of any connection.
  grpc::CompletionQueue queue_;
  std::vector<std::thread> threads_;
};

}  // namespace tandem
