#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace tandem::router::testing {

// A cheap client of the HTTP API: streams completions from a port of this machine, each over its own
// connection. One thread reads all of them. Connections are reused for further requests.
class SseClient {
 public:
  // Called on the client's thread. `ok`: the stream was complete and ended by itself.
  struct Callbacks {
    std::function<void()> on_first;
    std::function<void(bool ok, uint32_t chunks)> on_done;
  };

  // `body` is the JSON that every request sends.
  SseClient(int port, const std::string& token, const std::string& body);
  // Closes all connections; no callback runs after it.
  ~SseClient();

  // Sends a request. Thread-safe.
  void Start(Callbacks callbacks);

 private:
  struct Stream {
    Callbacks callbacks;
    std::string line;  // The last one, as far as it has come.
    uint32_t chunks = 0;
    bool served = false;  // The status was 200.
    bool done = false;    // [DONE] has come.
  };

  int Open();
  void Run();
  // False if the stream is over, with or without an error.
  bool Read(int socket, Stream& stream);
  static void OnLine(absl::string_view line, Stream& stream);

  const int port_;
  const std::string request_;
  const int epoll_;
  const int wake_;  // Readable at the end.
  absl::Mutex mutex_;
  std::map<int, std::unique_ptr<Stream>> streams_ ABSL_GUARDED_BY(mutex_);  // By socket.
  std::vector<int> idle_ ABSL_GUARDED_BY(mutex_);                           // Sockets without a request.
  std::thread thread_;
};

}  // namespace tandem::router::testing
