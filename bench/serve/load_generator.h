#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "bench/serve/request_record.h"
#include "bench/serve/schedule.h"
#include "common/config/secret.h"
#include "grpcpp/channel.h"
#include "grpcpp/security/credentials.h"
#include "tandem/v1/generation.grpc.pb.h"

namespace tandem::bench {

// The destination of requests.
class GenerateBackend {
 public:
  virtual ~GenerateBackend() = default;
  // Begins a request. `done` is called exactly once, with its record, from any thread, possibly before Start
  // returns.
  virtual void Start(const v1::GenerateRequest& request, std::function<void(RequestRecord)> done) = 0;
};

// A router. Safe from any thread.
class RouterBackend final : public GenerateBackend {
 public:
  // A request that takes longer than `timeout` fails. Null `credentials`: without TLS.
  RouterBackend(const std::string& endpoint, Secret token, absl::Duration timeout,
                const std::shared_ptr<grpc::ChannelCredentials>& credentials = nullptr);
  void Start(const v1::GenerateRequest& request, std::function<void(RequestRecord)> done) override;

 private:
  const Secret token_;
  const absl::Duration timeout_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Generation::Stub> stub_;
};

struct LoadResult {
  std::vector<RequestRecord> records;  // In the requests' order.
  double seconds = 0.0;                // From the first call to the last end.
};

// Sends all requests as `load` says, and waits until all have ended. With an open load, `arrivals` has one
// time for each request.
LoadResult RunLoad(GenerateBackend& backend, const std::vector<v1::GenerateRequest>& requests,
                   const Load& load, const std::vector<absl::Duration>& arrivals);

}  // namespace tandem::bench
